"""Whatever happens in whatever order, the ledger never contradicts itself and nothing is sent
after the close.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.communication.delivery import next_step
from rapport.communication.privacy import PrivacyPolicy
from rapport.communication.steps import Answer, Ask, Escalate, Note, Outcome, Queue, Tell, Tick
from rapport.communication.tracking import Member, Retry, Tracking, Try

PEERS = ("ana", "ben", "lea")
ADDRESSES = ("mail:x@example.org", "inbox:")

privacies = st.sampled_from(
    [None, PrivacyPolicy(0, 1, "UTC"), PrivacyPolicy(0, 1, "UTC", "refuse")]
)


@st.composite
def members(draw, names):
    chosen = draw(st.lists(st.sampled_from(names), unique=True, max_size=3))
    return [
        Member(
            peer=name,
            tries=[Try(address=a) for a in draw(st.lists(st.sampled_from(ADDRESSES), unique=True))],
            delivery=draw(st.sampled_from(["to-all-channels", "at-least-one", "preferred"])),
            privacy=draw(privacies),
        )
        for name in chosen
    ]


inputs = st.one_of(
    st.builds(
        Outcome,
        st.sampled_from(PEERS),
        st.sampled_from(ADDRESSES),
        st.integers(1, 3),
        st.sampled_from(["handed", "confirmed", "failed", "unknown"]),
        retry=st.booleans(),
    ),
    st.builds(Answer, st.sampled_from((*PEERS, "eve"))),
    st.integers(0, 90_000),
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    first=members(PEERS),
    second=members(PEERS),
    delivery=st.sampled_from(["to-any", "to-all-members"]),
    done_when=st.sampled_from(["sent", "answered"]),
    urgent=st.booleans(),
    expires=st.sampled_from([0, 100_000]),
    happenings=st.lists(inputs, max_size=25),
)
def test_no_sequence_of_inputs_contradicts_itself(
    first, second, delivery, done_when, urgent, expires, happenings
):
    tracking = Tracking(
        message="m",
        done_when=done_when,
        urgent=urgent,
        answer_within=60_000 if done_when == "answered" else 0,
        escalate_to=["collective:leads"],
        expires=expires,
        retry=Retry(attempts=3, first_ms=1_000, longest_ms=5_000),
    )
    witness = Witness()
    now = 10_000
    tracking = witness.give(tracking, Ask("collective:guards", first, delivery), now, second)
    for happening in happenings:
        if isinstance(happening, int):
            now += happening
            happening = Tick()
        tracking = witness.give(tracking, happening, now, second)
        due = tracking.next_due_ms()
        assert due is None or not isinstance(happening, Tick) or due > now, "a tick takes all due"
    witness.check(tracking)


class Witness:
    """Sees every step and complains about the first one that does not follow from those before."""

    def __init__(self):
        self.attempts: dict[tuple[str, str], int] = {}
        self.last: dict[tuple[str, str], str] = {}
        self.closed = 0
        self.told: list[str] = []

    def give(self, tracking, input, now, leads):
        pending = [input]
        while pending:
            tracking, steps = next_step(tracking, pending.pop(0), now)
            for step in steps:
                if isinstance(step, Escalate):
                    pending.append(Ask(step.receiver, leads, "to-any"))
                self.see(step)
        return tracking

    def see(self, step):
        match step:
            case Queue():
                assert not self.closed, "nothing is sent after the close"
                key = (step.peer, step.address)
                assert step.attempt == self.attempts.get(key, 0) + 1, "attempts count up by one"
                self.attempts[key] = step.attempt
            case Tell():
                assert step.subtype not in self.told, "the sender is told once"
                self.told.append(step.subtype)
            case Note(state="closed", peer=""):
                self.closed += 1
            case Note() if step.address:
                self.see_medium(step)

    def see_medium(self, note):
        key = (note.peer, note.address)
        before = self.last.get(key, "")
        allowed = {
            "queued": ("", "failed"),
            "unknown": ("queued", "unknown"),
            "handed": ("queued", "unknown"),
            "confirmed": ("queued", "unknown", "handed"),
            "failed": ("queued", "unknown"),
            "closed": ("failed",),
        }
        assert before in allowed[note.state], f"{note.state} after {before or 'nothing'}"
        self.last[key] = note.state

    def check(self, tracking):
        assert self.closed == int(tracking.closed), "closed once, and only when closed"
        succeeded = any(tracking.has_succeeded(stage) for stage in tracking.stages)
        if not tracking.closed:
            assert not succeeded
        if tracking.result == "done":
            assert succeeded
        if tracking.result == "failed":
            assert "comerror" in self.told
        assert tracking.closed or tracking.stages
