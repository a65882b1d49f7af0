"""How long a source keeps a session for a reader; time is an argument. [CH-1, CH-2, CH-3]

Tokens carry all state, so a persistent channel honours them for ever and a lease there is only a
promise. A channel in memory enforces its leases: after one has run out, its tokens are refused.
"""

from __future__ import annotations

import heapq

from rapport.channel.requesting.batch import LONGEST_LEASE_MINUTES
from rapport.core.errors import ChannelUnavailable, LeaseExpired

MOST_SESSIONS = 10_000
"""Sessions that a channel in memory keeps at once."""
_MINUTE_MS = 60_000
_LITTLE = 64


def granted_minutes(suggested: int) -> int:
    """The lease that is given when one is suggested."""
    return min(suggested, LONGEST_LEASE_MINUTES)


class Leases:
    """The sessions of channels in memory and when each ends; bounded by MOST_SESSIONS."""

    def __init__(self, *, most: int = MOST_SESSIONS) -> None:
        self._until: dict[bytes, int] = {}
        self._due: list[tuple[int, bytes]] = []
        self._most = most

    def grant(self, session: bytes, minutes: int, now_ms: int) -> int:
        """Begins or renews a session; the minutes granted.

        Raises ChannelUnavailable when there are too many.
        """
        self._forget_expired(now_ms)
        if session not in self._until and len(self._until) >= self._most:
            raise ChannelUnavailable(
                f"{self._most} sessions are open", code="channel.too_many_sessions"
            )
        granted = granted_minutes(minutes)
        self._until[session] = now_ms + granted * _MINUTE_MS
        heapq.heappush(self._due, (self._until[session], session))
        if len(self._due) > 2 * len(self._until) + _LITTLE:
            # Ends that no longer hold, of sessions that were renewed or have ended, are dropped.
            self._due = [(until_ms, one) for one, until_ms in self._until.items()]
            heapq.heapify(self._due)
        return granted

    def check(self, session: bytes, now_ms: int) -> None:
        """Raises LeaseExpired unless the session is alive."""
        self._forget_expired(now_ms)
        if session not in self._until:
            raise LeaseExpired(
                "the lease of this session has run out, and this channel keeps nothing longer",
                hint="begin again with a query and ask for a longer lease",
            )

    def end(self, session: bytes) -> None:
        """Ends a session; its tokens are refused from now on."""
        self._until.pop(session, None)

    def __len__(self) -> int:
        return len(self._until)

    def _forget_expired(self, now_ms: int) -> None:
        while self._due and self._due[0][0] <= now_ms:
            due, session = heapq.heappop(self._due)
            if self._until.get(session) == due:  # otherwise renewed or ended meanwhile
                del self._until[session]
