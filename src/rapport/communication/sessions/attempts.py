"""How often somebody may try to log in: pauses that double, per peer and per origin; they outlive a
restart. [CO-11]

Every attempt is counted before its password is looked at, and forgiven when it was right: so many
at once gain nothing. An attempt within a pause is not looked at and does not lengthen it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec

from rapport.core.errors import TooFast
from rapport.core.ids import content_id
from rapport.store.base import Change, Delete, Put, RecordStore

_ATTEMPTS = "login.attempts"
_PAGE_SIZE = 500


class AttemptRule(msgspec.Struct, frozen=True, kw_only=True):
    """How fast pauses grow."""

    free: int
    """Failures without a pause: people mistype."""
    first_ms: int = 1_000
    longest_ms: int
    forget_ms: int = 86_400_000
    """After so long without a failure all is forgotten."""

    def pause_ms(self, failures: int) -> int:
        """The pause after that many failures.

        >>> [OF_PEER.pause_ms(n) for n in (4, 5, 6, 7, 100)]
        [0, 1000, 2000, 4000, 60000]
        """
        if failures < self.free:
            return 0
        return min(self.first_ms << min(failures - self.free, 30), self.longest_ms)


OF_PEER = AttemptRule(free=5, longest_ms=60_000)
"""Short: whoever fails on purpose can keep the peer itself out for a minute, not for a day, and
still has no more than 1,440 guesses a day.
"""
OF_ORIGIN = AttemptRule(free=20, longest_ms=300_000)
"""One address that tries many peers; people behind one proxy share it."""


class FailureCount(msgspec.Struct, frozen=True):
    """Failures so far, and when the last one was (ms UTC)."""

    failures: int = 0
    last_ms: int = 0

    def wait_ms(self, rule: AttemptRule, now_ms: int) -> int:
        """How long until the next attempt is looked at; 0 = now. Never longer than the pause, also
        after the clock was set back.
        """
        pause_ms = rule.pause_ms(self.failures)
        return max(min(self.last_ms + pause_ms - now_ms, pause_ms), 0)

    def not_after(self, now_ms: int) -> FailureCount:
        """The same with no failure in the future: after the clock was set back the pause counts
        from now, not from when the clock is there again.
        """
        return self if self.last_ms <= now_ms else FailureCount(self.failures, now_ms)

    def failed(self, rule: AttemptRule, now_ms: int) -> FailureCount:
        """One failure more; the first one when all before are long ago."""
        is_old = now_ms - self.last_ms >= rule.forget_ms
        return FailureCount(1 if is_old else self.failures + 1, now_ms)

    def forgiven(self) -> FailureCount:
        """One failure less."""
        return FailureCount(max(self.failures - 1, 0), self.last_ms)


class LoginAttempts:
    """Tallies in the record store. Blocks on the disk: called from a worker thread."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records
        self._guard = threading.Lock()

    def begin(self, peer: str, origin: str, now_ms: int) -> None:
        """Counts an attempt as failed; raises TooFast while it has to wait. An empty origin has no
        limit of its own.
        """
        with self._guard:
            kept = self._tallies(peer, origin)
            tallies = [(key, rule, tally.not_after(now_ms)) for key, rule, tally in kept]
            wait_ms = max(tally.wait_ms(rule, now_ms) for _key, rule, tally in tallies)
            if wait_ms:
                if tallies != kept:
                    self._write([(key, tally) for key, _rule, tally in tallies])
                raise TooFast(
                    "too many attempts to log in",
                    code="auth.too_fast",
                    retry_after_seconds=wait_ms / 1_000,
                    hint="wait as long as Retry-After says",
                )
            self._write([(key, tally.failed(rule, now_ms)) for key, rule, tally in tallies])

    def forgive(self, peer: str, origin: str, *, wholly: bool) -> None:
        """The attempt was no failure; `wholly`: it was right, so the peer's failures are over."""
        with self._guard:
            tallies = [(key, tally.forgiven()) for key, _rule, tally in self._tallies(peer, origin)]
            if wholly:
                tallies[0] = (tallies[0][0], FailureCount())
            self._write(tallies)

    def forget_old(self, now_ms: int) -> None:
        """Lets go of tallies that count no more; reads all of them."""
        with self._guard:
            longest_ms = max(OF_PEER.forget_ms, OF_ORIGIN.forget_ms)
            old = [key for key, tally in self._all() if now_ms - tally.last_ms >= longest_ms]
            if old:
                self._records.apply([Delete(_ATTEMPTS, key) for key in old])

    def _tallies(self, peer: str, origin: str) -> list[tuple[str, AttemptRule, FailureCount]]:
        # Digests: names are what strangers wrote, of any length.
        named = [(f"peer/{content_id(peer)}", OF_PEER)]
        if origin:
            named.append((f"origin/{content_id(origin)}", OF_ORIGIN))
        return [(key, rule, self._read(key)) for key, rule in named]

    def _read(self, key: str) -> FailureCount:
        kept = self._records.get(_ATTEMPTS, key)
        return msgspec.msgpack.decode(kept, type=FailureCount) if kept else FailureCount()

    def _write(self, tallies: list[tuple[str, FailureCount]]) -> None:
        changes: list[Change] = [
            Put(_ATTEMPTS, key, msgspec.msgpack.encode(tally))
            if tally.failures
            else Delete(_ATTEMPTS, key)
            for key, tally in tallies
        ]
        self._records.apply(changes)

    def _all(self) -> Iterator[tuple[str, FailureCount]]:
        after = ""
        while page := self._records.find(_ATTEMPTS, after=after, limit=_PAGE_SIZE):
            for after, value in page:
                yield after, msgspec.msgpack.decode(value, type=FailureCount)
