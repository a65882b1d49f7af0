"""A directory that is asked elsewhere: what of its answers is kept for a while, and what callbacks
of an application raise for whom they do not know. [CO-3]

As in the source: what a peer is changes seldom and is asked often, so it is kept; who is in a
collective changes all the time, so it is asked at every sending.
"""

from __future__ import annotations

import threading

from rapport.communication.peers import Collective, Peer, PeerDirectory
from rapport.core.errors import SourceUnavailable, UnknownName
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
        self._changes = 0
        """How often something was forgotten: what was asked for before may be old."""

    def peer(self, name: str) -> Peer | None:
        """The peer as it was at most a lifetime ago, or None."""
        now_ns = self._clock.steady_ns()
        with self._guard:
            until_ns, kept = self._peers.get(name, (0, None))
            changes = self._changes
        if kept is not None and now_ns < until_ns:
            return kept
        found = self._asked(name, now_ns)
        if found is not None:
            self._keep(name, now_ns + self._lifetime_ns, found, changes)
        return found

    def _asked(self, name: str, now_ns: int) -> Peer | None:
        with self._guard:
            until_ns, failure = self._failed.get(name, (0, None))
        if failure is not None and now_ns < until_ns:
            raise failure.with_traceback(None)  # else it grows with everybody who is told
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

    @property
    def revision(self) -> int:
        """Rises when a peer was changed: until then an answer holds for its lifetime."""
        return self._changes

    def forget(self, name: str) -> None:
        """The peer was changed: the next question asks again."""
        with self._guard:
            self._changes += 1
            self._peers.pop(name, None)
            self._failed.pop(name, None)

    def _keep(self, name: str, until_ns: int, peer: Peer, changes: int) -> None:
        with self._guard:
            if changes != self._changes:
                return  # maybe it is this peer that was changed while it was asked for
            self._peers.pop(name, None)
            while len(self._peers) >= self._most:
                del self._peers[next(iter(self._peers))]  # the one that was asked for longest ago
            self._peers[name] = until_ns, peer
