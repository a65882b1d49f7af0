"""The machine of two levels does in every run what the naive telling of CO-8 does, and what it
writes never contradicts itself.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.communication.delivery_state import (
    LATEST_ATTEMPT,
    Answer,
    AttemptOutcome,
    LedgerNote,
    NextReceiver,
    QueueDelivery,
)
from rapport.communication.privacy import AllowedDelivery, Hold, Refuse
from support.examples import examples
from support.processes.delivery_play import INBOX, MAIL, NOW, Play, member

_PATH = Path(__file__).with_name("judge_delivery.py")
_SPEC = importlib.util.spec_from_file_location("judge_delivery", _PATH)
judge_delivery = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(judge_delivery)

PAGE = "ws:"
ADDRESSES = (PAGE, MAIL, INBOX)
NAMES = ("ana", "ben", "eva", "lea")
WINDOW = 50_000

people = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.lists(st.sampled_from(ADDRESSES), unique=True, max_size=3),
        st.sampled_from(["to-all-channels", "at-least-one", "preferred"]),
    ),
    unique_by=lambda entry: entry[0],
    max_size=4,
)
stages = st.tuples(
    st.sampled_from(["to-any", "to-all-members", "at-least"]),
    st.integers(1, 3),
    st.sampled_from([0, 20_000, 60_000]),
    people,
)
happenings = st.lists(
    st.one_of(
        st.tuples(
            st.just("outcome"),
            st.sampled_from(NAMES),
            st.sampled_from(ADDRESSES),
            st.integers(0, 3),
            st.sampled_from(["handed", "confirmed", "failed", "failed", "unknown"]),
            st.booleans(),
            st.booleans(),
        ),
        st.tuples(st.just("answer"), st.sampled_from((*NAMES, "eve")), st.booleans()),
        st.tuples(
            st.just("time"), st.one_of(st.integers(0, 70_000), st.sampled_from([30_000, 120_000]))
        ),
        st.tuples(
            st.just("newest"), st.sampled_from(["handed", "failed"]), st.booleans(), st.booleans()
        ),
        st.tuples(st.just("back"), st.booleans()),
        st.tuples(st.just("drop")),
    ),
    max_size=30,
)


def verdict_of(quiet):
    """By name what privacy says: held or refused up to NOW + WINDOW, then allowed."""

    def asked(name, now):
        said = quiet.get(name, "allow")
        if said == "refuse":
            return "refuse", 0
        return (said, NOW + WINDOW) if said == "hold" and now < NOW + WINDOW else ("allow", 0)

    return asked


def as_verdict(name, asked):
    def judged(now):
        said, until = asked(name, now)
        return {"hold": Hold(until), "refuse": Refuse("no"), "allow": AllowedDelivery()}[said]

    return judged


def newest(play):
    queued = [step for step in play.steps if isinstance(step, QueueDelivery)]
    return queued[-1] if queued else None


@pytest.mark.slow
@settings(max_examples=examples(1_500), deadline=None)
@given(
    first=stages,
    chain=st.lists(stages, max_size=2),
    done_when=st.sampled_from(["sent", "answered"]),
    expires=st.sampled_from([0, 0, NOW + 90_000]),
    repeat=st.sampled_from([(0, 0), (15_000, 0), (15_000, 2)]),
    urgent=st.booleans(),
    quiet=st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["hold", "refuse"])),
    happens=happenings,
)
def test_the_machine_does_what_the_naive_telling_does(
    first, chain, done_when, expires, repeat, urgent, quiet, happens
):
    asked = verdict_of(quiet)
    told = {
        "done_when": done_when,
        "expires": expires,
        "repeat_every": repeat[0],
        "repeat_most": repeat[1],
        "urgent": urgent,
    }
    naive = judge_delivery.Naive(told, asked, chain, NOW)
    play = Play(
        **told,
        escalate=[NextReceiver(f"collective:{n}", each[2]) for n, each in enumerate(chain)],
        verdicts={name: as_verdict(name, asked) for name in NAMES},
        next_ones={
            f"collective:{n}": (policy, least, _members(entries))
            for n, (policy, least, _, entries) in enumerate(chain)
        },
    )
    naive.ask(*first)
    play.ask(*_members(first[3]), delivery=first[0], least=first[1], answer_within=first[2])
    _compare(naive, play)
    for what, *how in happens:
        if what == "time":
            naive.pass_time(how[0])
            play.after(how[0])
        elif what == "answer":
            naive.answer(*how)
            play.hear(Answer(how[0], declined=how[1]))
        else:
            outcome = _outcome(play, what, how)
            if outcome is not None:
                naive.hear(*outcome)
                peer, address, attempt, state, retry, unavailable = outcome
                play.hear(AttemptOutcome(peer, address, attempt, state, "r", retry, unavailable))
        _compare(naive, play)
    check_lines(play)


def _members(entries):
    found = []
    for name, addresses, policy in entries:
        found.append(member(name, *addresses, delivery=policy))
        found[-1].tries = found[-1].tries if addresses else []
    return found


def _outcome(play, what, how):
    if what == "outcome":
        return how
    step = newest(play)
    if step is None:
        return None
    if what == "drop":
        return _dropped(play, step)
    if what == "back":
        return step.peer, step.address, LATEST_ATTEMPT, "failed", how[0], False
    return step.peer, step.address, step.attempt, *how


def _dropped(play, step):
    """What waits before a medium is left out once it is decided, or its person has spoken."""
    if not (play.tracking.closed or play.members[step.peer].has_spoken()):
        return None
    return step.peer, step.address, step.attempt, "dropped", False, False


def _compare(naive, play):
    queued = [(s.peer, s.address, s.attempt) for s in play.steps if isinstance(s, QueueDelivery)]
    assert (naive.result, naive.told, naive.queued) == (play.result, play.told(), queued)


def check_lines(play):
    """The ledger never contradicts itself."""
    allowed = {
        "queued": ("", "failed", "handed", "confirmed"),
        "unknown": ("queued", "unknown"),
        "handed": ("queued", "unknown"),
        "confirmed": ("queued", "unknown", "handed"),
        "failed": ("queued", "unknown", "handed", "confirmed"),
        "closed": ("failed", "queued", "unknown"),
    }
    last, closed = {}, 0
    for step in play.steps:
        if isinstance(step, QueueDelivery):
            assert not closed, "nothing is sent after the close"
        elif isinstance(step, LedgerNote) and step.address:
            before = last.get((step.peer, step.address), "")
            assert before in allowed[step.state], f"{step.state} after {before or 'nothing'}"
            last[step.peer, step.address] = step.state
        elif isinstance(step, LedgerNote) and step.result:
            closed += 1
    assert closed == int(play.tracking.closed)
    assert not {"ack", "comerror"} <= set(play.told()), "one of them at the most"
