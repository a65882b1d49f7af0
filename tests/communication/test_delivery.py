"""The truth tables of the delivery policies: peer x collective x done-when x what happens."""

from __future__ import annotations

import pytest

from rapport.communication.delivery import next_step
from rapport.communication.privacy import PrivacyPolicy
from rapport.communication.steps import Answer, Ask, Escalate, Note, Outcome, Queue, Tell, Tick
from rapport.communication.tracking import Member, Retry, Tracking, Try

NOW = 1_000_000
A, B = "mail:x@example.org", "inbox:"


class Play:
    """One message under test: inputs in, queued sends, notes and what the sender was told out."""

    def __init__(self, **settings):
        settings.setdefault("retry", Retry(attempts=3, first_ms=1_000, longest_ms=4_000))
        self.tracking = Tracking(message="m", **settings)
        self.now = NOW
        self.steps = []

    def take(self, input):
        before = repr(self.tracking)
        tracking, steps = next_step(self.tracking, input, self.now)
        assert repr(self.tracking) == before, "the given state must not change"
        self.tracking = tracking
        self.steps += steps
        return steps

    def ask(self, *members, delivery="to-any", receiver="collective:guards"):
        return self.take(Ask(receiver, list(members), delivery))

    def sent(self, peer="ana", address=A, attempt=1, state="handed"):
        return self.take(Outcome(peer, address, attempt, state))

    def failed(self, peer="ana", address=A, attempt=1, retry=False):
        return self.take(Outcome(peer, address, attempt, "failed", reason="no", retry=retry))

    def after(self, milliseconds):
        self.now += milliseconds
        return self.take(Tick())

    @property
    def result(self):
        return self.tracking.result

    def queued(self):
        return [(step.peer, step.address) for step in self.steps if isinstance(step, Queue)]

    def told(self):
        return [step.subtype for step in self.steps if isinstance(step, Tell)]

    def notes(self, state):
        return [step.peer for step in self.steps if isinstance(step, Note) and step.state == state]


def peer(name="ana", *addresses, delivery="at-least-one", privacy=None):
    tries = [Try(address=address) for address in (addresses or (A,))]
    return Member(peer=name, tries=tries, delivery=delivery, privacy=privacy)


# --- peer level, done when sent ---


@pytest.mark.parametrize(
    ("delivery", "first", "second", "result"),
    [
        ("to-all-channels", "ok", "ok", "done"),
        ("to-all-channels", "ok", "no", "failed"),
        ("to-all-channels", "no", "ok", "failed"),
        ("to-all-channels", "no", "no", "failed"),
        ("at-least-one", "ok", "ok", "done"),
        ("at-least-one", "ok", "no", "done"),
        ("at-least-one", "no", "ok", "done"),
        ("at-least-one", "no", "no", "failed"),
    ],
)
@pytest.mark.parametrize("collective", ["to-any", "to-all-members"])
def test_a_peer_with_two_addresses_is_reached_as_its_policy_says(
    delivery, first, second, result, collective
):
    play = Play()
    play.ask(peer("ana", A, B, delivery=delivery), delivery=collective)
    assert play.queued() == [("ana", A), ("ana", B)]
    for address, outcome in ((A, first), (B, second)):
        play.sent(address=address) if outcome == "ok" else play.failed(address=address)
    assert play.result == result
    assert play.told() == (["ack"] if result == "done" else ["comerror"])


def test_at_least_one_fails_only_with_the_last_address():
    play = Play()
    play.ask(peer("ana", A, B))
    play.failed(address=A)
    assert play.result == ""
    assert play.told() == []


def test_preferred_takes_the_first_address_and_falls_back_when_it_has_more():
    play = Play()
    play.ask(peer("ana", A, B, delivery="preferred"))
    assert play.queued() == [("ana", A)]
    play.failed(address=A)
    assert play.queued() == [("ana", A), ("ana", B)]
    play.sent(address=B)
    assert play.result == "done"


def test_preferred_without_fallback_fails_with_its_address():
    play = Play()
    play.ask(peer("ana", A, delivery="preferred"))
    play.failed(address=A)
    assert play.result == "failed"


# --- collective level, done when sent ---


@pytest.mark.parametrize(
    ("delivery", "ana", "ben", "result"),
    [
        ("to-any", "ok", "ok", "done"),
        ("to-any", "ok", "no", "done"),
        ("to-any", "no", "ok", "done"),
        ("to-any", "no", "no", "failed"),
        ("to-all-members", "ok", "ok", "done"),
        ("to-all-members", "ok", "no", "failed"),
        ("to-all-members", "no", "ok", "failed"),
        ("to-all-members", "no", "no", "failed"),
    ],
)
def test_a_collective_is_reached_as_its_policy_says(delivery, ana, ben, result):
    play = Play()
    play.ask(peer("ana"), peer("ben"), delivery=delivery)
    for name, outcome in (("ana", ana), ("ben", ben)):
        play.sent(name) if outcome == "ok" else play.failed(name)
    assert play.result == result


