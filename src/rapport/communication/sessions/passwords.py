"""Passwords of peers, and the limits on attempts to log in. [CO-11]

Passwords are argon2id hashes in the record store, computed beside the event loop, a few at a time.
Pauses between failed attempts double, per peer and per origin. This file is the only user of
argon2.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import unicodedata
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated

import msgspec
from argon2 import PasswordHasher, Type
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError
from msgspec import Meta

from rapport.core.errors import Corrupt, InvalidInput, TooFast, Unavailable
from rapport.core.event import content_id
from rapport.core.message import Identifier
from rapport.kernel.tasks import in_thread, run_blocking
from rapport.store.base import (
    Change,
    Delete,
    Guard,
    GuardFailed,
    Put,
    RecordStore,
    all_records,
    as_guarded,
)

_ATTEMPTS = "login.attempts"


class AttemptRule(msgspec.Struct, frozen=True, kw_only=True):
    """How fast pauses between attempts grow."""

    free: int
    """Failures without a pause: people mistype."""
    first_ms: int = 1_000
    longest_ms: int
    forget_ms: int = 86_400_000
    """After so long without a failure the count starts again."""

    def pause_ms(self, failures: int) -> int:
        """The pause after that many failures.

        >>> [OF_PEER.pause_ms(n) for n in (4, 5, 6, 7, 100)]
        [0, 1000, 2000, 4000, 60000]
        """
        if failures < self.free:
            return 0
        return min(self.first_ms << min(failures - self.free, 30), self.longest_ms)


OF_PEER = AttemptRule(free=5, longest_ms=60_000)
"""Short: somebody who fails on purpose can lock the peer out for a minute, not for a day, and still
has no more than 1,440 guesses a day.
"""
OF_ORIGIN = AttemptRule(free=20, longest_ms=300_000)
"""For one address that tries many peers; people behind one proxy share it."""


class FailureCount(msgspec.Struct, frozen=True):
    """Failures so far, and the time of the last (ms UTC)."""

    failures: int = 0
    last_ms: int = 0

    def wait_ms(self, rule: AttemptRule, now_ms: int) -> int:
        """How long until the next attempt is checked; 0 = now. Never longer than the pause, also
        after the clock was set back.
        """
        pause_ms = rule.pause_ms(self.failures)
        return max(min(self.last_ms + pause_ms - now_ms, pause_ms), 0)

    def not_after(self, now_ms: int) -> FailureCount:
        """The count with no failure in the future: after the clock was set back the pause counts
        from now.
        """
        return self if self.last_ms <= now_ms else FailureCount(self.failures, now_ms)

    def failed(self, rule: AttemptRule, now_ms: int) -> FailureCount:
        """One failure more; the first one if the last is long ago."""
        is_old = now_ms - self.last_ms >= rule.forget_ms
        return FailureCount(1 if is_old else self.failures + 1, now_ms)

    def forgiven(self) -> FailureCount:
        return FailureCount(max(self.failures - 1, 0), self.last_ms)


class LoginAttempts:
    """Failed attempts per peer and per origin in the record store; they outlive a restart. Every
    attempt is counted before its password is checked and forgiven if it was right, so many attempts
    at once gain nothing. Blocks.
    """

    def __init__(self, records: RecordStore) -> None:
        self._records = records
        self._guard = threading.Lock()

    def begin(self, peer: str, origin: str, now_ms: int) -> None:
        """Counts an attempt as failed; raises TooFast within a pause, which it does not lengthen.
        An empty origin has no limit of its own.
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
        """The attempt was no failure; `wholly`: the password was right, so the peer's failures are
        over.
        """
        with self._guard:
            tallies = [(key, tally.forgiven()) for key, _rule, tally in self._tallies(peer, origin)]
            if wholly:
                tallies[0] = (tallies[0][0], FailureCount())
            self._write(tallies)

    def forget_old(self, now_ms: int) -> None:
        """Deletes counts that are over; reads all of them."""
        with self._guard:
            longest_ms = max(OF_PEER.forget_ms, OF_ORIGIN.forget_ms)
            old = [
                Delete(_ATTEMPTS, key)
                for key, kept in all_records(self._records, _ATTEMPTS)
                if now_ms - _count(kept).last_ms >= longest_ms
            ]
            if old:
                self._records.apply(old)

    def _tallies(self, peer: str, origin: str) -> list[tuple[str, AttemptRule, FailureCount]]:
        # Digests: names are what strangers wrote, of any length.
        named = [(f"peer/{content_id(peer)}", OF_PEER)]
        if origin:
            named.append((f"origin/{content_id(origin)}", OF_ORIGIN))
        return [(key, rule, _count(self._records.get(_ATTEMPTS, key))) for key, rule in named]

    def _write(self, tallies: list[tuple[str, FailureCount]]) -> None:
        changes: list[Change] = [
            Put(_ATTEMPTS, key, msgspec.msgpack.encode(tally))
            if tally.failures
            else Delete(_ATTEMPTS, key)
            for key, tally in tallies
        ]
        self._records.apply(changes)


