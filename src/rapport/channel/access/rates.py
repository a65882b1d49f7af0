"""How fast an identity may go: token buckets as pure state machines, time is an argument. [CH-15]

A bucket may run into debt: a batch larger than what is left passes whole and the next one waits
until the debt is paid. So no batch is too large to ever pass, and on average the rate holds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from rapport.core.errors import TooFast

FAILURES_AT_ONCE = 20
FAILURES_PER_SECOND = 1
"""Failed attempts that an address is told about one by one; beyond them it is told to wait."""
_MOST_ADDRESSES = 10_000


class Bucket(msgspec.Struct):
    """What is left of an allowance at a time, in thousandths of an event."""

    level: int
    at_ms: int


def full_bucket(burst: int, now_ms: int) -> Bucket:
    """A bucket of which nothing was taken yet."""
    return Bucket(burst * 1_000, now_ms)


def take(bucket: Bucket, count: int, *, rate: int, burst: int, now_ms: int) -> int:
    """Takes `count` and returns 0, or takes nothing and returns the milliseconds to wait.

    A clock that went back pays nothing in and takes nothing out.
    """
    elapsed_ms = max(now_ms - bucket.at_ms, 0)
    bucket.level = min(bucket.level + elapsed_ms * rate, burst * 1_000)
    bucket.at_ms = now_ms
    if bucket.level <= 0:
        return -bucket.level // rate + 1
    bucket.level -= count * 1_000
    return 0


class Rates:
    """The allowances of the identities that have a `rate`; all others go as fast as they like."""

    def __init__(self, rates: Mapping[str, int]) -> None:
        self._rates = dict(rates)
        self._buckets: dict[str, Bucket] = {}

    def charge(self, identity: str, events: int, now_ms: int) -> None:
        """Counts events against the identity's rate; raises TooFast with the time to wait."""
        rate = self._rates.get(identity)
        if rate is None:
            return
        bucket = self._buckets.setdefault(identity, full_bucket(rate, now_ms))
        wait_ms = take(bucket, events, rate=rate, burst=rate, now_ms=now_ms)
        if wait_ms:
            raise TooFast(
                f"{identity!r} may send {rate} events a second",
                retry_after_seconds=wait_ms / 1_000,
                hint="wait as long as Retry-After says, or send fewer",
            )


class FailedAttempts:
    """Failures to show who one is, per address; bounded, the longest unseen is forgotten first."""

    def __init__(self, most_addresses: int = _MOST_ADDRESSES) -> None:
        self._most = most_addresses
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def note(self, address: str, now_ms: int) -> None:
        """Counts a failure; raises TooFast when the address fails too often."""
        bucket = self._buckets.setdefault(address, full_bucket(FAILURES_AT_ONCE, now_ms))
        self._buckets.move_to_end(address)
        while len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        wait_ms = take(bucket, 1, rate=FAILURES_PER_SECOND, burst=FAILURES_AT_ONCE, now_ms=now_ms)
        if wait_ms:
            raise TooFast(
                "too many attempts without a valid token",
                code="access.too_many_failures",
                retry_after_seconds=wait_ms / 1_000,
                hint="ask who runs the node for a token",
            )
