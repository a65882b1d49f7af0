"""How a message reaches people, one rule at a time; the tables are in test_truth_tables.py."""

from __future__ import annotations

import pytest

from rapport.communication.delivery_state import (
    AddReceiver,
    BeginMember,
    LedgerNote,
    Member,
    MembersAbandoned,
    NextReceiver,
    NotifySender,
    QueueDelivery,
)
from rapport.communication.privacy import AllowedDelivery, Hold, Refuse
from support.processes.delivery_play import INBOX as B
from support.processes.delivery_play import MAIL as A
from support.processes.delivery_play import NOW, Play
from support.processes.delivery_play import member as peer

LEADS = NextReceiver("collective:leads", 60_000)


# --- when the media have their say ---


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


def test_a_medium_that_knows_it_cannot_deliver_is_passed_over_at_once_and_tried_again_later():
    play = Play(done_when="answered")
    play.ask(peer("ana", A, B, delivery="preferred"))
    play.failed(address=A, retry=True, unavailable=True)
    assert play.queued() == [("ana", A), ("ana", B)]
    play.sent(address=B)
    play.after(1_000)
    assert play.queued() == [("ana", A), ("ana", B), ("ana", A)], "the page may be open by now"
    play.failed(address=A, attempt=2, retry=True, unavailable=True)
    play.answer("ana")
    assert (play.result, play.told()) == ("done", ["ack"])
    assert play.notes("closed") == ["ana", ""], "no attempt waits any more"


@pytest.mark.parametrize(
    ("urgent", "own", "expected"), [(True, 0, 30_000), (False, 0, 120_000), (True, 5_000, 5_000)]
)
def test_a_medium_that_says_nothing_has_its_time_before_the_next_is_tried(urgent, own, expected):
    play = Play(urgent=urgent)
    ana = peer("ana", A, B, delivery="preferred")
    ana.fallback_after = own
    play.ask(ana)
    play.after(expected - 1)
    assert play.queued() == [("ana", A)]
    play.after(1)
    assert play.queued() == [("ana", A), ("ana", B)]
    assert play.due() is None, "there is no third address"
    play.sent(address=A)
    assert play.result == "done", "what the first took in the end counts as well"


def test_attempts_that_fail_for_a_while_do_not_prolong_the_time_of_an_address():
    play = Play(urgent=True)
    play.ask(peer("ana", A, B, delivery="preferred"))
    play.failed(address=A, retry=True)
    play.after(1_000)
    play.failed(address=A, attempt=2, retry=True)
    play.after(29_000)
    assert play.queued() == [("ana", A), ("ana", A), ("ana", A), ("ana", B)]


def test_a_third_address_waits_for_the_second_not_for_the_first():
    play = Play(urgent=True)
    play.ask(peer("ana", A, B, "ws:", delivery="preferred"))
    play.failed(address=A, retry=True, unavailable=True)
    play.after(1_000)
    play.failed(address=A, attempt=2, retry=True, unavailable=True)
    assert play.queued() == [("ana", A), ("ana", B), ("ana", A)], "the second is still at it"
    play.failed(address=B)
    assert play.queued()[-1] == ("ana", "ws:")


def test_nobody_is_fallen_back_to_in_quiet_hours():
    night = NOW + 10_000

    def verdict(now):
        return Hold(NOW + 3_600_000) if night <= now < NOW + 3_600_000 else AllowedDelivery()

    play = Play(urgent=True, verdicts={"ana": verdict})
    play.ask(peer("ana", A, B, delivery="preferred"))
    play.after(30_000)
    assert (play.queued(), play.due()) == ([("ana", A)], NOW + 3_600_000)
    play.after(3_600_000)
    assert play.queued() == [("ana", A), ("ana", B)]


def test_preferred_without_fallback_fails_with_its_address():
    play = Play()
    play.ask(peer("ana", A, delivery="preferred"))
    play.failed(address=A)
    assert play.result == "failed"


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
    assert play.due() is None
    assert "ben" in play.notes("closed")
    assert not [step for step in play.after(60_000) if isinstance(step, QueueDelivery)]


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


# --- when not everybody can be begun ---


