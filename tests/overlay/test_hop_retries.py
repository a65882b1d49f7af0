"""Hops under any loss: acted on at most once, failed after three tries. [CX-5]"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from rapport.overlay.hops import HopFailed, HopRetries, HopSettings, ResendHop
from rapport.transport.base import Now

THERE, HERE = ("there", 1), ("here", 1)

At = Callable[[float], Now]


def test_three_tries_with_doubling_waits_then_it_failed(at: At) -> None:
    hops = HopRetries()
    hops.sent("id", THERE, "payload", at(0), timeout_ms=10)
    assert hops.due(at(9.9)) == []
    assert hops.next_due() == 10
    assert hops.due(at(10)) == [ResendHop("id", THERE, "payload")]
    assert hops.next_due() == 30
    assert hops.due(at(30)) == [ResendHop("id", THERE, "payload")]
    assert hops.due(at(69.9)) == []
    assert hops.due(at(70)) == [HopFailed("id", THERE, "payload")]
    assert hops.next_due() is None
    assert len(hops) == 0


def test_only_who_was_asked_can_acknowledge(at: At) -> None:
    hops = HopRetries()
    hops.sent("id", THERE, "payload", at(0))
    assert not hops.acknowledged("id", HERE)
    assert not hops.acknowledged("other", THERE)
    assert hops.acknowledged("id", THERE)
    assert not hops.acknowledged("id", THERE)
    assert hops.next_due() is None
    assert hops.due(at(1e6)) == []


def test_an_id_sent_to_another_waits_for_that_one_only(at: At) -> None:
    hops = HopRetries()
    hops.sent("id", THERE, "a", at(0), timeout_ms=10)
    hops.sent("id", HERE, "b", at(5), timeout_ms=10)
    assert hops.due(at(10)) == []
    assert hops.due(at(15)) == [ResendHop("id", HERE, "b")]


def test_what_waits_for_one_that_is_gone_fails_at_once(at: At) -> None:
    hops = HopRetries()
    hops.sent(1, THERE, "a", at(0))
    hops.sent(2, HERE, "b", at(0))
    assert hops.forget(THERE) == [HopFailed(1, THERE, "a")]
    assert hops.waits(2)
    assert not hops.waits(1)


def test_acknowledged_ones_leave_nothing_behind(at: At) -> None:
    """A long-lived machine with long time-outs does not pile up what is done."""
    hops = HopRetries()
    for number in range(10_000):
        hops.sent(number, THERE, "payload", at(0), timeout_ms=1e9)
        assert hops.acknowledged(number, THERE)
    assert len(hops._heap) <= 65


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=6, max_size=6),
    st.integers(1, 4),
)
def test_any_loss_delivers_at_most_once_and_tells_the_sender(
    fate: list[tuple[bool, bool, bool]], tries: int
) -> None:
    """Each try: is it lost, doubled, is its acknowledgement lost?"""
    sender, receiver = HopRetries(HopSettings(tries=tries)), HopRetries()
    acted = sendings = 0
    acknowledged = False
    time = 0.0

    def send() -> None:
        nonlocal acted, sendings, acknowledged
        lost, doubled, acknowledgement_lost = fate[sendings]
        sendings += 1
        for _ in range(0 if lost else 1 + doubled):
            acted += receiver.arrived("id", HERE, Now(0, time))
            if not acknowledgement_lost:
                acknowledged = sender.acknowledged("id", THERE) or acknowledged

    sender.sent("id", THERE, "payload", Now(0, time), timeout_ms=10)
    send()
    failed = False
    while (due_ms := sender.next_due()) is not None:
        time = due_ms
        for late in sender.due(Now(0, time)):
            failed = isinstance(late, HopFailed)
            if not failed:
                send()
    tried = fate[:sendings]
    assert acted == any(not lost for lost, _, _ in tried)
    assert acknowledged == any(not lost and not back for lost, _, back in tried)
    assert failed == (not acknowledged)
    assert sendings == tries or acknowledged


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20)), max_size=60))
def test_many_at_once_keep_their_own_time(sent: list[tuple[int, int]]) -> None:
    """Nothing is early, nothing that is due is left waiting, whatever the order."""
    hops, due = HopRetries(), dict[int, float]()
    time = 0
    for number, (passed, timeout_ms) in enumerate(sent):
        time += passed
        now = Now(0, float(time))
        for late in hops.due(now):
            assert isinstance(late.id, int)
            assert due.pop(late.id) <= time
        assert all(at > time for at in due.values())
        if number not in due and not hops.waits(number):
            hops.sent(number, THERE, "p", now, timeout_ms=1_000 + timeout_ms)
            due[number] = time + 1_000 + timeout_ms
        next_ms = hops.next_due()
        assert next_ms == min(due.values())
