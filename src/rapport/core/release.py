"""Release: raw events that were quarantined or misinterpreted are interpreted again. [ME-16]

Mediation releases events, policy re-evaluates the readings; the two communicate through the channel
`releases`. This module holds their shared event types, headers and the rule for corrections.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import msgspec

from rapport.core.event import Event

RELEASES = "releases"
"""The channel of requests, released batches and re-evaluations; states derive from it."""

RELEASED = "released"
"""Header of a reading from quarantine: the time of its release."""
CORRECTS = "corrects"
"""Header of a reading that replaces another one: the id of the reading it corrects."""
RELEASE_HEADERS = frozenset((RELEASED, CORRECTS))
CARRIED = "carried"
"""Header of a reading that arrived by gossip: the device that carried it. Policies re-evaluate it
when it was too late for them.
"""
LATE = "late"
"""Header of a result of a re-evaluation: the alarm is late."""
REEVALUATION = "secondlook"
"""Header of a result of a re-evaluation: the release that caused it."""
HISTORY = "history"
"""Header of a raw event imported as history, of its readings and of their detections: evaluated
apart from the live readings, as of the past.
"""
NOTIFY = "notify"
"""Header of a detection whose actions are carried out at any age because an operator requested it;
on an imported event it requests this for its detections.
"""

RELEASE_REQUESTED = "rapport.mediation.holding.release"
BATCH_RELEASED = "rapport.mediation.released"
RELEASE_DONE = "rapport.mediation.release_done"
REEVALUATED = "rapport.policy.replaying.second_look"


def history_headers(*, notify: bool) -> dict[str, str]:
    """The headers of an event imported as history.

    >>> history_headers(notify=False)
    {'history': 'true'}
    """
    return {HISTORY: "true", NOTIFY: "true"} if notify else {HISTORY: "true"}


def without_release_headers(reading: Event) -> Event:
    """The reading without headers that only a release may set; producers may have sent them."""
    headers = reading.headers
    if RELEASE_HEADERS.isdisjoint(headers):
        return reading
    kept = {name: text for name, text in headers.items() if name not in RELEASE_HEADERS}
    return msgspec.structs.replace(reading, headers=kept)


class ReleaseRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which raw events to interpret again: quarantined ones (`held`), or (`again`) all that were
    received in a period.

    Empty criteria match everything. `through` is the last position included, of `quarantine` or of
    the raw channel.
    """

    what: Literal["held", "again"] = "held"
    source: str = ""
    reason: str = ""
    ids: tuple[str, ...] = ()
    since_ms: int = 0
    until_ms: int = 2**62
    through: int = 0
    by: str = ""


class TouchedReadings(msgspec.Struct, kw_only=True):
    """The readings that a release changed: their streams, their period (of a corrected reading the
    former time too), and the last position of `events` afterwards.
    """

    streams: list[str] = []
    first_ms: int | None = None
    last_ms: int | None = None
    through: int = 0

    def touch(self, stream: str, time_ms: int) -> None:
        """Adds a reading."""
        if stream not in self.streams:
            self.streams = sorted((*self.streams, stream))
        self.first_ms = time_ms if self.first_ms is None else min(self.first_ms, time_ms)
        self.last_ms = time_ms if self.last_ms is None else max(self.last_ms, time_ms)

    def merge(self, other: TouchedReadings) -> None:
        for stream in other.streams:
            for time_ms in (other.first_ms, other.last_ms):
                if time_ms is not None:
                    self.touch(stream, time_ms)
        self.through = max(self.through, other.through)


class ReleasedBatch(TouchedReadings, kw_only=True):
    """The result for some raw events of one channel; appended after their readings."""

    release: str
    channel: str
    upto: int
    """The last raw position processed."""
    released: list[int] = []
    """Raw positions whose events had no readings before."""
    mended_readings: list[int] = []
    """Raw positions whose readings policies could not use; they were corrected."""
    rejected: list[int] = []
    """Raw positions whose events still cannot be interpreted."""
    corrected: dict[str, str] = {}
    """Ids of replacement readings by the id of the corrected reading."""
    unchanged: int = 0


class ReleaseDone(TouchedReadings, kw_only=True):
    """The end of a release, or of an import of history."""

    release: str
    history: bool = False
    """Whether the readings were imported as history, unseen by live policies."""
    since: int = 0
    """The position of the first imported reading in `events`."""
    notify: bool = False
    """Whether actions of detections are carried out at any age."""
    released: int = 0
    rejected: int = 0
    corrected: int = 0
    unchanged: int = 0


class ReevaluationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the re-evaluation after a release."""

    release: str
    policies: list[str] = []
    first_ms: int | None = None
    until_ms: int | None = None
    late_detections: int = 0
    history_detections: int = 0
    """Detections in readings that were imported as history."""
    undecided: int = 0
    unsupported: int = 0
    supported_again: int = 0
    incomplete: list[str] = []
    """Policies for which the log no longer holds all the history they need; the first part of the
    period was not evaluated.
    """


class Corrections:
    """The corrections of readings, added in log order; only the newest correction of a reading is
    in force. Memory grows with the corrections, not with the readings.

    Re-evaluation, `rapport replay` and the Spark jobs share this rule.

    >>> corrections = Corrections()
    >>> corrections.note("weather", "1~a", "1"); corrections.note("weather", "1~b", "1")
    >>> pairs = (("1", ""), ("1~a", "1"), ("1~b", "1"))
    >>> [corrections.stands("weather", id, of) for id, of in pairs]
    [False, False, True]
    """

    def __init__(self) -> None:
        self._replacements: dict[tuple[str, str], str] = {}
        self.original_of: dict[str, str] = {}
        """Ids of corrected readings by the id of the correction."""

    def note(self, source: str, id: str, original: str) -> None:
        """Adds a reading that corrects `original`; the last one added is in force."""
        self._replacements[source, original] = id
        self.original_of[id] = original

    def stands(self, source: str, id: str, original: str = "") -> bool:
        """Whether no other reading replaces this one; `original` is the reading it corrects."""
        return self._replacements.get((source, original or id), id) == id

    def sources(self) -> Collection[str]:
        """The sources with corrected readings."""
        return {source for source, _id in self._replacements}

    def superseded(self) -> Collection[str]:
        """Ids of readings that another one replaces."""
        standing = set(self._replacements.values())
        every = {id for _source, id in self._replacements} | self.original_of.keys()
        return every - standing
