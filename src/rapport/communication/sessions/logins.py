"""Logins of peers: AUTH REQUEST in, REPLY, FAILED or ERROR out; passwords set and removed. [CO-2,
CO-11, CO-12]

Credentials and tokens pass through memory only. The channel `auth` records each request, its time
and origin, and its result, without either.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from rapport.channel.access.identities import full_bucket, take
from rapport.channel.channel import Channels
from rapport.communication.sessions.passwords import (
    ConcurrencyLimit,
    LoginAttempts,
    Passwords,
    check_password,
)
from rapport.communication.sessions.sessions import OpenedSession, Sessions
from rapport.communication.texts import printable
from rapport.core.errors import (
    InvalidInput,
    NotAuthenticated,
    RapportError,
    TooFast,
    Unavailable,
    UnknownName,
)
from rapport.core.event import Event, make_event
from rapport.core.message import AUTH, Identifier, Message
from rapport.core.times import format_time
from rapport.kernel.clock import Chance, Clock, Ids
from rapport.kernel.tasks import ends_within, run_blocking, run_to_end
from rapport.kernel.telemetry import get_logger
from rapport.store.base import RecordStore

CHANNEL = "auth"
COMPONENT = Identifier("component", "authentication")
_SOURCE = "authentication"
_PREFIX = "rapport.auth."
_LONGEST_NAME = 200
_DEADLINE_MS = 30_000
"""Limit for a password check; a longer one goes on in its slot, but its login fails."""
_AT_ONCE, _MOST_WAITING = 4, 64
_NOTE_RATE, _MOST_NOTES = 10, 1_000
"""Bad tokens noted in `auth`, a second in the long run and at once: anybody can send them, and they
must not fill the disk.
"""

Authenticate = Callable[[Identifier, str], "bool | Awaitable[bool]"]
"""Says whether this is the peer's password; an exception means that the check failed. A
plain function is called in a worker thread.
"""
AfterLogin = Callable[[str], Awaitable[object]]
Result = Literal["reply", "failed", "error", "ended"]

_log = get_logger(__name__)


class Credentials(msgspec.Struct, frozen=True):
    """The content of an AUTH REQUEST; without a password it asks to renew the message's token."""

    password: str = ""

    def __repr__(self) -> str:
        return "Credentials()"


class _Login:
    """One attempt that is being looked at. Equal to itself only."""

    is_ended = False
    """All sessions of the peer were ended since it began."""


def _anybody(_peer: str) -> bool:
    return True


