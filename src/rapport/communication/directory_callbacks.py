"""A directory that asks the application: callbacks with deadlines, and a cache of answers.
[CO-3, CO-7, CO-11, CO-15]

A plain function is called in a thread of its own and may block; a coroutine runs in the loop of the
application. A function cannot be interrupted: a call that takes too long goes on, its late
answer serves the next look-up, and until then look-ups of the same name fail at once. Peers are
cached, since they change seldom; collectives are looked up at every sending.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar, get_args

import msgspec

from rapport.communication.delivery_state import CollectiveDelivery, PeerDelivery
from rapport.communication.duty import Roster
from rapport.communication.peers import Collective, Peer, PeerDirectory, names_after
from rapport.communication.privacy import is_zone
from rapport.communication.sessions.logins import Authenticate
from rapport.core.errors import SourceUnavailable, UnknownName
from rapport.core.message import Identifier
from rapport.kernel.clock import Clock, SystemClock

DEADLINE_SECONDS = 10.0
"""Deadline of a call."""
PATIENCE_SECONDS = 1.0
"""Deadline while another call hangs: its service is probably in trouble as a whole."""
GIVEN_UP_SECONDS = 60.0
"""After that a hanging call is given up: the name is looked up again, a coroutine is cancelled."""
MOST_HANGING = 8
"""With so many hanging calls no other is made."""
_NS = 1_000_000_000


T = TypeVar("T")
LookupCallback = Callable[[Identifier], "T | Awaitable[T]"]


_CLOCK = SystemClock()
_MOST_LEAST = 2**53
PeerInfo = Callable[[Identifier], "Peer | Awaitable[Peer | None] | None"]
CollectiveInfo = Callable[[Identifier], "Collective | Awaitable[Collective | None] | None"]


class _Late(msgspec.Struct, Generic[T]):
    """A call that missed its deadline."""

    call: Future[T]
    begun_ns: int


class DeadlineCalls(Generic[T]):
    """The calls of one callback, from any thread. A call costs a hop into another thread, or into
    the loop for a coroutine function: about a hundred microseconds.
    """

    def __init__(
        self,
        callback: LookupCallback[T],
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        """`loop`: where coroutines run."""
        self._callback, self._loop, self._clock = callback, loop, clock
        self._deadline_seconds = deadline_seconds
        self._late: dict[Identifier, _Late[T]] = {}
        self._given_up: list[Future[T]] = []
        self._guard = threading.Lock()

    def call(self, identifier: Identifier) -> T:
        """Calls the callback; raises SourceUnavailable when it misses the deadline."""
        with self._guard:
            came = self._came_late(identifier)
            hanging = self._hanging()
        if came is not None:
            return came.result()
        if hanging >= MOST_HANGING:
            raise _too_slow(identifier, f"{hanging} calls of the callback hang")
        seconds = self._deadline_seconds
        if hanging:
            seconds = min(seconds, PATIENCE_SECONDS)
        begun_ns = self._clock.steady_ns()
        call = self._begin(identifier)
        try:
            return call.result(seconds)
        except TimeoutError:
            if call.done():
                raise  # its own
            with self._guard:
                self._late[identifier] = _Late(call, begun_ns)
            raise _too_slow(identifier, f"no answer in {seconds:g} s") from None

    def _came_late(self, identifier: Identifier) -> Future[T] | None:
        """The late answer of an earlier call, if it is not old; raises SourceUnavailable while that
        call still runs.
        """
        late = self._late.get(identifier)
        if late is None:
            return None
        is_old = self._clock.steady_ns() - late.begun_ns > GIVEN_UP_SECONDS * _NS
        if not late.call.done() and not is_old:
            raise _too_slow(identifier, "an earlier call still runs")
        del self._late[identifier]
        if late.call.done() and not is_old:
            return late.call
        self._given_up.append(late.call)
        return None

    def _hanging(self) -> int:
        self._given_up = [call for call in self._given_up if not call.done()]
        return len(self._given_up) + sum(not late.call.done() for late in self._late.values())

    # --- one call ---

    def _begin(self, identifier: Identifier) -> Future[T]:
        in_loop = _is_in_a_loop()
        if not in_loop and inspect.iscoroutinefunction(self._callback):
            return self._awaiting(self._callback(identifier))
        made: Future[T] = Future()

        def run() -> None:
            try:
                answered = self._callback(identifier)
                if isinstance(answered, Awaitable):
                    answered = self._waited_for(answered, in_loop)
                made.set_result(answered)
            except BaseException as error:
                made.set_exception(error)

        # A daemon: the process does not wait for a call that hangs.
        threading.Thread(target=run, name="rapport-directory", daemon=True).start()
        return made

    def _waited_for(self, answered: Awaitable[T], in_loop: bool) -> T:
        if in_loop:
            if asyncio.iscoroutine(answered):
                answered.close()
            raise SourceUnavailable(
                "a coroutine of the application cannot be waited for in the event loop",
                code="people.in_the_loop",
                hint="look people up in a worker thread, or give a plain function",
            )
        return self._awaiting(answered).result()

    def _awaiting(self, answered: Awaitable[T]) -> Future[T]:
        given = asyncio.wait_for(answered, GIVEN_UP_SECONDS)
        return asyncio.run_coroutine_threadsafe(given, self._loop)


def _too_slow(identifier: Identifier, why: str) -> SourceUnavailable:
    return SourceUnavailable(
        f"the look-up of {identifier} by the application missed its deadline: {why}",
        code="people.directory_slow",
        hint="a callback answers within seconds; give what it asks a timeout of its own",
    )


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class NoSuchPeer(UnknownName):
    """Raised by a peer callback for an unknown name."""

    code = "peer.unknown"

    def __init__(self, name: str) -> None:
        super().__init__("peer", name)


class NoSuchCollective(UnknownName):
    """Raised by a collective callback for an unknown name."""

    code = "collective.unknown"

    def __init__(self, name: str) -> None:
        super().__init__("collective", name)


class Callbacks(msgspec.Struct, frozen=True, kw_only=True):
    """Callbacks of an application; defaults serve in place of missing ones."""

    peer_info: PeerInfo | None = None
    """Looks up peers that are neither declared nor added. None or NoSuchPeer = there is no such
    peer; any other error = the look-up failed.
    """
    collective_info: CollectiveInfo | None = None
    """Looks up collectives, at every sending. None or NoSuchCollective as above."""
    authenticate: Authenticate | None = None
    """Checks passwords, in place of those stored here."""


NO_CALLBACKS = Callbacks()


class CallbackDirectory:
    """A directory that asks the application for unknown names."""

    def __init__(
        self,
        own: PeerDirectory,
        callbacks: Callbacks,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Clock = _CLOCK,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        """`loop`: runs coroutines; calls come from other threads."""
        self._own = own
        self._peer_info: DeadlineCalls[Peer | None] | None = None
        self._collective_info: DeadlineCalls[Collective | None] | None = None
        made = partial(DeadlineCalls, loop=loop, clock=clock, deadline_seconds=deadline_seconds)
        if callbacks.peer_info is not None:
            self._peer_info = made(callbacks.peer_info)
        if callbacks.collective_info is not None:
            self._collective_info = made(callbacks.collective_info)

    def peer(self, name: str) -> Peer | None:
        """The peer of that name, or None; raises SourceUnavailable when the callback fails."""
        found = self._own.peer(name)
        if found is None and self._peer_info is not None:
            return self._look_up(self._peer_info, Identifier("peer", name), _peer_fault)
        return found

    def policy_of(self, name: str) -> Collective | None:
        return self._own.policy_of(name) or self._collective_by_callback(name)

    def member_names(self, name: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """See PeerDirectory; each slice is a call, so that members may change between two."""
        if self._own.policy_of(name) is not None:
            return self._own.member_names(name, after=after, limit=limit)
        found = self._collective_by_callback(name)
        return names_after(sorted(set(found.members)), after, limit) if found else []

    def _collective_by_callback(self, name: str) -> Collective | None:
        if self._collective_info is None:
            return None
        identifier = Identifier("collective", name)
        return self._look_up(self._collective_info, identifier, _collective_fault)

    def _look_up(
        self, calls: DeadlineCalls[T | None], identifier: Identifier, fault_of: Callable[[T], str]
    ) -> T | None:
        try:
            found = calls.call(identifier)
        except (NoSuchPeer, NoSuchCollective):
            return None
        except SourceUnavailable:
            raise
        except Exception as error:
            raise SourceUnavailable(
                f"the look-up of {identifier} by the application failed: {error!r}",
                code="people.directory_failed",
                hint="a callback returns None for an unknown name",
            ) from error
        # An invalid answer would be stored with the message and be unreadable later.
        if found is not None and (fault := fault_of(found)):
            raise SourceUnavailable(
                f"the application gave an invalid answer for {identifier}: {fault}",
                code="people.bad_answer",
                hint="a callback returns a Peer or a Collective, or None",
            )
        return found


def _peer_fault(found: object) -> str:
    """The fault of a peer; empty when it is valid."""
    if not isinstance(found, Peer):
        return f"a {type(found).__name__} is no Peer"
    if not isinstance(found.name, str) or not found.name:
        return "it has no name"
    if not _are_texts(found.addresses):
        return "its addresses are no tuple of texts"
    return "" if found.delivery in get_args(PeerDelivery) else "there is no such delivery"


def _collective_fault(found: object) -> str:
    """The fault of a collective; empty when it is valid."""
    if not isinstance(found, Collective):
        return f"a {type(found).__name__} is no Collective"
    if not _are_texts(found.members):
        return "its members are no tuple of names"
    if found.delivery not in get_args(CollectiveDelivery):
        return "there is no such delivery"
    if not (found.roster is None or _is_roster(found.roster)):
        return "its roster is no Roster with a known zone"
    is_count = isinstance(found.least, int) and 0 <= found.least < _MOST_LEAST
    return "" if is_count else "its least is no number of people"


def _is_roster(given: object) -> bool:
    return isinstance(given, Roster) and is_zone(given.zone)


def _are_texts(given: object) -> bool:
    return isinstance(given, tuple | list | set | frozenset) and all(
        isinstance(each, str) for each in given
    )
