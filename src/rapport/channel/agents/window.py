"""The sliding window of the publisher agent: what to send next, and what an answer means. Pure.
[CH-5]

Two marks: last sent, last acknowledged. One request is under way at a time and always begins right
behind the last acknowledged event. So whatever is lost, doubled or late on the way, the sink never
sees an event before the ones ahead of it, and may drop everything up to the highest it has.
"""

from __future__ import annotations

import msgspec

MOST_EVENTS = 1_000
"""Events in one request at most: more saves little, and a lost answer repeats all of them."""
FIRST_PAUSE_MS = 200
LONGEST_PAUSE_MS = 30_000
_STEADY = 16
"""Requests taken in a row before one twice as large is tried again after a 413."""


class Reason(msgspec.Struct, frozen=True):
    """Why something was not done: a stable code, and a sentence."""

    code: str
    message: str


class Taken(msgspec.Struct, frozen=True):
    """The sink has all events of the request."""


class Refused(msgspec.Struct, frozen=True):
    """The sink will never take the request as it is: one of its events is bad."""

    reason: Reason


class TooBig(msgspec.Struct, frozen=True):
    """The request is larger than the sink takes."""

    reason: Reason


class Failed(msgspec.Struct, frozen=True):
    """No answer, or one that says nothing about the events. The sink may have them or not."""

    reason: Reason
    retry_after_ms: int | None = None
    """What the sink asked for, if it did."""


class Barred(msgspec.Struct, frozen=True):
    """The sink will take nothing from us until a person changes something."""

    reason: Reason


Answer = Taken | Refused | TooBig | Failed | Barred


class Ready(msgspec.Struct, frozen=True):
    """Events `first` to `last` may be sent; fewer from the front is fine. Then call `begin`."""

    first: int
    last: int


class Pause(msgspec.Struct, frozen=True):
    """Nothing may be sent before this time."""

    until_ms: int


class Idle(msgspec.Struct, frozen=True):
    """Nothing to do until there is a new event, an answer, or somebody resumes."""


class Moved(msgspec.Struct, frozen=True):
    """Everything up to `acknowledged` is settled; that very event was rejected if there is a
    reason.
    """

    acknowledged: int
    rejected: Reason | None = None


class Window:
    """Holds the two marks and how large the next request may be. Time and chance are arguments."""

    def __init__(
        self,
        acknowledged: int,
        *,
        most_events: int = MOST_EVENTS,
        first_pause_ms: int = FIRST_PAUSE_MS,
        longest_pause_ms: int = LONGEST_PAUSE_MS,
    ) -> None:
        self.acknowledged = self.sent = acknowledged
        self.trouble: Reason | None = None
        """Why the last request was not taken; None after one that was."""
        self.stopped = False
        """Whether nothing is sent until `resume`."""
        self.resume_at_ms: int | None = None
        self._most, self._first_pause, self._longest_pause = (
            most_events,
            first_pause_ms,
            longest_pause_ms,
        )
        self._size = self._ceiling = most_events
        self._suspected = 0
        """An event at or before this one, and after the acknowledged, is bad; 0 when none is."""
        self._number = self._failures = self._taken_in_row = 0

    def next_step(self, newest: int, now_ms: int) -> Ready | Pause | Idle:
        """What to do now, given the newest event there is."""
        if self.stopped or self.sent > self.acknowledged or newest <= self.acknowledged:
            return Idle()
        if self.resume_at_ms is not None:
            if now_ms < self.resume_at_ms:
                return Pause(self.resume_at_ms)
            self.resume_at_ms = None
        return Ready(self.acknowledged + 1, min(newest, self.acknowledged + self._limit()))

    def begin(self, last: int) -> int:
        """Notes that everything up to `last` is on its way; returns the number of the request."""
        self.sent = last
        self._number += 1
        return self._number

    def answered(self, number: int, answer: Answer, now_ms: int, chance: float) -> Moved | None:
        """Takes in an answer; what it settles has to be made durable by the caller.

        Answers to earlier requests, and second ones, change nothing. `chance` (0 to 1) spreads the
        pauses of many publishers that lost the same sink.
        """
        if number != self._number or self.sent == self.acknowledged:
            return None
        first, last = self.acknowledged + 1, self.sent
        self.sent = self.acknowledged
        alone = first == last
        match answer:
            case Taken():
                return self._take(last)
            case Refused(reason) | TooBig(reason) if alone:
                return self._settle_rejected(reason)
            case Refused():
                self._suspected, self._failures = last, 0
            case TooBig():
                self._size = self._ceiling = (last - self.acknowledged) // 2
                self._failures = self._taken_in_row = 0
            case Barred(reason):
                self.stopped, self.trouble = True, reason
            case Failed(reason, retry_after_ms):
                self.trouble = reason
                self.resume_at_ms = now_ms + pause_ms(
                    self._failures, self._first_pause, self._longest_pause, chance, retry_after_ms
                )
                self._failures += 1
        return None

    def resume(self) -> None:
        """Sends again at once, after a stop or in the middle of a pause."""
        self.stopped, self.resume_at_ms, self._failures = False, None, 0

    def _limit(self) -> int:
        """How many events the next request may hold: half of the stretch that has a bad one."""
        if self._suspected > self.acknowledged:
            return max((self._suspected - self.acknowledged) // 2, 1)
        return self._size

    def _take(self, last: int) -> Moved:
        self.acknowledged = self.sent = last
        self._failures, self.trouble = 0, None
        self._taken_in_row += 1
        if self._taken_in_row >= _STEADY and self._ceiling < self._most:
            self._ceiling, self._taken_in_row = min(self._ceiling * 2, self._most), 0
        self._size = min(self._size * 2, self._ceiling)
        return Moved(last)

    def _settle_rejected(self, reason: Reason) -> Moved:
        """One event alone was not taken. The next ones are tried in small requests first: where
        one is bad, many may be, and then each costs one request instead of a search.
        """
        self.acknowledged = self.sent = self.acknowledged + 1
        self._suspected, self._size, self._taken_in_row = 0, 1, 0
        self._ceiling = self._most
        self._failures, self.trouble = 0, None
        return Moved(self.acknowledged, reason)


def pause_ms(
    failures: int, first_ms: int, longest_ms: int, chance: float, asked_ms: int | None = None
) -> int:
    """How long to wait after a failure: what the other side asked for, or twice as long each time,
    less up to a half by chance (0 to 1).
    """
    if asked_ms is not None:
        return asked_ms
    return int(min(first_ms * 2 ** min(failures, 30), longest_ms) * (0.5 + chance / 2))
