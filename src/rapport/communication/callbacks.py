"""What an application is asked: who peers and collectives are, whether a password is right, and the
messages it is told of. Plain functions and coroutines alike. [CO-3, CO-11, CO-15]

A plain function is called in a thread of its own and may block; a coroutine runs in the loop of who
opened the room. Both have a deadline (`directory/asking.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar, get_args

import msgspec

from rapport.communication.delivering.notifying import Callback
from rapport.communication.delivering.tracking import CollectiveDelivery, PeerDelivery
from rapport.communication.directory.asking import DEADLINE_SECONDS, Asking
from rapport.communication.directory.cache import NoSuchCollective, NoSuchPeer
from rapport.communication.peers import Collective, Peer, PeerDirectory, names_after
from rapport.communication.sessions.logins import Authenticate
from rapport.core.errors import SourceUnavailable
from rapport.core.message import Identifier
from rapport.kernel.clock import Clock, SystemClock

_CLOCK = SystemClock()
_MOST = 2**53
T = TypeVar("T")
PeerInfo = Callable[[Identifier], "Peer | Awaitable[Peer | None] | None"]
CollectiveInfo = Callable[[Identifier], "Collective | Awaitable[Collective | None] | None"]
NotificationCallback = Callback


class Callbacks(msgspec.Struct, frozen=True, kw_only=True):
    """What an application brings; what it leaves out is done by the room itself."""

    peer_info: PeerInfo | None = None
    """Who a peer is: asked for names that nobody declared or added. None, or raising NoSuchPeer,
    means that there is no such peer; anything else it raises, that it could not find out."""
    collective_info: CollectiveInfo | None = None
    """Who is in a collective: asked at every sending. None or NoSuchCollective as above."""
    authenticate: Authenticate | None = None
    """Whether this is the peer's password, in place of the passwords kept here."""


NO_CALLBACKS = Callbacks()


class AskedDirectory:
    """A directory that asks the application for everybody it does not know itself."""

    def __init__(
        self,
        own: PeerDirectory,
        callbacks: Callbacks,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Clock = _CLOCK,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        """`loop`: where coroutines run; calls come from other threads."""
        self._own = own
        self._peer_info: Asking[Peer | None] | None = None
        self._collective_info: Asking[Collective | None] | None = None
        made = partial(Asking, loop=loop, clock=clock, deadline_seconds=deadline_seconds)
        if callbacks.peer_info is not None:
            self._peer_info = made(callbacks.peer_info)
        if callbacks.collective_info is not None:
            self._collective_info = made(callbacks.collective_info)

    def peer(self, name: str) -> Peer | None:
        """The peer of that name, or None; raises SourceUnavailable when the application failed."""
        found = self._own.peer(name)
        if found is None and self._peer_info is not None:
            return self._ask(self._peer_info, Identifier("peer", name), _peer_fault)
        return found

    def collective(self, name: str) -> Collective | None:
        """The collective as it is now, or None; raises SourceUnavailable."""
        return self._own.collective(name) or self._asked_collective(name)

    def policy_of(self, name: str) -> Collective | None:
        """See PeerDirectory."""
        return self._own.policy_of(name) or self._asked_collective(name)

    def member_names(self, name: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """See PeerDirectory; each slice asks, so members may change between two."""
        if self._own.policy_of(name) is not None:
            return self._own.member_names(name, after=after, limit=limit)
        found = self._asked_collective(name)
        return names_after(sorted(set(found.members)), after, limit) if found else []

    def _asked_collective(self, name: str) -> Collective | None:
        if self._collective_info is None:
            return None
        who = Identifier("collective", name)
        return self._ask(self._collective_info, who, _collective_fault)

    def _ask(
        self, asking: Asking[T | None], who: Identifier, fault_of: Callable[[T], str]
    ) -> T | None:
        try:
            found = asking.ask(who)
        except (NoSuchPeer, NoSuchCollective):
            return None
        except SourceUnavailable:
            raise
        except Exception as error:
            raise SourceUnavailable(
                f"the application did not say who {who} is: {error!r}",
                code="people.directory_failed",
                hint="a callback returns None for who it does not know",
            ) from error
        # What cannot be would be kept with the message, and nobody could read it again.
        if found is not None and (fault := fault_of(found)):
            raise SourceUnavailable(
                f"the application did not say who {who} is: {fault}",
                code="people.bad_answer",
                hint="a callback returns a Peer or a Collective, or None",
            )
        return found


def _peer_fault(found: object) -> str:
    """Why an answer can be no peer; empty when it can."""
    if not isinstance(found, Peer):
        return f"a {type(found).__name__} is no Peer"
    if not isinstance(found.name, str) or not found.name:
        return "it has no name"
    if not _are_texts(found.addresses):
        return "its addresses are no tuple of texts"
    return "" if found.delivery in get_args(PeerDelivery) else "there is no such delivery"


def _collective_fault(found: object) -> str:
    """Why an answer can be no collective; empty when it can."""
    if not isinstance(found, Collective):
        return f"a {type(found).__name__} is no Collective"
    if not _are_texts(found.members):
        return "its members are no tuple of names"
    if found.delivery not in get_args(CollectiveDelivery):
        return "there is no such delivery"
    is_count = isinstance(found.least, int) and 0 <= found.least < _MOST
    return "" if is_count else "its least is no number of people"


def _are_texts(given: object) -> bool:
    return isinstance(given, tuple | list | set | frozenset) and all(
        isinstance(each, str) for each in given
    )
