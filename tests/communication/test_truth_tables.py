"""The truth tables of the delivery policies, level by level and combined: what happens to whom,
what comes of it, and what the sender is told. [CO-8]

Each row is a play. Words: `ana+` the medium took it for ana, `ana-` it failed for good, `ana!` she
answered, `ana~` she declined, `ana?` nobody can say, `ana=` the same outcome once more, `@` the
deadline passes, `$` the time to live is over. `ana1+`, `ana2-` name the first and the second of
her addresses.
"""

from __future__ import annotations

import pytest

from rapport.communication.delivery_state import Answer, NextReceiver
from rapport.communication.privacy import AllowedDelivery, Hold, Refuse
from support.processes.delivery_play import INBOX, MAIL, NOW, Play, member

DEADLINE, LIFETIME = 60_000, 600_000
STATES = {"+": "handed", "-": "failed", "?": "unknown", "=": "handed"}


def act(play, words):
    """Plays the words of a row."""
    for word in words.split():
        if word == "@":
            play.after(DEADLINE)
        elif word == "$":
            play.after(LIFETIME)
        elif word.endswith("!"):
            play.answer(word[:-1])
        elif word.endswith("~"):
            play.hear(Answer(word[:-1], "no", declined=True))
        else:
            name, what = word[:-1], word[-1]
            address = INBOX if name.endswith("2") else MAIL
            play.sent(name.rstrip("12"), address, state=STATES[what])


def told(play):
    return " ".join(play.told())


# --- the message ---


@pytest.mark.parametrize(
    ("acknowledge", "happens", "result", "said"),
    [
        (True, "ana+", "done", "ack"),
        (False, "ana+", "done", ""),
        (True, "ana-", "failed", "comerror"),
        (False, "ana-", "failed", "comerror"),
        (True, "$", "timed_out", "timeout"),
        (False, "$", "timed_out", "timeout"),
        (True, "ana+ ana=", "done", "ack"),
        (True, "ana- ana-", "failed", "comerror"),
        (True, "$ ana+", "timed_out", "timeout"),
        (True, "ana? ana+", "done", "ack"),
        (True, "ana? ana-", "failed", "comerror"),
    ],
)
def test_success_is_reported_on_request_and_failure_always(acknowledge, happens, result, said):
    play = Play(acknowledge=acknowledge, expires=NOW + LIFETIME)
    play.ask(member("ana"))
    act(play, happens)
    assert (play.result, told(play)) == (result, said)


# --- the peer ---


@pytest.mark.parametrize("collective", ["to-any", "to-all-members", "at-least"])
@pytest.mark.parametrize(
    ("policy", "happens", "result"),
    [
        ("to-all-channels", "ana1+ ana2+", "done"),
        ("to-all-channels", "ana1+", ""),
        ("to-all-channels", "ana1+ ana2-", "failed"),
        ("to-all-channels", "ana1- ana2+", "failed"),
        ("to-all-channels", "ana1- ana2-", "failed"),
        ("to-all-channels", "ana1? ana2+", ""),
        ("at-least-one", "ana1+", "done"),
        ("at-least-one", "ana1+ ana2-", "done"),
        ("at-least-one", "ana1-", ""),
        ("at-least-one", "ana1- ana2+", "done"),
        ("at-least-one", "ana1- ana2-", "failed"),
        ("at-least-one", "ana1- ana1- ana2+", "done"),
        ("preferred", "ana1+", "done"),
        ("preferred", "ana1-", ""),  # it was given the second to fall back on
        ("preferred", "ana1- ana2+", "done"),
        ("preferred", "ana1- ana2-", "failed"),
        ("preferred", "ana2+", ""),  # nobody asked the second
    ],
)
def test_a_peer_is_reached_as_its_policy_says(policy, happens, result, collective):
    play = Play()
    play.ask(member("ana", MAIL, INBOX, delivery=policy), delivery=collective)
    act(play, happens)
    assert play.result == result


# --- the collective, done when sent and done when answered ---

GUARDS = ("ana", "ben", "eva")