def test_to_all_members_reports_the_first_failure_at_once_and_still_tries_everybody():
    play = Play()
    play.ask(peer("ana"), peer("ben"), delivery="to-all-members")
    play.failed("ana")
    assert play.told() == ["comerror"]
    assert play.result == ""
    play.failed("ben", retry=True)
    play.after(1_000)
    assert play.queued() == [("ana", A), ("ben", A), ("ben", A)]
    play.sent("ben", attempt=2)
    assert play.result == "failed"
    assert play.told() == ["comerror"]


def test_deciding_a_collective_gives_up_what_still_waits_for_the_others():
    play = Play()
    play.ask(peer("ana"), peer("ben"))
    play.failed("ben", retry=True)
    play.sent("ana")
    assert play.result == "done"
    assert play.tracking.next_due_ms() is None
    assert "ben" in play.notes("closed")
    assert not [step for step in play.after(60_000) if isinstance(step, Queue)]


@pytest.mark.parametrize("delivery", ["to-any", "to-all-members"])
@pytest.mark.parametrize("done_when", ["sent", "answered"])
def test_an_empty_collective_fails_at_once(delivery, done_when):
    play = Play(done_when=done_when)
    play.ask(delivery=delivery)
    assert play.result == "failed"
    assert play.told() == ["comerror"]


def test_a_peer_without_an_address_fails_at_once():
    play = Play()
    play.ask(Member(peer="ana", tries=[]))
    assert play.result == "failed"
    (note, *_) = play.steps
    assert (note.state, note.reason) == ("failed", "peer.no_address")


def test_an_acknowledgement_is_sent_only_when_asked_for():
    play = Play(acknowledge=False)
    play.ask(peer())
    play.sent()
    assert play.result == "done"
    assert play.told() == []


# --- retries ---


def test_a_failed_attempt_is_repeated_with_growing_pauses_until_the_attempts_are_used_up():
    play = Play()
    play.ask(peer())
    play.failed(retry=True)
    assert play.tracking.next_due_ms() == NOW + 1_000
    assert play.after(999) == []
    play.after(1)
    play.failed(attempt=2, retry=True)
    assert play.tracking.next_due_ms() == play.now + 2_000
    play.after(2_000)
    play.failed(attempt=3, retry=True)
    assert play.result == "failed"
    assert play.queued() == [("ana", A)] * 3


def test_no_attempt_is_planned_beyond_the_time_to_live():
    play = Play(expires=NOW + 500)
    play.ask(peer())
    play.failed(retry=True)
    assert play.result == "failed"


def test_the_time_to_live_ends_what_is_under_way():
    play = Play(expires=NOW + 500)
    play.ask(peer())
    play.after(500)
    assert play.result == "timed_out"
    assert play.told() == ["timeout"]


def test_an_outcome_heard_twice_or_of_an_older_attempt_changes_nothing():
    play = Play(done_when="answered")
    play.ask(peer())
    play.failed(retry=True)
    assert play.failed(retry=True) == []
    play.after(1_000)
    assert play.failed(attempt=1, retry=True) == []
    play.sent(attempt=2)
    assert play.sent(attempt=2) == []
    assert play.failed(attempt=2) == []


def test_a_medium_may_confirm_what_it_took_before():
    play = Play(done_when="answered")
    play.ask(peer())
    play.sent()
    play.sent(state="confirmed")
    assert play.notes("handed") == play.notes("confirmed") == ["ana"]


def test_an_attempt_of_unknown_fate_may_still_turn_out_well():
    play = Play()
    play.ask(peer())
    play.take(Outcome("ana", A, 1, "unknown"))
    assert play.result == ""
    play.sent()
    assert play.result == "done"
    assert play.notes("unknown") == ["ana"]


# --- done when answered ---


def test_being_sent_is_not_being_answered():
    play = Play(done_when="answered")
    play.ask(peer("ana"), peer("ben"))
    play.sent("ana")
    play.sent("ben")
    assert play.result == ""


def test_the_first_answer_closes_to_any_and_later_ones_are_noted_but_change_nothing():
    play = Play(done_when="answered", answer_within=60_000)
    play.ask(peer("ana"), peer("ben"))
    play.sent("ana")
    play.take(Answer("ana", "coming"))
    assert play.result == "done"
    closed = play.notes("closed")
    play.take(Answer("ben", "me too"))
    play.take(Answer("ana", "again"))
    assert play.notes("answered") == ["ana", "ben", "ana"]
    assert play.notes("closed") == closed
    assert play.told() == ["ack"]


def test_to_all_members_waits_for_every_answer():
    play = Play(done_when="answered")
    play.ask(peer("ana"), peer("ben"), delivery="to-all-members")
    play.take(Answer("ana"))
    assert play.result == ""
    play.take(Answer("ben"))
    assert play.result == "done"


