"""Circuit breakers: open after failures, one probe when the pause is over, closed by a success."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rapport.communication.adapters.base import Confirmed, Failed, Sent
from rapport.communication.adapters.dispatch import (
    FIRST_PAUSE_MS,
    LONGEST_PAUSE_MS,
    OPEN_AFTER,
    TIMEOUT_COUNTS,
    Breakers,
)
from rapport.testing.suites.adapter import make_delivery

NOW = 1_772_452_800_000
DOWN = Failed("connection refused", retry=True)


def to(peer, address="webhook:https://example.org/secret"):
    return make_delivery(address, peer=peer)


def test_three_failures_in_a_row_open_it_and_a_success_between_them_does_not():
    breakers = Breakers()
    for outcome in (DOWN, DOWN, Sent(), DOWN, DOWN):
        breakers.note(to("ana"), outcome, NOW, timed_out=False)
        assert breakers.refusal(to("ana"), NOW) is None
    breakers.note(to("ana"), DOWN, NOW, timed_out=False)
    refusal = breakers.refusal(to("ana"), NOW)
    assert (refusal.retry, refusal.unavailable) == (True, True)
    assert "connection refused" in refusal.reason
    assert breakers.refusal(to("ben"), NOW) is None
    assert breakers.refusal(to("ana", "mail:ana@example.org"), NOW) is None


def test_two_timeouts_open_it():
    breakers = Breakers()
    breakers.note(to("ana"), DOWN, NOW, timed_out=True)
    assert breakers.refusal(to("ana"), NOW) is None
    breakers.note(to("ana"), DOWN, NOW, timed_out=True)
    assert breakers.refusal(to("ana"), NOW) is not None
    (status,) = breakers.status(NOW)
    assert (status.peer, status.state, status.probe_at) == ("ana", "open", NOW + FIRST_PAUSE_MS)
    assert "secret" not in status.address


def test_what_a_medium_knows_opens_nothing():
    breakers = Breakers()
    for _ in range(9):
        breakers.note(to("ana"), Failed("no page", True, unavailable=True), NOW, timed_out=False)
        breakers.note(to("ana"), Failed("no such box", retry=False), NOW, timed_out=False)
    assert (breakers.refusal(to("ana"), NOW), list(breakers.suspects)) == (None, [])


def test_a_clock_that_was_set_back_keeps_nobody_alone_for_long():
    breakers = Breakers()
    for _ in range(2):
        breakers.note(to("ana"), DOWN, NOW, timed_out=True)
    assert breakers.refusal(to("ana"), NOW - 86_400_000) is None


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("time"), st.integers(0, 2 * LONGEST_PAUSE_MS)),
            st.tuples(st.just("call"), st.sampled_from(["sent", "failed", "timeout", "lost"])),
        ),
        max_size=60,
    )
)
def test_it_is_open_exactly_for_its_pauses_and_lets_one_probe_through_after_each(happens):
    """Judged by the calls that were let through: a call is let through while fewer than three have
    failed in a row, and then only when the pause since the last one that was is over.
    """
    breakers, now = Breakers(), NOW
    failures, pause, last_ms = 0, 0, 0
    for what, how in happens:
        if what == "time":
            now += how
            continue
        is_open = failures >= OPEN_AFTER and now < last_ms + pause
        refused = breakers.refusal(to("ana"), now)
        assert (refused is not None) == is_open
        states = [one.state for one in breakers.status(now)]
        assert states in (["open"], ["half-open"]) if pause else states == []
        if is_open:
            continue
        if failures >= OPEN_AFTER:
            last_ms = now
        if how == "lost":
            continue  # the process goes on, but nobody hears of the call
        outcome = Confirmed() if how == "sent" else DOWN
        breakers.note(to("ana"), outcome, now, timed_out=how == "timeout")
        if how == "sent":
            failures, pause = 0, 0
            continue
        failures += TIMEOUT_COUNTS if how == "timeout" else 1
        if failures >= OPEN_AFTER:
            pause, last_ms = min(pause * 2 or FIRST_PAUSE_MS, LONGEST_PAUSE_MS), now
    assert list(breakers.suspects) == (["ana"] if failures else [])