def begun(*names: str, delivery: str, **settings: object) -> Play:
    """A collective of which these were begun, and others are still to be."""
    play = Play(**settings)
    play._take(None, AddReceiver("collective:guards", delivery))
    for name in names:
        play._take(None, BeginMember(peer(name)))
    return play


@pytest.mark.parametrize(
    ("delivery", "at_once", "result"),
    [("to-all-members", ["comerror"], "failed"), ("to-any", [], "done"), ("at-least", [], "done")],
)
def test_a_stage_that_is_given_up_is_left_to_those_who_were_begun(delivery, at_once, result):
    play = begun("ana", delivery=delivery)
    play._take(None, MembersAbandoned(0, "no names"))
    assert (play.told(), play.result) == (at_once, "")
    play.sent("ana")
    assert play.result == result
    assert play.told() == (at_once or ["ack"])


def test_a_stage_that_is_given_up_fails_with_the_last_who_was_begun():
    play = begun("ana", delivery="to-any")
    play._take(None, MembersAbandoned(0, "no names"))
    play.failed("ana")
    assert (play.result, play.told()) == ("failed", ["comerror"])
    closed = [
        step for step in play.steps if isinstance(step, LedgerNote) and step.state == "closed"
    ]
    reason = "not everybody of collective:guards could be asked: no names"
    assert [note.reason for note in closed] == [reason]


def test_the_next_is_asked_when_a_stage_is_given_up_that_needs_everybody():
    play = begun("ana", delivery="to-all-members", escalate=[LEADS])
    play._take(None, MembersAbandoned(0, "no names"))
    assert [step for step in play.steps if isinstance(step, NextReceiver)] == [LEADS]


def test_what_is_given_up_twice_or_after_the_end_says_nothing_new():
    play = begun("ana", delivery="to-all-members")
    play._take(None, MembersAbandoned(0, "no names"))
    said = list(play.steps)
    play._take(None, MembersAbandoned(0, "again"))
    assert play.steps == said
    play = begun("ana", delivery="to-any")
    play.sent("ana")
    said = list(play.steps)
    play._take(None, MembersAbandoned(0, "no names"))
    assert (play.steps, play.result) == (said, "done")


# --- retries ---


def test_a_failed_attempt_is_repeated_with_growing_pauses_until_the_attempts_are_used_up():
    play = Play()
    play.ask(peer())
    play.failed(retry=True)
    assert play.due() == NOW + 1_000
    assert play.after(999) == []
    play.after(1)
    play.failed(attempt=2, retry=True)
    assert play.due() == play.now + 2_000
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


def test_a_repeated_outcome_or_one_of_an_older_attempt_changes_nothing():
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
    play.sent(state="unknown")
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
    play = Play(done_when="answered")
    play.ask(peer("ana"), peer("ben"), answer_within=60_000)
    play.sent("ana")
    play.answer("ana", "coming")
    assert play.result == "done"
    closed = play.notes("closed")
    play.answer("ben", "me too")
    play.answer("ana", "again")
    assert play.notes("answered") == ["ana", "ben", "ana"]
    assert play.notes("closed") == closed
    assert play.told() == ["ack"]


def test_at_least_three_waits_for_the_third_answer():
    play = Play(done_when="answered")
    play.ask(*map(peer, ("ana", "ben", "eva", "lea")), delivery="at-least", least=3)
    for name in ("ana", "ana", "lea"):
        play.answer(name)
        assert play.result == ""
    play.answer("ben")
    assert play.result == "done"


def test_at_least_three_of_two_can_never_be_met_and_the_sender_hears_it_at_once():
    play = Play(done_when="answered")
    play.ask(peer("ana"), peer("ben"), delivery="at-least", least=3)
    assert play.told() == ["comerror"]
    assert play.queued() == [("ana", A), ("ben", A)], "everybody is tried all the same"
    play.answer("ana")
    play.answer("ben")
    assert play.result == "failed"


def test_without_anybody_to_escalate_to_a_missed_deadline_closes_as_timed_out():
    play = Play(done_when="answered")
    play.ask(peer("ana"), peer("ben"), answer_within=60_000)
    play.sent("ana")
    play.after(60_000)
    assert play.result == "timed_out"
    assert play.notes("timed_out") == ["ana", "ben"]
    assert play.told() == ["timeout"]