def _count(kept: bytes | None) -> FailureCount:
    return msgspec.msgpack.decode(kept, type=FailureCount) if kept else FailureCount()


class ConcurrencyLimit:
    """At most `at_once` run and `most_waiting` wait, in order; more are refused at once."""

    def __init__(self, at_once: int, most_waiting: int) -> None:
        self._turns, self._most = asyncio.Semaphore(at_once), at_once + most_waiting
        self._here = 0

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """A slot for the duration of the block; raises Unavailable when too many wait already."""
        if self._here >= self._most:
            raise Unavailable("too many logins are checked at the moment", code="auth.busy")
        self._here += 1
        try:
            async with self._turns:
                yield
        finally:
            self._here -= 1


_PASSWORDS = "passwords"
LEAST_CHARACTERS = 8
MOST_CHARACTERS = 1_024
_AT_ONCE = 2
"""Hashes at once: each holds `memory_kib`, and more would only wait for the processor."""
_MOST_WAITING = 64
"""More checks are refused at once: a flood of logins must not exhaust the memory."""


class PasswordSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one hash. Below the least values a stolen hash is guessed too fast (OWASP)."""

    memory_kib: Annotated[int, Meta(ge=19_456, le=4_194_304)] = 65_536
    """Memory that a guess needs, and that one login needs here."""
    passes: Annotated[int, Meta(ge=2, le=100)] = 3
    """Time of one hash, in proportion."""
    lanes: Annotated[int, Meta(ge=1, le=64)] = 4
    """Threads that one hash may use."""


class Passwords:
    """The passwords of peers as argon2id hashes. The defaults are those that RFC 9106 recommends
    where memory is limited; a password hashed with other parameters is hashed again at its next
    use.
    """

    def __init__(self, records: RecordStore, settings: PasswordSettings | None = None) -> None:
        self._records = records
        chosen = settings or PasswordSettings()
        self._hasher = PasswordHasher(
            time_cost=chosen.passes,
            memory_cost=chosen.memory_kib,
            parallelism=chosen.lanes,
            type=Type.ID,
        )
        self._nobody = ""
        self._turns = ConcurrencyLimit(_AT_ONCE, _MOST_WAITING)

    async def set(self, peer: str, password: str) -> None:
        """Sets the peer's password, durably. Raises InvalidInput for a bad length. The caller ends
        the sessions opened with the old one.
        """
        check_password(peer, password)
        await self._hashing(partial(self._set, peer, _normal(password)))

    @in_thread
    def remove(self, peer: str) -> bool:
        """Removes the peer's password; False when it had none."""
        if self._records.get(_PASSWORDS, _key(peer)) is None:
            return False
        self._records.delete(_PASSWORDS, _key(peer))
        return True

    @in_thread
    def has(self, peer: str) -> bool:
        return self._records.get(_PASSWORDS, _key(peer)) is not None

    @in_thread
    def peers(self) -> list[str]:
        """The peers with a password, sorted; reads all of them."""
        named = (_read(kept)[1] for _key, kept in all_records(self._records, _PASSWORDS))
        return sorted(filter(None, named))

    async def check(self, peer: Identifier, password: str) -> bool:
        """Whether this is the peer's password; takes as long for a peer without one. Raises
        Unavailable when too many checks wait, Corrupt for a broken record.
        """
        if len(password) > MOST_CHARACTERS:
            return False
        return await self._hashing(partial(self._check, peer.name, _normal(password)))

    async def _hashing(self, work: Callable[[], bool]) -> bool:
        async with self._turns.take():
            return await run_blocking(work)

    # --- in a worker thread ---

    def _set(self, peer: str, password: str) -> bool:
        self._records.put(_PASSWORDS, _key(peer), _record(peer, self._hasher.hash(password)))
        return True

    def _check(self, peer: str, password: str) -> bool:
        if not self._nobody:
            # Before the record is read, so that the first unknown peer waits no longer than others.
            self._nobody = self._hasher.hash(secrets.token_hex(16))
        kept = self._records.get(_PASSWORDS, _key(peer))
        if kept is None:
            self._is_it(peer, self._nobody, password)
            return False
        hashed, name = _read(kept)
        if not self._is_it(peer, hashed, password):
            return False
        if not self._hasher.check_needs_rehash(hashed) and name:
            return True
        try:
            self._keep_instead(kept, peer, password)
        except GuardFailed:  # set or removed meanwhile: the old one must not come back
            return self._check(peer, password)
        return True

    def _keep_instead(self, kept: bytes, peer: str, password: str) -> None:
        """Hashes the same password again; raises GuardFailed when the record has
        changed meanwhile.
        """
        made = Put(_PASSWORDS, _key(peer), _record(peer, self._hasher.hash(password)))
        as_guarded(self._records).apply_guarded([made], [Guard(_PASSWORDS, _key(peer), kept)])

    def _is_it(self, peer: str, hashed: str, password: str) -> bool:
        try:
            return self._hasher.verify(hashed, password)
        except VerifyMismatchError:
            return False
        except (VerificationError, InvalidHashError) as error:
            raise Corrupt(
                f"the password record of {peer!r} cannot be read: {type(error).__name__}",
                code="password.bad_record",
                hint=f"set it anew: rapport peers password {peer}",
            ) from None


