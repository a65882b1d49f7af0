"""What a listener does next, and what an answer means. Pure: time, chance and answers are
arguments. [CH-7]

Two leases: the local one lasts as long as the application wants; the remote one is short and kept
alive by asking. One request is under way at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from rapport.channel.agents.listener_cache import Cache
from rapport.channel.agents.window import (
    FIRST_PAUSE_MS,
    LONGEST_PAUSE_MS,
    Barred,
    Failed,
    Idle,
    Pause,
    Reason,
    pause_ms,
)
from rapport.channel.requesting.batch import DEFAULT_LEASE_MINUTES, Batch
from rapport.core.event import Gap, clip_gaps

_MINUTE_MS = 60_000
_LONGEST_IDLE_PAUSE_MS = 5_000
_MOST_GAPS = 1_000


class Got(msgspec.Struct, frozen=True):
    """The source answered with a batch."""

    batch: Batch


class Expired(msgspec.Struct, frozen=True):
    """The source keeps nothing beyond a lease, and the lease has run out."""

    reason: Reason


Answer = Got | Expired | Failed | Barred


class Ask(msgspec.Struct, frozen=True):
    """A request to be made now."""

    token: str
    """Empty: begin with the query."""
    seen: bool = False
    """The set of this token is here already; how does it go on?"""
    wait_ms: int = 0
    keeps_alive: bool = False
    """Only for the lease: there is no room for events."""
    ends: bool = False
    """Tells the source that nothing more will be asked."""


class Full(msgspec.Struct, frozen=True):
    """Nothing is asked until there is room, or until this time."""

    until_ms: int | None


class StandsAt(msgspec.Struct, frozen=True):
    """Where to go on after a crash: ask `token` (again) and drop what is not after `position`."""

    token: str = ""
    seen: bool = False
    position: int = 0


Step = Ask | Pause | Full | Idle


class Listening:
    """Holds token, leases and pauses, and feeds the cache."""

    def __init__(
        self,
        cache: Cache,
        stands_at: StandsAt,
        *,
        batch_events: int,
        wait_ms: int,
        lease_until_ms: int | None = None,
        first_pause_ms: int = FIRST_PAUSE_MS,
        longest_pause_ms: int = LONGEST_PAUSE_MS,
    ) -> None:
        self.cache = cache
        self.token, self.seen = stands_at.token, stands_at.seen
        self.lease_until_ms = lease_until_ms
        """End of the local lease; None = as long as the listener is open."""
        self.remote_minutes = 0
        """The remote lease, as the source granted it last."""
        self.trouble: Reason | None = None
        self.stopped = False
        self.resume_at_ms: int | None = None
        self.gone = self.begun_again = 0
        """Sets of which something was gone; sessions that ran out and were begun again."""
        self.gaps: deque[Gap] = deque(maxlen=_MOST_GAPS)
        """Positions that the source could not read, oldest first."""
        self.unreadable = 0
        """How many positions these were, also those no longer listed."""
        self._gaps_until = stands_at.position
        self._batch_events, self._wait_ms = batch_events, wait_ms
        self._first_pause, self._longest_pause = first_pause_ms, longest_pause_ms
        self._renew_at_ms: int | None = None
        self._asked: Ask | None = None
        self._asked_at_ms = self._number = self._failures = self._idle = 0
        self._ended = False

    @property
    def is_asking(self) -> bool:
        """Whether a request is under way."""
        return self._asked is not None

    def stands_at(self) -> StandsAt:
        """The place to be kept: nothing that is not acknowledged lies before it."""
        token = self.cache.open_token()
        if token:
            return StandsAt(token, False, self.cache.acknowledged)
        return StandsAt(self.token, self.seen, self.cache.acknowledged)

    def is_leased(self, now_ms: int) -> bool:
        """Whether the local lease lasts."""
        return self.lease_until_ms is None or now_ms < self.lease_until_ms

    def renew(self, until_ms: int | None) -> None:
        """Sets the local lease; goes on where it stood when it had run out."""
        self.lease_until_ms, self._ended = until_ms, False

    def next_step(self, now_ms: int) -> Step:
        """What to do now."""
        if self._asked is not None or self.stopped:
            return Idle()
        if not self.is_leased(now_ms):
            # Told once, as a courtesy: a source that is not reached ends the session by itself.
            return Idle() if self._ended or not self.token else Ask(self.token, ends=True)
        if self.resume_at_ms is not None:
            if now_ms < self.resume_at_ms:
                return Pause(self.resume_at_ms)
            self.resume_at_ms = None
        if self.cache.has_room(self._batch_events):
            # The opening is answered at once: from then on there is a place to go on from.
            return Ask(self.token, self.seen, self._longest_wait(now_ms) if self.token else 0)
        return self._keep_alive(now_ms)

    def begin(self, ask: Ask, now_ms: int) -> int:
        """Notes that a request is on its way; returns its number."""
        self._asked, self._asked_at_ms = ask, now_ms
        self._number += 1
        return self._number

    def answered(self, number: int, answer: Answer, now_ms: int, chance: float) -> None:
        """Takes in an answer. Answers to earlier requests, and second ones, change nothing."""
        ask = self._asked
        if number != self._number or ask is None:
            return
        self._asked = None
        if ask.ends:
            self._ended = True
            return
        match answer:
            case Got(batch) if ask.token and batch.current_token != ask.token:
                strange = Reason("http.strange_answer", "the source answered with another set")
                self._fail(Failed(strange), now_ms, chance)
            case Got(batch):
                self._take_in(ask, batch, now_ms, chance)
            case Expired(reason):
                self._begin_again(reason)
            case Barred(reason):
                self.stopped, self.trouble = True, reason
            case Failed():
                self._fail(answer, now_ms, chance)

    def resume(self) -> None:
        """Asks again at once, after a stop or in the middle of a pause."""
        self.stopped, self.resume_at_ms, self._failures, self._idle = False, None, 0, 0

    def stumble(self, reason: Reason, resume_at_ms: int) -> None:
        """Forgets the request under way and goes on later."""
        self._asked, self.trouble, self.resume_at_ms = None, reason, resume_at_ms

    # --- in detail --------------------------------------------------------------------------------

    def _take_in(self, ask: Ask, batch: Batch, now_ms: int, chance: float) -> None:
        self._failures, self.trouble = 0, None
        self.remote_minutes = batch.lease_minutes
        self._renew_at_ms = now_ms + batch.lease_minutes * _MINUTE_MS // 2
        if ask.keeps_alive:
            return
        self._take_in_gaps(batch.gaps)
        if not ask.seen:
            self.gone += batch.gone
            self.cache.put(batch.current_token, batch.events, batch.handback)
        # Of a set that is gone and has nothing after it, nothing is left: it counts as seen.
        self.token = batch.next_token or batch.current_token
        self.seen = batch.next_token is None
        if batch.next_token is None and not batch.events:
            self._rest_if_hasty(ask, now_ms, chance)
        else:
            self._idle = 0

    def _take_in_gaps(self, gaps: Sequence[Gap]) -> None:
        """Notes gaps once: a set that is asked for again tells of them again."""
        for gap in clip_gaps(gaps, self._gaps_until + 1):
            self.gaps.append(gap)
            self.unreadable += gap.last - gap.first + 1
            self._gaps_until = gap.last

    def _rest_if_hasty(self, ask: Ask, now_ms: int, chance: float) -> None:
        """A source that says "nothing new" without having waited is not asked in a circle."""
        waited_ms = now_ms - self._asked_at_ms
        if not ask.token or waited_ms >= max(ask.wait_ms // 2, self._first_pause):
            self._idle = 0
            return
        longest = min(self._longest_pause, _LONGEST_IDLE_PAUSE_MS)
        self.resume_at_ms = now_ms + pause_ms(self._idle, self._first_pause, longest, chance)
        self._idle += 1

    def _begin_again(self, reason: Reason) -> None:
        """Only a source in memory says so, and only while it is the same one as before: its
        positions go on, so the query from its beginning brings what is missing, and only that.
        """
        self.token, self.seen, self.trouble = "", False, reason
        self.begun_again += 1

    def _fail(self, answer: Failed, now_ms: int, chance: float) -> None:
        self.trouble = answer.reason
        self.resume_at_ms = now_ms + pause_ms(
            self._failures, self._first_pause, self._longest_pause, chance, answer.retry_after_ms
        )
        self._failures += 1

    def _keep_alive(self, now_ms: int) -> Step:
        if self._renew_at_ms is None or not self.token or not self.remote_minutes:
            return Full(self.lease_until_ms)
        if now_ms >= self._renew_at_ms:
            return Ask(self.token, seen=True, keeps_alive=True)
        ends = [at for at in (self._renew_at_ms, self.lease_until_ms) if at is not None]
        return Full(min(ends))

    def _longest_wait(self, now_ms: int) -> int:
        """Never beyond the local lease, nor beyond half of the remote one."""
        granted = (self.remote_minutes or DEFAULT_LEASE_MINUTES) * _MINUTE_MS // 2
        wait = min(self._wait_ms, granted)
        return wait if self.lease_until_ms is None else min(wait, self.lease_until_ms - now_ms)