def test_a_late_answer_is_noted_and_does_not_reopen():
    play = Play(done_when="answered")
    play.ask(peer("ana"), answer_within=60_000)
    play.after(60_000)
    play.answer("ana", "sorry")
    assert play.result == "timed_out"
    assert play.notes("answered") == ["ana"]


def test_an_answer_from_a_stranger_is_none():
    play = Play(done_when="answered")
    play.ask(peer("ana"))
    assert play.answer("eve", "hello") == []


def test_an_answer_on_one_medium_stops_attempts_on_the_others():
    play = Play(done_when="answered")
    play.ask(peer("ana", A, B), peer("ben"), delivery="to-all-members")
    play.failed(address=A, retry=True)
    play.answer("ana")
    assert play.due() is None
    assert play.after(60_000) == []


def test_what_waited_for_its_medium_when_it_was_decided_is_given_up_and_said_so():
    play = Play(done_when="answered")
    play.ask(peer("ana"), peer("ben"))
    play.answer("ana")
    steps = play.sent("ben", state="dropped")
    assert [(step.state, step.peer, step.address) for step in steps] == [("closed", "ben", A)]
    assert play.sent("ben") == [], "it was not sent, so nothing more can come of it"


# --- escalation ---


def test_a_missed_deadline_asks_the_next_with_a_time_of_their_own():
    play = Play(done_when="answered", escalate=[NextReceiver("collective:leads", 300_000)])
    play.ask(peer("ana"), answer_within=60_000)
    steps = play.after(60_000)
    assert NextReceiver("collective:leads", 300_000) in steps
    play.ask(peer("lea"), receiver="collective:leads", answer_within=300_000)
    assert play.queued() == [("ana", A), ("lea", A)]
    assert play.due() == play.now + 300_000
    play.after(300_000)
    assert play.result == "timed_out"
    assert play.notes("timed_out") == ["ana", "lea"]


def test_an_answer_of_the_first_ones_after_escalation_still_counts():
    play = Play(done_when="answered", escalate=[LEADS])
    play.ask(peer("ana"), answer_within=60_000)
    play.after(60_000)
    play.ask(peer("lea"), receiver="collective:leads")
    play.answer("ana")
    assert play.result == "done"


def test_when_nobody_can_be_reached_the_next_is_asked_without_waiting():
    play = Play(done_when="answered", escalate=[LEADS])
    play.ask(peer("ana"), peer("ben"), answer_within=60_000)
    play.failed("ana")
    assert NextReceiver("collective:leads", 60_000) in play.failed("ben")


def test_too_few_answers_by_the_deadline_ask_the_next_and_all_of_them_count_for_their_own():
    play = Play(done_when="answered", escalate=[LEADS])
    play.ask(*map(peer, ("ana", "ben", "eva")), delivery="at-least", least=2, answer_within=60_000)
    play.answer("ana")
    assert NextReceiver("collective:leads", 60_000) in play.after(60_000)
    play.ask(peer("lea"), receiver="collective:leads")
    play.answer("ben")
    assert play.result == "done"


def test_an_empty_collective_is_passed_over_in_the_chain():
    chain = [NextReceiver("collective:b"), NextReceiver("collective:c")]
    play = Play(done_when="answered", escalate=chain)
    play.ask()
    assert NextReceiver("collective:b") in play.steps
    assert NextReceiver("collective:c") in play.ask(receiver="collective:b")
    play.ask(peer("lea"), receiver="collective:c")
    assert play.queued() == [("lea", A)]


def test_who_was_asked_before_is_not_asked_again():
    play = Play(done_when="answered", escalate=[LEADS])
    play.ask(peer("ana"), answer_within=1_000)
    play.after(1_000)
    play.ask(peer("ana"), peer("lea"), receiver="collective:leads")
    assert play.queued() == [("ana", A), ("lea", A)]


# --- repeating ---


def test_a_message_is_repeated_to_who_took_it_until_somebody_answers():
    play = Play(done_when="answered", repeat_every=120_000)
    play.ask(peer("ana", A, B), peer("ben"))
    play.sent("ana", A)
    play.after(120_000)
    assert play.queued()[3:] == [("ana", A)], "what waits or failed is not doubled"
    repeats = [step.repeat for step in play.steps if isinstance(step, QueueDelivery)]
    assert repeats == [0, 0, 0, 1]
    play.sent("ana", A, attempt=2)
    play.after(120_000)
    assert play.queued()[4:] == [("ana", A)]
    play.answer("ben")
    assert play.result == "done"
    play.after(1_000_000)
    assert len(play.queued()) == 5