TABLE = [
    # policy, least, happens, result when sent is enough, result when answers count
    ("to-any", 1, "ana+", "done", ""),
    ("to-any", 1, "ana-", "", ""),
    ("to-any", 1, "ana- ben- eva-", "failed", "failed"),
    ("to-any", 1, "ana- ben- eva+", "done", ""),
    ("to-any", 1, "ana!", "done", "done"),
    ("to-any", 1, "ana- ana!", "done", "done"),
    ("to-any", 1, "ana- ben- eva- ana!", "failed", "failed"),
    ("to-any", 1, "ana+ ben+ eva+ @", "done", "timed_out"),
    ("to-any", 1, "ana+ @ ana!", "done", "timed_out"),
    ("to-all-members", 1, "ana+ ben+", "", ""),
    ("to-all-members", 1, "ana+ ben+ eva+", "done", ""),
    ("to-all-members", 1, "ana+ ben- eva+", "failed", ""),
    ("to-all-members", 1, "ana! ben! eva!", "done", "done"),
    ("to-all-members", 1, "ana! ben!", "", ""),
    ("to-all-members", 1, "ana! ben! @", "timed_out", "timed_out"),
    ("to-all-members", 1, "ana- ben! eva! ana!", "failed", "failed"),
    ("to-all-members", 1, "ana- ana! ben! eva!", "done", "done"),
    ("at-least", 2, "ana+", "", ""),
    ("at-least", 2, "ana+ ana= ana=", "", ""),
    ("at-least", 2, "ana+ ben+", "done", ""),
    ("at-least", 2, "ana- ben- eva+", "failed", ""),
    ("at-least", 2, "ana! ana! ana!", "", ""),
    ("at-least", 2, "ana! eva!", "done", "done"),
    ("at-least", 2, "ana! @ eva!", "timed_out", "timed_out"),
    ("at-least", 3, "ana- ben! eva!", "failed", "failed"),
    ("at-least", 3, "ana! ben! eva!", "done", "done"),
    # who declines was told, and is out where answers count; a later yes counts
    ("to-any", 1, "ana~", "done", ""),
    ("to-any", 1, "ana~ ben!", "done", "done"),
    ("to-any", 1, "ana~ ben~ eva~", "done", "failed"),
    ("to-any", 1, "ana~ ana!", "done", "done"),
    ("to-any", 1, "ana~ ben- eva~", "done", "failed"),
    ("to-any", 1, "ana~ ben~ @", "done", "timed_out"),
    ("to-all-members", 1, "ana! ben! eva~", "done", "failed"),
    ("to-all-members", 1, "ana! eva~", "", ""),
    ("to-all-members", 1, "eva~ ana! ben! eva!", "done", "failed"),
    ("at-least", 2, "ana~ ben!", "done", ""),
    ("at-least", 2, "ana~ ben! eva!", "done", "done"),
    ("at-least", 2, "ana~ ben~ eva!", "done", "failed"),
    ("at-least", 2, "ana! ana~ ben!", "done", ""),
]


@pytest.mark.parametrize("done_when", ["sent", "answered"])
@pytest.mark.parametrize(("policy", "least", "happens", "sent", "answered"), TABLE)
def test_a_collective_is_reached_as_its_policy_says(
    policy, least, happens, sent, answered, done_when
):
    play = Play(done_when=done_when)
    play.ask(*map(member, GUARDS), delivery=policy, least=least, answer_within=DEADLINE)
    act(play, happens)
    assert play.result == (sent if done_when == "sent" else answered)
    expected = {"done": ["ack"], "timed_out": ["timeout"], "failed": ["comerror"]}
    if "comerror" in play.told():
        assert play.told() in (["comerror"], ["comerror", "timeout"]), "never ACK as well"
    elif play.result:
        assert play.told()[-1:] == expected[play.result]


@pytest.mark.parametrize("policy", ["to-any", "to-all-members", "at-least"])
@pytest.mark.parametrize("done_when", ["sent", "answered"])
def test_an_empty_collective_fails_at_once(policy, done_when):
    play = Play(done_when=done_when)
    play.ask(delivery=policy)
    assert (play.result, play.told(), play.queued()) == ("failed", ["comerror"], [])


# --- peers and collectives together ---

PEER_COMES_TO = {
    # policy of the peer: what happens at two addresses -> reached, lost or open
    "to-all-channels": {"++": True, "+-": False, "-+": False, "--": False},
    "at-least-one": {"++": True, "+-": True, "-+": True, "--": False},
    "preferred": {"++": True, "+-": True, "-+": True, "--": False},
}


