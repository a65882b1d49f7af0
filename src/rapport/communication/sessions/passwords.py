"""Passwords of peers: argon2id, hashed beside the event loop, kept in the record store. [CO-11]

The parameters are those that RFC 9106 recommends where memory is limited. A password kept under
other parameters is hashed anew at its next use. The only home of argon2 in this room.
"""

from __future__ import annotations

import secrets
import unicodedata
from collections.abc import Callable, Iterator
from functools import partial

import msgspec
from argon2 import PasswordHasher, Type
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError

from rapport.communication.blocking import run_blocking
from rapport.communication.sessions.turns import Turns
from rapport.core.errors import Corrupt, InvalidInput
from rapport.core.ids import content_id
from rapport.core.message import Identifier
from rapport.store.base import Put, RecordStore
from rapport.store.guarding import Guard, GuardFailed, as_guarded

_TABLE = "passwords"
LEAST_CHARACTERS = 8
MOST_CHARACTERS = 1_024
_AT_ONCE = 2
"""Hashes under way: each holds `memory_kib`, and more would only wait for the processor."""
_MOST_WAITING = 64
"""Beyond them a check is refused at once: a flood of logins must not eat the memory."""
_PAGE = 500


class PasswordSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What one hash costs; each field says what it trades."""

    memory_kib: int = 65_536
    """What a guesser needs per guess at a time, and we per login."""
    passes: int = 3
    """Time of one hash, in proportion."""
    lanes: int = 4
    """Threads that one hash may use."""


class Passwords:
    """Who has which password; none can be read from here."""

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
        self._turns = Turns(_AT_ONCE, _MOST_WAITING)

    async def set(self, peer: str, password: str) -> None:
        """The peer's password from now on; durable when it returns. Raises InvalidInput for one
        that is too short or too long. Ending the sessions opened with the old one is the caller's.
        """
        check_password(peer, password)
        await self._hashing(partial(self._set, peer, _normal(password)))

    async def remove(self, peer: str) -> bool:
        """The peer can log in no more; False when it had no password."""
        return await run_blocking(partial(self._remove, peer))

    async def has(self, peer: str) -> bool:
        """Whether the peer has a password."""
        return await run_blocking(partial(self._records.get, _TABLE, _key(peer))) is not None

    async def peers(self) -> list[str]:
        """Who has a password, sorted; reads all of them."""
        return await run_blocking(lambda: sorted(self._peers()))

    async def check(self, peer: Identifier, password: str) -> bool:
        """Whether this is the peer's password; takes as long for a peer that has none.

        Raises Unavailable when too many are checked already, Corrupt when the record is broken.
        """
        if len(password) > MOST_CHARACTERS:
            return False
        return await self._hashing(partial(self._check, peer.name, _normal(password)))

    async def _hashing(self, work: Callable[[], bool]) -> bool:
        async with self._turns.take():
            return await run_blocking(work)

    # --- in a worker thread ---

    def _set(self, peer: str, password: str) -> bool:
        self._records.put(_TABLE, _key(peer), _record(peer, self._hasher.hash(password)))
        return True

    def _peers(self) -> Iterator[str]:
        after = ""
        while page := self._records.find(_TABLE, after=after, limit=_PAGE):
            yield from (name for _key, kept in page if (name := _read(kept)[1]))
            after = page[-1][0]

    def _remove(self, peer: str) -> bool:
        if self._records.get(_TABLE, _key(peer)) is None:
            return False
        self._records.delete(_TABLE, _key(peer))
        return True

    def _check(self, peer: str, password: str) -> bool:
        if not self._nobody:
            # Before looking who it is, so that the first stranger waits no longer than others.
            self._nobody = self._hasher.hash(secrets.token_hex(16))
        kept = self._records.get(_TABLE, _key(peer))
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
        """The same password hashed anew; raises GuardFailed when the record is another by then."""
        made = Put(_TABLE, _key(peer), _record(peer, self._hasher.hash(password)))
        as_guarded(self._records).apply_guarded([made], [Guard(_TABLE, _key(peer), kept)])

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
    """Raises InvalidInput for a password that cannot be taken; never repeats it."""
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
    """The same text whatever keyboard wrote it: accents as one character or as two."""
    try:
        password.encode()
    except UnicodeEncodeError:
        raise InvalidInput("a password is text", code="password.not_text") from None
    return unicodedata.normalize("NFKC", password)


def _key(peer: str) -> str:
    # A digest: who tries to log in may write any name, also one that no store can take.
    return content_id("peer", peer)


def _record(peer: str, hashed: str) -> bytes:
    """The hash and whose it is: keys do not tell, and who has left must be found."""
    return f"{hashed}\n{peer}".encode("utf-8", "surrogatepass")


def _read(kept: bytes) -> tuple[str, str]:
    """The hash, and the name; of a record of former versions that is not known."""
    hashed, _, name = kept.decode("utf-8", "replace").partition("\n")
    return hashed, name