def test_a_message_is_repeated_at_most_as_often_as_was_said():
    play = Play(done_when="answered", repeat_every=10_000, repeat_most=2)
    play.ask(peer("ana"))
    for attempt in (1, 2, 3):
        play.sent(attempt=attempt)
        play.after(10_000)
    assert len(play.queued()) == 3
    assert play.due() is None


def test_a_repetition_that_fails_is_tried_again_like_the_first():
    play = Play(done_when="answered", repeat_every=100_000)
    play.ask(peer("ana"))
    play.sent()
    play.after(100_000)
    play.failed(attempt=2, retry=True)
    play.after(1_000)
    play.sent(attempt=3)
    assert len(play.queued()) == 3


def test_nobody_is_reminded_once_the_next_were_asked():
    play = Play(done_when="answered", repeat_every=50_000, escalate=[LEADS])
    play.ask(peer("ana"), answer_within=60_000)
    play.sent()
    play.after(50_000)
    play.sent(attempt=2)
    play.after(10_000)
    play.ask(peer("lea"), receiver="collective:leads")
    play.after(50_000)
    assert [name for name, _ in play.queued()] == ["ana", "ana", "lea"]


def test_a_reminder_waits_for_the_end_of_quiet_hours():
    play = Play(
        done_when="answered",
        repeat_every=10_000,
        verdicts={
            "ana": lambda now: AllowedDelivery() if now < NOW + 5_000 else Hold(NOW + 90_000)
        },
    )
    play.ask(peer("ana"))
    play.sent()
    play.after(10_000)
    assert len(play.queued()) == 1
    assert play.due() == NOW + 90_000


# --- privacy ---


def quiet(now):
    return Hold(NOW + 3_600_000) if now < NOW + 3_600_000 else AllowedDelivery()


def test_a_held_member_counts_as_pending_and_is_asked_when_the_hold_ends():
    play = Play(done_when="answered", verdicts={"ana": quiet})
    play.ask(peer("ana"), answer_within=60_000)
    assert play.queued() == []
    assert play.result == ""
    assert play.notes("held") == ["ana"]
    play.after(play.due() - play.now)
    assert play.queued() == [("ana", A)]
    assert play.due() == play.now + 60_000, "the deadline starts with the asking"


def test_a_refusal_fails_the_peer_and_tells_the_sender():
    play = Play(verdicts={"ana": lambda now: Refuse("not at night")})
    play.ask(peer("ana"))
    assert play.notes("refused") == ["ana"]
    assert (play.result, play.told()) == ("failed", ["comerror"])


def test_a_hold_is_given_up_when_another_member_decided_it():
    play = Play(verdicts={"ana": quiet})
    play.ask(peer("ana"), peer("ben"))
    play.sent("ben")
    assert play.result == "done"
    assert play.notes("closed") == ["ana", ""]
    play.after(86_400_000)
    assert play.queued() == [("ben", A)]


def test_a_message_whose_time_is_over_is_not_even_begun():
    play = Play(expires=NOW)
    play.ask(peer("ana"))
    assert (play.result, play.told(), play.queued()) == ("timed_out", ["timeout"], [])
    assert [step.result for step in play.steps if isinstance(step, LedgerNote)] == ["timed_out"]


def test_the_sender_is_notified_why_nobody_could_be_reached():
    play = Play(verdicts={"ben": lambda now: Refuse("not from adverts")})
    play.ask(peer("ana"), peer("ben"), delivery="to-all-members")
    play.failed("ana")
    (told,) = [step.reason for step in play.steps if isinstance(step, NotifySender)]
    assert told == "not everybody of collective:guards could be reached: ben: not from adverts"
    play = Play()
    play.ask(peer("ana", A, B, delivery="preferred"), receiver="peer:ana")
    play.failed(address=A)
    play.failed(address=B)
    (told,) = [step.reason for step in play.steps if isinstance(step, NotifySender)]
    assert told == "peer:ana could not be reached: no"
