"""The state machine of a listener, its cache and its settings. Pure: time, chance and answers are
arguments. [CH-7]

Positions of a channel only grow. So an event that is repeated or late is recognised by its position
and dropped. There are two leases: the local one lasts as long as the application wishes; the remote
one is short and renewed by every request. One request is pending at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

import msgspec

from rapport.channel.agents.connection import (
    FIRST_PAUSE_MS,
    LONGEST_PAUSE_MS,
    TIMEOUT_SECONDS,
    CallBarred,
    CallFailed,
    Reason,
    pause_ms,
)
from rapport.channel.agents.courier import NothingToSend, PauseSending
from rapport.channel.requests.request import (
    DEFAULT_LEASE_MINUTES,
    LONGEST_WAIT_MS,
    MOST_MESSAGES,
    Batch,
)
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, Gap, StoredEvent, clip_gaps

_MOST_MARKS = 4_096
_OVERHEAD_BYTES = 512
"""Charged per event besides its data: the envelope."""
_MINUTE_MS = 60_000
_LONGEST_IDLE_PAUSE_MS = 5_000
_MOST_GAPS = 1_000
Activity = Literal["asking", "pausing", "full", "resting", "stopped", "closed"]
Mode = Literal["push", "pull"]
Acknowledging = Literal["automatic", "explicit"]


class ReceivedEvent(msgspec.Struct, frozen=True, gc=False):
    """A received event: its position in the channel (from 1), when the channel received it (ms
    UTC), and the listener's handback text.
    """

    position: int
    received: int
    event: Event
    handback: str = ""


class ListenerCache:
    """Undelivered events and the application's progress; its owner bounds it by `has_room`."""

    def __init__(self, acknowledged: int, *, most_events: int, most_bytes: int) -> None:
        self.acknowledged = self.newest = acknowledged
        """Marks: everything up to here is acknowledged; was put in or passed over."""
        self.waiting_bytes = 0
        self._most_events, self._most_bytes = most_events, most_bytes
        self._waiting: deque[ReceivedEvent] = deque()
        self._sets: deque[tuple[int, str]] = deque()
        """For sets not wholly acknowledged: last position, token."""

    def __len__(self) -> int:
        return len(self._waiting)

    def has_room(self, events: int) -> bool:
        fits = len(self._waiting) + events <= self._most_events
        return fits and self.waiting_bytes < self._most_bytes

    def put(self, token: str, events: Sequence[StoredEvent], handback: str) -> int:
        """Adds the set of a token; returns how many of its events are new."""
        fresh = [
            ReceivedEvent(one.position, one.received, one.event, handback)
            for one in events
            if one.position > self.newest
        ]
        if fresh:
            self._waiting.extend(fresh)
            self.waiting_bytes += sum(map(_size, fresh))
            self.newest = fresh[-1].position
            self._sets.append((self.newest, token))
            self._thin_out()
        return len(fresh)

    def take(self, count: int) -> list[ReceivedEvent]:
        taken = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        self.waiting_bytes -= sum(map(_size, taken))
        return taken

    def give_back(self, events: Sequence[ReceivedEvent]) -> None:
        """Puts events that were just taken, and not delivered, in front again."""
        kept = [one for one in events if one.position > self.acknowledged]
        self._waiting.extendleft(reversed(kept))
        self.waiting_bytes += sum(map(_size, kept))

    def handed(self) -> int:
        """The mark before the first undelivered event."""
        return self._waiting[0].position - 1 if self._waiting else self.newest

    def mark_of(self, received: ReceivedEvent) -> int:
        """The mark once an event is done: before it while others with its position wait, into which
        an interpretation has split one event of the channel.
        """
        is_split = bool(self._waiting) and self._waiting[0].position == received.position
        return received.position - is_split

    def acknowledge(self, position: int) -> None:
        """Marks everything up to a position as done, including undelivered and future events."""
        if position <= self.acknowledged:
            return
        self.acknowledged = position
        self.newest = max(self.newest, position)
        while self._waiting and self._waiting[0].position <= position:
            self.take(1)
        while self._sets and self._sets[0][0] <= position:
            self._sets.popleft()

    def open_token(self) -> str:
        """The token that gives everything unacknowledged again; empty when nothing is open."""
        return self._sets[0][1] if self._sets else ""

    def _thin_out(self) -> None:
        """Drops marks of an application that acknowledges seldom; no events are lost, as an earlier
        token serves as well.
        """
        if len(self._sets) > _MOST_MARKS:
            sets = list(self._sets)
            # Of each pair the earlier token covers the later set too.
            merged = [
                (later[0], earlier[1])
                for earlier, later in zip(sets[::2], sets[1::2], strict=False)
            ]
            self._sets = deque(merged + (sets[-1:] if len(sets) % 2 else []))


def _size(one: ReceivedEvent) -> int:
    return len(one.event.data) + _OVERHEAD_BYTES


class BatchReceived(msgspec.Struct, frozen=True):
    """The source answered with a batch."""

    batch: Batch