class Authenticator:
    """Checks credentials, opens sessions and writes down that it did."""

    def __init__(
        self,
        channels: Channels,
        records: RecordStore,
        clock: Clock,
        sessions: Sessions,
        authenticate: Authenticate,
        *,
        is_peer: Callable[[str], bool] = _anybody,
    ) -> None:
        """`authenticate`: `Passwords(...).check`, or the application's own; `is_peer`: whether the
        directory knows the name (a peer that was removed gets in no more). It may block.
        """
        self._channels, self._clock, self.sessions = channels, clock, sessions
        self._attempts = LoginAttempts(records)
        self._authenticate, self._is_peer = authenticate, is_peer
        self._ids = Ids(clock, Chance.from_machine())
        self._turns = ConcurrencyLimit(_AT_ONCE, _MOST_WAITING)
        self._notes = full_bucket(_MOST_NOTES, clock.now_ms())
        self._late: set[asyncio.Task[bool]] = set()
        self._under_way: dict[str, list[_Login]] = {}
        """Running logins by peer."""
        self.after_login: list[AfterLogin] = []
        """Called with the peer's name after each login and renewal."""
        self.after_ending: list[AfterLogin] = []
        """Called with the peer's name after all its sessions were ended by an administrator."""
        self.forgetting: list[Callable[[], Awaitable[None]]] = []
        """Called when records of unknown peers are removed."""

    async def log_in(self, peer: str, password: str, *, origin: str = "") -> OpenedSession:
        """Opens a session for the right password. `origin`: the caller's address, for the limit on
        attempts; empty = no limit of its own. Raises NotAuthenticated (wrong, or no such peer: not
        distinguishable), TooFast, or Unavailable when the check failed.
        """
        now_ms = self._clock.now_ms()
        await run_blocking(partial(self._attempts.begin, peer, origin, now_ms))
        try:
            opened = await self._opened(peer, password)
        except Exception as error:
            await run_blocking(partial(self._attempts.forgive, peer, origin, wholly=False))
            raise await self._could_not(peer, origin, error) from None
        if opened is None:
            await self._note("failed", peer, origin, "auth.failed")
            raise NotAuthenticated(
                "the name or the password is wrong",
                code="auth.failed",
                hint="rapport peers password NAME sets a new one",
            )
        await run_blocking(partial(self._attempts.forgive, peer, origin, wholly=True))
        return await self._let_in(opened, origin)

    async def _opened(self, peer: str, password: str) -> OpenedSession | None:
        """A session if the password is right and was not replaced while the session began."""
        under_way = self._under_way.setdefault(peer, [])
        under_way.append(login := _Login())
        try:
            if not await self._check(peer, password):
                return None
            opened = await self.sessions.begin(peer)
            if not login.is_ended:
                return opened
            await self.sessions.end(opened.token)
            return None
        finally:
            under_way.remove(login)
            if not under_way and self._under_way.get(peer) is under_way:
                del self._under_way[peer]

    async def renew(self, token: str, *, peer: str = "", origin: str = "") -> OpenedSession:
        """A new token for a valid one, of `peer` if it is named. Raises NotAuthenticated."""
        whose = await self.sessions.peer_of(token)
        opened = None
        if whose is not None and peer in ("", whose):
            opened = await self.sessions.renew(token)
        if opened is None:
            if self._may_note():
                await self._note("failed", peer or whose or "", origin, "session.invalid")
            raise NotAuthenticated(
                "the session cannot be renewed", code="auth.failed", hint="log in again"
            )
        return await self._let_in(opened, origin)

    async def log_out(self, token: str, *, origin: str = "") -> bool:
        """Ends the session of a valid token; False for any other."""
        peer = await self.sessions.peer_of(token)
        if peer is None or not await self.sessions.end(token):
            return False
        await self._note("ended", peer, origin, "")
        return True

    async def end_all(self, peer: str, *, by: str, reason: str) -> int:
        """Ends all sessions of a peer, notes the author in `auth`, and returns their number."""
        for login in self._under_way.get(peer, ()):
            login.is_ended = True
        ended = await self.sessions.end_all(peer)
        await self._note("ended", peer, by, reason)
        for call in self.after_ending:
            await call(peer)
        return ended

    async def request(self, message: Message, *, origin: str = "") -> Message:
        """The answer to an AUTH REQUEST: REPLY with a token, FAILED, or ERROR when the check was
        not possible. It is for the requester only and must not be logged.
        """
        try:
            opened = await self._open_for(message, origin)
        except NotAuthenticated as error:
            return _answer(message, "FAILED", {"code": error.code, "reason": error.message})
        except RapportError as error:
            detail: dict[str, Any] = {"code": error.code, "reason": error.message}
            if isinstance(error, TooFast):
                detail["retry_after_seconds"] = error.retry_after_seconds
            return _answer(message, "ERROR", detail)
        content = {
            "expires": format_time(opened.expires_ms),
            "session": opened.session,
            "seal_key": opened.seal_key,
        }
        return _answer(message, "REPLY", content, token=opened.token)

    async def forget_old(self) -> None:
        """Deletes expired sessions, keys and failed attempts; called now and then."""
        await self.sessions.forget_over()
        await self._end_of_strangers()
        await run_blocking(partial(self._attempts.forget_old, self._clock.now_ms()))

    async def _end_of_strangers(self) -> None:
        """Ends the sessions of peers that left the directory unnoticed (the site file changed while
        the node was down), and removes their passwords and links. An unavailable directory is tried
        another time.
        """
        try:
            for peer in await self.sessions.peers():
                if not await run_blocking(partial(self._is_peer, peer)):
                    await self.end_all(peer, by="directory", reason="no such peer")
            for forget in self.forgetting:
                await forget()
        except RapportError as error:
            _log.error("unknown peers not removed", error=error.code)

    async def _open_for(self, message: Message, origin: str) -> OpenedSession:
        if message.sender.kind != "peer":
            raise InvalidInput("only peers log in", code="auth.bad_request")
        peer = message.sender.name
        try:
            content = message.content or "{}"
            password = msgspec.json.decode(content, type=Credentials).password
        except (msgspec.DecodeError, UnicodeEncodeError):
            # What the decoder says might repeat a part of the password.
            raise InvalidInput(
                'the content is not {"password": "..."}', code="auth.bad_request"
            ) from None
        if password:
            return await self.log_in(peer, password, origin=origin)
        return await self.renew(message.session_token, peer=peer, origin=origin)

    async def _check(self, peer: str, password: str) -> bool:
        is_known = len(peer) <= _LONGEST_NAME and peer.isprintable() and bool(peer)
        # Checked in any case: an unknown peer must take as long as a known one.
        is_known = await run_blocking(partial(self._is_peer, peer)) and is_known
        identifier = Identifier("peer", peer if is_known else "")
        return await self._in_time(self._verify(identifier, password)) and is_known

    async def _verify(self, peer: Identifier, password: str) -> bool:
        async with self._turns.take():
            if inspect.iscoroutinefunction(self._authenticate):
                is_right = await self._authenticate(peer, password)
            else:
                is_right = await run_blocking(partial(self._authenticate, peer, password))
                if inspect.isawaitable(is_right):
                    is_right = await is_right
        return is_right is True

    async def _in_time(self, checking: Coroutine[Any, Any, bool]) -> bool:
        """The result within the deadline; raises Unavailable after it. A thread cannot be stopped,
        so it runs on.
        """
        work = asyncio.create_task(checking)
        is_done = False
        try:
            is_done = await ends_within(work, self._clock, _DEADLINE_MS)
        finally:
            if not is_done:
                self._late.add(work)
                work.add_done_callback(self._forget_late)
        if not is_done:
            raise Unavailable("the password check did not answer in time", code="auth.unavailable")
        return work.result()

    def _forget_late(self, work: asyncio.Task[bool]) -> None:
        self._late.discard(work)
        if not work.cancelled() and work.exception() is not None:
            _log.error("login checked too late", error=type(work.exception()).__name__)

    async def _could_not(self, peer: str, origin: str, error: Exception) -> Unavailable:
        # The error's own text is left out: the check may put anything into it.
        _log.error("login could not be checked", peer=peer[:80], error=type(error).__name__)
        await self._note("error", peer, origin, "auth.unavailable")
        retry = error.retry_after_seconds if isinstance(error, Unavailable) else 5.0
        return Unavailable(
            "the password cannot be checked now", code="auth.unavailable", retry_after_seconds=retry
        )

    async def _let_in(self, opened: OpenedSession, origin: str) -> OpenedSession:
        await self._note("reply", opened.peer, origin, "", session=opened.session)
        for call in self.after_login:
            try:
                await call(opened.peer)
            except RapportError as error:
                # The peer is in all the same; its held messages are tried again at its next login.
                _log.error("after login", peer=opened.peer, error=error.code)
        return opened

    def _may_note(self) -> bool:
        now_ms = self._clock.now_ms()
        return not take(self._notes, 1, rate=_NOTE_RATE, burst=_MOST_NOTES, now_ms=now_ms)

    async def _note(
        self, result: Result, peer: str, origin: str, reason: str, *, session: str = ""
    ) -> None:
        now_ms = self._clock.now_ms()
        request = {
            "peer": printable(peer, _LONGEST_NAME),
            "origin": printable(origin, _LONGEST_NAME),
        }
        result_data = request | {"reason": reason, "session": session}
        events = [self._event(result, result_data, now_ms)]
        if result != "ended":
            events.insert(0, self._event("request", request, now_ms))
        await self._channels.channel(CHANNEL).append(events)

    def _event(self, kind: str, data: dict[str, str], now_ms: int) -> Event:
        return make_event(
            source=_SOURCE,
            id=self._ids.new(),
            type=_PREFIX + kind,
            subject=f"peer:{data['peer']}",
            time=now_ms,
            data={name: value for name, value in data.items() if value},
        )


