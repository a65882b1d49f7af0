"""Directories that are asked elsewhere: callbacks of an application, and what of their answers is
kept for a while. [CO-3]

As in the source: what a peer is changes seldom and is asked often, so it is kept; who is in a
collective changes all the time, so it is asked at every sending.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rapport.communication.peers import Collective, Peer, PeerDirectory, names_after
from rapport.core.errors import RapportError, SourceUnavailable, UnknownName
from rapport.core.message import Identifier
from rapport.kernel.clock import Clock

PEER_LIFETIME_MS = 60_000
_NS_PER_MS = 1_000_000
_MOST = 100_000
_FAILED_FOR_NS = 1_000 * _NS_PER_MS
_MOST_FAILED = 10_000


class NoSuchPeer(UnknownName):
    """Raised by a peer callback for a name it does not know."""

    code = "peer.unknown"

    def __init__(self, name: str) -> None:
        super().__init__("peer", name)


class NoSuchCollective(UnknownName):
    """Raised by a collective callback for a name it does not know."""

    code = "collective.unknown"

    def __init__(self, name: str) -> None:
        super().__init__("collective", name)


PeerInfo = Callable[[Identifier], Peer]
CollectiveInfo = Callable[[Identifier], Collective]


class CallbackDirectory:
    """A directory of two callbacks, called from a worker thread; who is not known is None, and so a
    member without an address. A callback that fails in any other way is asked again later.
    """

    def __init__(self, peer_info: PeerInfo, collective_info: CollectiveInfo) -> None:
        self._peer_info, self._collective_info = peer_info, collective_info

    def peer(self, name: str) -> Peer | None:
        """What the callback says; raises SourceUnavailable when it fails."""
        try:
            return self._peer_info(Identifier("peer", name))
        except NoSuchPeer:
            return None
        except Exception as error:
            raise _failed(f"peer {name!r}", error) from error

    def collective(self, name: str) -> Collective | None:
        """What the callback says now; raises SourceUnavailable when it fails."""
        try:
            return self._collective_info(Identifier("collective", name))
        except NoSuchCollective:
            return None
        except Exception as error:
            raise _failed(f"collective {name!r}", error) from error

    def policy_of(self, name: str) -> Collective | None:
        """See PeerDirectory; the callback gives the members, too."""
        return self.collective(name)

    def member_names(self, name: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """See PeerDirectory; each slice asks the callback, so members may change between two."""
        found = self.collective(name)
        return names_after(sorted(set(found.members)), after, limit) if found else []


class CachedDirectory:
    """A directory whose peers are kept for a lifetime; collectives are always asked.

    A peer that is not known is not kept: who was added just now is found. A failure is kept for a
    moment, so that many messages to one peer do not wait for it one by one.
    """

    def __init__(
        self,
        directory: PeerDirectory,
        clock: Clock,
        *,
        lifetime_ms: int = PEER_LIFETIME_MS,
        most: int = _MOST,
    ) -> None:
        self._directory, self._clock = directory, clock
        self._lifetime_ns, self._most = lifetime_ms * _NS_PER_MS, most
        self._peers: dict[str, tuple[int, Peer]] = {}
        self._failed: dict[str, tuple[int, SourceUnavailable]] = {}
        self._guard = threading.Lock()

    def peer(self, name: str) -> Peer | None:
        """The peer as it was at most a lifetime ago, or None."""
        now_ns = self._clock.steady_ns()
        with self._guard:
            until_ns, kept = self._peers.get(name, (0, None))
        if kept is not None and now_ns < until_ns:
            return kept
        found = self._asked(name, now_ns)
        if found is not None:
            self._keep(name, now_ns + self._lifetime_ns, found)
        return found

    def _asked(self, name: str, now_ns: int) -> Peer | None:
        with self._guard:
            until_ns, failure = self._failed.get(name, (0, None))
        if failure is not None and now_ns < until_ns:
            raise failure
        try:
            found = self._directory.peer(name)
        except SourceUnavailable as error:
            with self._guard:
                while len(self._failed) >= _MOST_FAILED:
                    del self._failed[next(iter(self._failed))]
                self._failed[name] = now_ns + _FAILED_FOR_NS, error
            raise
        with self._guard:
            self._failed.pop(name, None)
        return found

    def collective(self, name: str) -> Collective | None:
        """The collective as it is now, or None."""
        return self._directory.collective(name)

    def policy_of(self, name: str) -> Collective | None:
        """See PeerDirectory; as it is now."""
        return self._directory.policy_of(name)

    def member_names(self, name: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """See PeerDirectory; as it is now."""
        return self._directory.member_names(name, after=after, limit=limit)

    def forget(self, name: str) -> None:
        """The peer was changed: the next question asks again."""
        with self._guard:
            self._peers.pop(name, None)
            self._failed.pop(name, None)

    def _keep(self, name: str, until_ns: int, peer: Peer) -> None:
        with self._guard:
            self._peers.pop(name, None)
            while len(self._peers) >= self._most:
                del self._peers[next(iter(self._peers))]  # the one that was asked for longest ago
            self._peers[name] = until_ns, peer


def _failed(what: str, error: Exception) -> RapportError:
    return SourceUnavailable(
        f"the directory did not say who {what} is: {error!r}", code="people.directory_failed"
    )