class LeaseEnded(msgspec.Struct, frozen=True):
    """The source keeps nothing beyond a lease, and the lease has run out."""

    reason: Reason


SourceAnswer = BatchReceived | LeaseEnded | CallFailed | CallBarred


class RequestNow(msgspec.Struct, frozen=True):
    token: str
    """Empty: begin with the query."""
    seen: bool = False
    """The set of this token is here already; how does it go on?"""
    wait_ms: int = 0
    keeps_alive: bool = False
    """Only renews the lease: there is no room for events."""
    ends: bool = False
    """Notifies the source that the session ends."""


class CacheFull(msgspec.Struct, frozen=True):
    """No request until there is room, or until this time."""

    until_ms: int | None


class ResumePoint(msgspec.Struct, frozen=True):
    """Where to resume after a crash: request `token` (again) and drop events up to `position`."""

    token: str = ""
    seen: bool = False
    position: int = 0


Step = RequestNow | PauseSending | CacheFull | NothingToSend


class ListenerMachine:
    """Holds token, leases and pauses, and feeds the cache."""

    def __init__(
        self,
        cache: ListenerCache,
        resume_point: ResumePoint,
        *,
        batch_events: int,
        wait_ms: int,
        first_pause_ms: int = FIRST_PAUSE_MS,
        longest_pause_ms: int = LONGEST_PAUSE_MS,
    ) -> None:
        self.cache = cache
        self.token, self.seen = resume_point.token, resume_point.seen
        self.lease_until_ms: int | None = None
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
        self._gaps_until = resume_point.position
        self._batch_events, self._wait_ms = batch_events, wait_ms
        self._first_pause, self._longest_pause = first_pause_ms, longest_pause_ms
        self._renew_at_ms: int | None = None
        self._pending: RequestNow | None = None
        self._asked_at_ms = self._number = self._failures = self._idle = 0
        self._ended = False

    @property
    def is_pending(self) -> bool:
        return self._pending is not None

    def resume_point(self) -> ResumePoint:
        """The position to save: everything before it is acknowledged."""
        token = self.cache.open_token()
        if token:
            return ResumePoint(token, False, self.cache.acknowledged)
        return ResumePoint(self.token, self.seen, self.cache.acknowledged)

    def is_leased(self, now_ms: int) -> bool:
        return self.lease_until_ms is None or now_ms < self.lease_until_ms

    def renew(self, until_ms: int | None) -> None:
        """Sets the local lease; an ended one continues where it stopped."""
        self.lease_until_ms, self._ended = until_ms, False

    def next_step(self, now_ms: int) -> Step:
        if self._pending is not None or self.stopped:
            return NothingToSend()
        if not self.is_leased(now_ms):
            # Sent once, as a courtesy: an unreachable source ends the session by itself.
            return (
                NothingToSend()
                if self._ended or not self.token
                else RequestNow(self.token, ends=True)
            )
        if self.resume_at_ms is not None:
            if now_ms < self.resume_at_ms:
                return PauseSending(self.resume_at_ms)
            self.resume_at_ms = None
        if self.cache.has_room(self._batch_events):
            # The opening is answered at once: from then on there is a position to resume from.
            return RequestNow(
                self.token, self.seen, self._longest_wait(now_ms) if self.token else 0
            )
        return self._keep_alive(now_ms)

    def begin(self, ask: RequestNow, now_ms: int) -> int:
        """Records that a request is being sent; returns its number."""
        self._pending, self._asked_at_ms = ask, now_ms
        self._number += 1
        return self._number

    def answered(self, number: int, answer: SourceAnswer, now_ms: int, chance: float) -> None:
        """Applies an answer. Answers to earlier requests, and repeated ones, change nothing."""
        ask = self._pending
        if number != self._number or ask is None:
            return
        self._pending = None
        if ask.ends:
            self._ended = True
            return
        match answer:
            case BatchReceived(batch) if ask.token and batch.current_token != ask.token:
                strange = Reason("http.strange_answer", "the source answered with another set")
                self._fail(CallFailed(strange), now_ms, chance)
            case BatchReceived(batch):
                self._take_in(ask, batch, now_ms, chance)
            case LeaseEnded(reason):
                self._begin_again(reason)
            case CallBarred(reason):
                self.stopped, self.trouble = True, reason
            case CallFailed():
                self._fail(answer, now_ms, chance)

    def resume(self) -> None:
        """Requests again at once, after a stop or in a pause."""
        self.stopped, self.resume_at_ms, self._failures, self._idle = False, None, 0, 0

    def abandon_request(self, reason: Reason, resume_at_ms: int) -> None:
        """Drops the pending request and continues later."""
        self._pending, self.trouble, self.resume_at_ms = None, reason, resume_at_ms

    def _take_in(self, ask: RequestNow, batch: Batch, now_ms: int, chance: float) -> None:
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
        """Records gaps once: a set that is requested again names them again."""
        for gap in clip_gaps(gaps, self._gaps_until + 1):
            self.gaps.append(gap)
            self.unreadable += gap.last - gap.first + 1
            self._gaps_until = gap.last

    def _rest_if_hasty(self, ask: RequestNow, now_ms: int, chance: float) -> None:
        """Pauses after a source that answers "nothing new" without having waited."""
        waited_ms = now_ms - self._asked_at_ms
        if not ask.token or waited_ms >= max(ask.wait_ms // 2, self._first_pause):
            self._idle = 0
            return
        longest = min(self._longest_pause, _LONGEST_IDLE_PAUSE_MS)
        self.resume_at_ms = now_ms + pause_ms(self._idle, self._first_pause, longest, chance)
        self._idle += 1

    def _begin_again(self, reason: Reason) -> None:
        """Restarts from the query. Only a source in memory reports an ended lease, and only while
        it is the same process: its positions continue, so the query brings just the missing events.
        """
        self.token, self.seen, self.trouble = "", False, reason
        self.begun_again += 1

    def _fail(self, answer: CallFailed, now_ms: int, chance: float) -> None:
        self.trouble = answer.reason
        self.resume_at_ms = now_ms + pause_ms(
            self._failures, self._first_pause, self._longest_pause, chance, answer.retry_after_ms
        )
        self._failures += 1

    def _keep_alive(self, now_ms: int) -> Step:
        if self._renew_at_ms is None or not self.token or not self.remote_minutes:
            return CacheFull(self.lease_until_ms)
        if now_ms >= self._renew_at_ms:
            return RequestNow(self.token, seen=True, keeps_alive=True)
        ends = [at for at in (self._renew_at_ms, self.lease_until_ms) if at is not None]
        return CacheFull(min(ends))

    def _longest_wait(self, now_ms: int) -> int:
        """Never beyond the local lease, nor beyond half of the remote one."""
        granted = (self.remote_minutes or DEFAULT_LEASE_MINUTES) * _MINUTE_MS // 2
        wait = min(self._wait_ms, granted)
        return wait if self.lease_until_ms is None else min(wait, self.lease_until_ms - now_ms)


class ListenerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults suit a program beside a node as well as a remote one."""

    most_events: int = 10_000
    most_bytes: int = 16 * 1024 * 1024
    """Most undelivered events, and their bytes (one set, 8 MiB or a single larger event, may be
    added). Above that nothing is requested: memory is bounded, and the source keeps the rest.
    """
    batch_events: int = 500
    """Events per request. More is faster on slow lines; a lost answer repeats all of them."""
    wait_seconds: float = 30.0
    """How long the source may hold a request while there is nothing new: longer means fewer
    requests, shorter passes proxies that close idle connections. At most a minute.
    """
    remote_lease_minutes: int = DEFAULT_LEASE_MINUTES
    """How long a source in memory keeps our session when we cannot reach it."""
    first_pause_ms: int = FIRST_PAUSE_MS
    longest_pause_ms: int = LONGEST_PAUSE_MS
    """The pause doubles after each failure, less up to a half by chance."""
    request_seconds: float = TIMEOUT_SECONDS
    """How long an answer may be late."""
    attempts: int = 3
    """How often a callback is called with an event before it counts as failed."""
    retry_pause_ms: int = 100
    """Pause before the second attempt; doubles with each further one."""
    save_every_ms: int = 50
    """How often the position is saved while events arrive continuously: events handled since then
    are delivered again after a kill. 0 = after each event, at the cost of two disk syncs.
    """


class ListenerStatus(msgspec.Struct, frozen=True, kw_only=True):
    activity: Activity
    mode: Mode
    waiting: int
    """Events in the cache."""
    handed_over: int
    """Events delivered in this run."""
    acknowledged: int
    """Position up to which everything is done."""
    failed: int
    """Events whose callback failed, and that were kept."""
    gone: int
    """Sets of which messages were taken or trimmed before they arrived."""
    begun_again: int
    """Sessions that ran out at the source and were begun again."""
    trouble: Reason | None
    next_try_in_ms: int
    lease_left_ms: int | None
    """The rest of the local lease; None = it lasts as long as the listener."""
    remote_lease_minutes: int
    """The remote lease as it was granted last."""
    unreadable: int = 0
    """Positions that the source could not read; `Listener.gaps` names them."""


def check_settings(settings: ListenerSettings) -> None:
    """Raises InvalidInput for a number that cannot work."""
    limits = {
        "most_events": (settings.batch_events, 2**53),
        "most_bytes": (1, 2**53),
        "batch_events": (1, MOST_MESSAGES),
        "wait_seconds": (0, LONGEST_WAIT_MS / 1_000),
        "remote_lease_minutes": (1, 2**53),
        "first_pause_ms": (1, 2**53),
        "longest_pause_ms": (1, 2**53),
        "request_seconds": (0.001, 2**53),
        "attempts": (1, 2**53),
        "retry_pause_ms": (0, 2**53),
        "save_every_ms": (0, 2**53),
    }
    for name, (low, high) in limits.items():
        if not low <= getattr(settings, name) <= high:
            raise InvalidInput(
                f"{name} cannot be {getattr(settings, name)}",
                code="settings.out_of_range",
                hint=f"{low} to {high}" if high < 2**53 else f"at least {low}",
            )