def check_password(peer: str, password: str) -> None:
    """Raises InvalidInput for an unacceptable password; never repeats it."""
    length = len(_normal(password))
    if not LEAST_CHARACTERS <= length <= MOST_CHARACTERS:
        raise InvalidInput(
            f"a password has {LEAST_CHARACTERS} to {MOST_CHARACTERS} characters",
            code="password.bad_length",
            hint="a few unrelated words are easy to remember and hard to guess",
        )
    if _normal(password).casefold() == peer.casefold():
        raise InvalidInput("a name is no password", code="password.is_the_name")


def _normal(password: str) -> str:
    """The text in one Unicode form, whatever keyboard wrote it."""
    try:
        password.encode()
    except UnicodeEncodeError:
        raise InvalidInput("a password is text", code="password.not_text") from None
    return unicodedata.normalize("NFKC", password)


def _key(peer: str) -> str:
    # A digest: names come from outside, also ones that no store can hold.
    return content_id("peer", peer)


def _record(peer: str, hashed: str) -> bytes:
    """The hash and the peer's name, which the key does not show."""
    return f"{hashed}\n{peer}".encode("utf-8", "surrogatepass")


def _read(kept: bytes) -> tuple[str, str]:
    """The hash and the name; records of former versions have no name."""
    hashed, _, name = kept.decode("utf-8", "replace").partition("\n")
    return hashed, name