def test_without_anybody_to_escalate_to_a_missed_deadline_closes_as_timed_out():
    play = Play(done_when="answered", answer_within=60_000)
    play.ask(peer("ana"), peer("ben"))
    play.sent("ana")
    play.after(60_000)
    assert play.result == "timed_out"
    assert play.notes("timed_out") == ["ana", "ben"]
    assert play.told() == ["timeout"]


def test_a_late_answer_is_noted_and_does_not_reopen():
    play = Play(done_when="answered", answer_within=60_000)
    play.ask(peer("ana"))
    play.after(60_000)
    play.take(Answer("ana", "sorry"))
    assert play.result == "timed_out"
    assert play.notes("answered") == ["ana"]


def test_an_answer_from_a_stranger_is_none():
    play = Play(done_when="answered")
    play.ask(peer("ana"))
    assert play.take(Answer("eve", "hello")) == []


def test_an_answer_on_one_medium_stops_attempts_on_the_others():
    play = Play(done_when="answered")
    play.ask(peer("ana", A, B), peer("ben"), delivery="to-all-members")
    play.failed(address=A, retry=True)
    play.take(Answer("ana"))
    assert play.tracking.next_due_ms() is None
    assert play.after(60_000) == []


# --- escalation ---


def test_a_missed_deadline_asks_the_next_and_gives_it_the_same_time():
    play = Play(done_when="answered", answer_within=60_000, escalate_to=["collective:leads"])
    play.ask(peer("ana"))
    steps = play.after(60_000)
    assert Escalate("collective:leads") in steps
    play.ask(peer("lea"), receiver="collective:leads")
    assert play.queued() == [("ana", A), ("lea", A)]
    assert play.tracking.next_due_ms() == play.now + 60_000
    play.after(60_000)
    assert play.result == "timed_out"
    assert play.notes("timed_out") == ["ana", "lea"]


def test_an_answer_of_the_first_ones_after_escalation_still_counts():
    play = Play(done_when="answered", answer_within=60_000, escalate_to=["collective:leads"])
    play.ask(peer("ana"))
    play.after(60_000)
    play.ask(peer("lea"), receiver="collective:leads")
    play.take(Answer("ana"))
    assert play.result == "done"


def test_when_nobody_can_be_reached_the_next_is_asked_without_waiting():
    play = Play(done_when="answered", answer_within=60_000, escalate_to=["collective:leads"])
    play.ask(peer("ana"), peer("ben"))
    play.failed("ana")
    assert Escalate("collective:leads") in play.failed("ben")


def test_an_empty_collective_is_passed_over_in_the_chain():
    play = Play(
        done_when="answered", answer_within=1_000, escalate_to=["collective:b", "collective:c"]
    )
    play.ask()
    assert Escalate("collective:b") in play.steps
    assert Escalate("collective:c") in play.ask(receiver="collective:b")
    play.ask(peer("lea"), receiver="collective:c")
    assert play.queued() == [("lea", A)]


def test_who_was_asked_before_is_not_asked_again():
    play = Play(done_when="answered", answer_within=1_000, escalate_to=["collective:leads"])
    play.ask(peer("ana"))
    play.after(1_000)
    play.ask(peer("ana"), peer("lea"), receiver="collective:leads")
    assert play.queued() == [("ana", A), ("lea", A)]


# --- privacy ---

ALWAYS_QUIET = PrivacyPolicy(0, 1439, "UTC")
REFUSES = PrivacyPolicy(0, 1439, "UTC", "refuse")


def test_a_held_member_counts_as_pending_and_is_asked_when_the_hold_ends():
    play = Play(done_when="answered", answer_within=60_000)
    play.ask(peer("ana", privacy=ALWAYS_QUIET))
    assert play.queued() == []
    assert play.result == ""
    assert play.notes("held") == ["ana"]
    until = play.tracking.next_due_ms()
    play.after(until - play.now)
    assert play.queued() == [("ana", A)]
    assert play.tracking.next_due_ms() == play.now + 60_000, "the deadline starts with the asking"


def test_urgent_is_not_held():
    play = Play(urgent=True)
    play.ask(peer("ana", privacy=ALWAYS_QUIET))
    assert play.queued() == [("ana", A)]


def test_a_refusal_fails_the_peer_and_tells_the_sender():
    play = Play()
    play.ask(peer("ana", privacy=REFUSES))
    assert play.notes("refused") == ["ana"]
    assert (play.result, play.told()) == ("failed", ["comerror"])


def test_a_hold_is_given_up_when_another_member_decided_it():
    play = Play()
    play.ask(peer("ana", privacy=ALWAYS_QUIET), peer("ben"))
    play.sent("ben")
    assert play.result == "done"
    play.after(86_400_000)
    assert play.queued() == [("ben", A)]