@pytest.mark.parametrize("collective", ["to-any", "to-all-members", "at-least"])
@pytest.mark.parametrize("policy", list(PEER_COMES_TO))
@pytest.mark.parametrize("ana", ["++", "+-", "-+", "--"])
@pytest.mark.parametrize("ben", ["++", "+-", "-+", "--"])
def test_both_levels_together(collective, policy, ana, ben):
    play = Play()
    members = [member(name, MAIL, INBOX, delivery=policy) for name in ("ana", "ben")]
    play.ask(*members, delivery=collective, least=2)
    for name, fates in (("ana", ana), ("ben", ben)):
        act(play, f"{name}1{fates[0]} {name}2{fates[1]}")
    reached = [PEER_COMES_TO[policy][fates] for fates in (ana, ben)]
    needed = 1 if collective == "to-any" else 2
    assert play.result == ("done" if sum(reached) >= needed else "failed")


# --- privacy on top ---


@pytest.mark.parametrize(
    ("policy", "ana", "happens", "result"),
    [
        ("to-any", "held", "ben-", ""),
        ("to-any", "held", "ben+", "done"),
        ("to-any", "refused", "ben-", "failed"),
        ("to-any", "refused", "ben+", "done"),
        ("to-all-members", "held", "ben+", ""),
        ("to-all-members", "refused", "ben+", "failed"),
        ("at-least", "held", "ben+", ""),
        ("at-least", "refused", "ben+", "failed"),
    ],
)
def test_who_is_held_is_pending_and_who_refuses_is_out(policy, ana, happens, result):
    verdict = Hold(NOW + 1_000_000) if ana == "held" else Refuse("no")
    play = Play(
        verdicts={"ana": lambda now: verdict if now < NOW + 1_000_000 else AllowedDelivery()}
    )
    play.ask(member("ana"), member("ben"), delivery=policy, least=2)
    act(play, happens)
    assert play.result == result
    if ana == "held" and result == "":
        play.after(1_000_000)
        assert play.queued()[-1] == ("ana", MAIL)


# --- escalation on top ---


@pytest.mark.parametrize(
    ("happens", "asked", "result"),
    [
        ("ana!", [], "done"),
        ("ana+ ben+ @", ["lea"], ""),
        ("ana- ben-", ["lea"], ""),
        ("ana+ @ lea!", ["lea"], "done"),
        ("ana+ @ ana!", ["lea"], "done"),
        ("@ lea-", ["lea", "max"], ""),
        ("@ @", ["lea", "max"], ""),
        ("@ @ @", ["lea", "max"], "timed_out"),
        ("@ @ max!", ["lea", "max"], "done"),
        ("ana- ben- lea- max-", ["lea", "max"], "failed"),
        ("@ @ @ ana!", ["lea", "max"], "timed_out"),
        ("ana~", [], ""),
        ("ana~ ben~", ["lea"], ""),
        ("ana~ ben~ lea~ max!", ["lea", "max"], "done"),
        ("ana~ ben~ lea~ max~", ["lea", "max"], "failed"),
    ],
)
def test_the_next_are_asked_when_nobody_answers_or_can_be_reached(happens, asked, result):
    chain = [NextReceiver("collective:leads", DEADLINE), NextReceiver("peer:max", DEADLINE)]
    play = Play(
        done_when="answered",
        escalate=chain,
        next_ones={
            "collective:leads": ("to-any", 1, [member("lea")]),
            "peer:max": ("to-all-members", 1, [member("max")]),
        },
    )
    play.ask(member("ana"), member("ben"), answer_within=DEADLINE)
    act(play, happens)
    assert [name for name, _ in play.queued()][2:] == asked
    assert play.result == result


# --- members who join and leave meanwhile ---


def test_who_leaves_between_two_stages_stays_asked_and_who_joins_is_asked_then():
    joined = ("to-any", 1, [member("ben"), member("lea")])
    play = Play(
        done_when="answered",
        escalate=[NextReceiver("collective:guards", DEADLINE)],
        next_ones={"collective:guards": joined},
    )
    play.ask(member("ana"), member("ben"), answer_within=DEADLINE)
    act(play, "ana+ ben+ @")
    assert [name for name, _ in play.queued()] == ["ana", "ben", "lea"]
    act(play, "ana!")
    assert play.result == "done"
