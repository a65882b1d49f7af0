"""Leases of channels in memory."""

from __future__ import annotations

import pytest

from rapport.channel.requests.request import LONGEST_LEASE_MINUTES
from rapport.channel.requests.tokens import SessionLeases, granted_minutes
from rapport.core.errors import ChannelUnavailable, LeaseExpired

MINUTE = 60_000


def test_a_lease_lasts_as_long_as_granted() -> None:
    leases = SessionLeases()
    assert leases.grant(b"a", 5, 1_000) == 5
    leases.check(b"a", 1_000 + 5 * MINUTE - 1)
    with pytest.raises(LeaseExpired) as caught:
        leases.check(b"a", 1_000 + 5 * MINUTE)
    assert caught.value.code == "channel.lease_expired"
    assert len(leases) == 0


def test_a_renewed_lease_lasts_from_then_on() -> None:
    leases = SessionLeases()
    leases.grant(b"a", 5, 0)
    leases.grant(b"a", 5, 4 * MINUTE)
    leases.check(b"a", 8 * MINUTE)
    leases.grant(b"a", 1, 8 * MINUTE)
    with pytest.raises(LeaseExpired):
        leases.check(b"a", 9 * MINUTE)


def test_an_ended_session_is_over() -> None:
    leases = SessionLeases()
    leases.grant(b"a", 5, 0)
    leases.end(b"a")
    leases.end(b"never begun")
    with pytest.raises(LeaseExpired):
        leases.check(b"a", 1)


def test_no_lease_is_endless() -> None:
    assert granted_minutes(10**9) == LONGEST_LEASE_MINUTES
    assert SessionLeases().grant(b"a", 10**9, 0) == LONGEST_LEASE_MINUTES


def test_sessions_are_bounded_and_room_comes_back() -> None:
    leases = SessionLeases(most=3)
    for name in (b"a", b"b", b"c"):
        leases.grant(name, 1, 0)
    with pytest.raises(ChannelUnavailable):
        leases.grant(b"d", 1, 30_000)
    leases.grant(b"a", 1, 30_000)
    leases.grant(b"d", 1, MINUTE)
    assert len(leases) == 2


def test_a_session_that_is_renewed_for_days_costs_no_more_than_another() -> None:
    leases = SessionLeases()
    leases.grant(b"other", LONGEST_LEASE_MINUTES, 0)
    for second in range(10_000):
        leases.grant(b"stream", LONGEST_LEASE_MINUTES, second)
        leases.grant(b"%d" % second, LONGEST_LEASE_MINUTES, second)
        leases.end(b"%d" % second)
    assert len(leases) == 2
    assert len(leases._due) < 200
    leases.check(b"stream", LONGEST_LEASE_MINUTES * MINUTE)
    with pytest.raises(LeaseExpired):
        leases.check(b"other", LONGEST_LEASE_MINUTES * MINUTE)
