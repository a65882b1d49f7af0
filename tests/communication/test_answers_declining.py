"""Who says that they cannot is asked no more, but has not taken care of it."""

from __future__ import annotations

from rapport.communication.answers import Declines
from rapport.communication.delivery_state import Answer, LedgerNote, NextReceiver
from support.processes.delivery_play import Play, member


def reasons(play, state):
    return [
        step.reason for step in play.steps if isinstance(step, LedgerNote) and step.state == state
    ]


def test_a_no_does_not_satisfy_and_the_others_go_on():
    play = Play(done_when="answered")
    play.ask(member("ana"), member("ben"))
    play.hear(Answer("ana", "no", declined=True))
    assert play.result == ""
    play.answer("ben")
    assert play.result == "done"


def test_when_everybody_declined_the_next_is_asked_at_once():
    leads = {"collective:leads": ("to-any", 1, [member("lea")])}
    chain = [NextReceiver("collective:leads")]
    play = Play(done_when="answered", escalate=chain, next_ones=leads)
    play.ask(member("ana"), answer_within=60_000)
    play.hear(Answer("ana", "no", declined=True))
    assert ("lea", "mail:x@example.org") in play.queued()
    assert "1 of collective:guards declined; asking collective:leads" in reasons(play, "escalated")


def test_a_later_yes_counts_while_the_message_is_open():
    play = Play(done_when="answered")
    play.ask(member("ana"), member("ben"), delivery="at-least", least=1)
    play.hear(Answer("ana", "no", declined=True))
    play.answer("ana")
    assert play.result == "done"


def test_who_declined_is_not_called_late():
    play = Play(done_when="answered")
    play.ask(member("ana"), member("ben"), answer_within=1_000)
    play.sent("ana")
    play.sent("ben")
    play.hear(Answer("ana", "no", declined=True))
    play.after(2_000)
    assert play.notes("timed_out") == ["ben"]


def test_escalation_says_how_many_answered_in_time():
    leads = {"collective:leads": ("to-any", 1, [member("lea")])}
    chain = [NextReceiver("collective:leads")]
    play = Play(done_when="answered", escalate=chain, next_ones=leads)
    people = [member(name) for name in ("ana", "ben", "eva", "lou")]
    play.ask(*people, delivery="at-least", least=3, answer_within=1_000)
    play.answer("ana")
    play.answer("ben")
    play.after(2_000)
    assert reasons(play, "escalated") == ["2 of 3 answered in time; asking collective:leads"]


def test_a_site_may_have_its_own_words():
    assert Declines(("Njet",)).says("njet!")
    assert not Declines(("Njet",)).says("no")
    assert Declines(()).says("", "DECLINE")