def _answer(message: Message, subtype: str, content: dict[str, Any], *, token: str = "") -> Message:
    return Message(
        type=AUTH,
        subtype=subtype,
        sender=COMPONENT,
        receiver=message.sender,
        conversation=message.conversation,
        refers_to=message.id,
        content=msgspec.json.encode(content).decode(),
        session_token=token,
        delivery_policy="unreliable",
    )


def _unknown(peer: str) -> UnknownName:
    return UnknownName("peer", peer, code="peer.unknown")


async def _nobody() -> Sequence[str]:
    return ()


class Logins:
    """Sets and removes passwords while a node runs; sessions opened with the old password end."""

    def __init__(
        self,
        passwords: Passwords,
        authenticating: Authenticator,
        is_peer: Callable[[str], bool],
        *,
        unknown: Callable[[str], UnknownName] = _unknown,
        others: Callable[[], Awaitable[Sequence[str]]] = _nobody,
    ) -> None:
        """`is_peer`: whether the directory knows the name; `unknown`: the error with the nearest
        name. Both may block. `others`: peers with other credentials that end with all sessions.
        """
        self._passwords, self._authenticating = passwords, authenticating
        self._is_peer, self._unknown, self._others = is_peer, unknown, others
        authenticating.forgetting.append(self.forget_strangers)

    async def set_password(self, peer: str, password: str, *, by: str) -> int:
        """Sets the peer's password; returns how many sessions ended. Raises UnknownName for no
        peer's name, InvalidInput for an unacceptable password.
        """
        check_password(peer, password)
        if not await run_blocking(partial(self._is_peer, peer)):
            raise await run_blocking(partial(self._unknown, peer))
        return await run_to_end(self._set_password(peer, password, by))

    async def remove_password(self, peer: str, *, by: str) -> int:
        """Removes the peer's password; returns how many sessions ended."""
        return await run_to_end(self._remove_password(peer, by))

    async def _set_password(self, peer: str, password: str, by: str) -> int:
        await self._passwords.set(peer, password)
        return await self._authenticating.end_all(peer, by=by, reason="password set")

    async def _remove_password(self, peer: str, by: str) -> int:
        await self._passwords.remove(peer)
        return await self._authenticating.end_all(peer, by=by, reason="password removed")

    async def peer_changed(self, peer: str) -> None:
        """Removes the password of a peer that left the directory, so that a later peer of that name
        does not get it.
        """
        if not await run_blocking(partial(self._is_peer, peer)):
            await self.remove_password(peer, by="directory")

    async def forget_strangers(self) -> None:
        """Removes the passwords of peers that left the directory unnoticed. Reads all passwords;
        raises what an unavailable directory raises.
        """
        for peer in sorted({*await self._passwords.peers(), *await self._others()}):
            await self.peer_changed(peer)
