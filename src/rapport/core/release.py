"""A release: raw events that were held back, or wrongly understood, get their meaning again.
[ME-16]

The words that mediation, which releases, and policy, which looks again, share through the channel
`releases`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rapport.core.event import Event

RELEASES = "releases"
"""The channel of what was asked, done and looked at again; states are derived from it."""

RELEASED = "released"
"""Header of a reading that came late because it was held back: when it was released."""
CORRECTS = "corrects"
"""Header of a reading that stands in for another one: the id of the reading it corrects."""
CARRIED = "carried"
"""Header of a reading that came by gossip, however late: the device that carried it. Policies look
again when it was too late for them.
"""
LATE = "late"
"""Header of what a second look found: the alarm is late."""
SECOND_LOOK = "secondlook"
"""Header of what a second look found: the release that it followed."""
HISTORY = "history"
"""Header of a raw event that was imported as history, of its readings, and of what policies find
with them: evaluated apart from the live readings, as of the past.
"""
NOTIFY = "notify"
"""Header of a detection whose actions are carried out however old it is, since an operator asked
for that; of an imported event, that this is asked for its detections.
"""

ASKED = "rapport.mediation.quarantine.release"
BATCH_DONE = "rapport.mediation.released"
DONE = "rapport.mediation.release_done"
LOOKED = "rapport.policy.replaying.second_look"


def history_marks(*, notify: bool) -> dict[str, str]:
    """The headers of what is imported as history.

    >>> history_marks(notify=False)
    {'history': 'true'}
    """
    return {HISTORY: "true", NOTIFY: "true"} if notify else {HISTORY: "true"}


def unmarked(reading: Event) -> Event:
    """A reading without marks that only a release makes; its raw event may have come with some."""
    headers = reading.headers
    if RELEASED not in headers and CORRECTS not in headers:
        return reading
    kept = {name: text for name, text in headers.items() if name not in (RELEASED, CORRECTS)}
    return msgspec.structs.replace(reading, headers=kept)


class Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to give its meaning again: what is held back, or (`again`) what was received in a time.

    What is left empty fits any. `through` is the last position that counts, of `quarantine` or of
    the raw channel: what comes later was not asked for.
    """

    what: Literal["held", "again"] = "held"
    source: str = ""
    reason: str = ""
    ids: tuple[str, ...] = ()
    since_ms: int = 0
    until_ms: int = 2**62
    through: int = 0
    by: str = ""


class Span(msgspec.Struct, kw_only=True):
    """What readings a release touched: their streams, the times they span (of a corrected reading
    the former time too), and how far `events` went afterwards.
    """

    streams: list[str] = []
    first_ms: int | None = None
    last_ms: int | None = None
    through: int = 0

    def touch(self, stream: str, time_ms: int) -> None:
        """Takes in a reading."""
        if stream not in self.streams:
            self.streams = sorted((*self.streams, stream))
        self.first_ms = time_ms if self.first_ms is None else min(self.first_ms, time_ms)
        self.last_ms = time_ms if self.last_ms is None else max(self.last_ms, time_ms)

    def take_in(self, other: Span) -> None:
        """Takes in another span."""
        for stream in other.streams:
            for time_ms in (other.first_ms, other.last_ms):
                if time_ms is not None:
                    self.touch(stream, time_ms)
        self.through = max(self.through, other.through)


class BatchDone(Span, kw_only=True):
    """What became of some raw events of one channel: appended after the readings were."""

    release: str
    channel: str
    upto: int
    """The last raw position looked at."""
    released: list[int] = []
    """Raw positions whose events have readings now that had none."""
    mended_readings: list[int] = []
    """Raw positions whose readings policies could not use, and which were corrected."""
    rejected: list[int] = []
    """Raw positions whose events still have no meaning."""
    corrected: dict[str, str] = {}
    """Of each corrected reading's id the id of the one that stands in for it."""
    unchanged: int = 0


class ReleaseDone(Span, kw_only=True):
    """The end of a release, or of an import of history."""

    release: str
    history: bool = False
    """The readings were imported as history: live policies have not seen them."""
    since: int = 0
    """Of imported readings the position of the first in `events`."""
    notify: bool = False
    """Actions of what is found are carried out however old it is."""
    released: int = 0
    rejected: int = 0
    corrected: int = 0
    unchanged: int = 0


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """What the second look after a release found."""

    release: str
    policies: list[str] = []
    first_ms: int | None = None
    until_ms: int | None = None
    late_detections: int = 0
    history_detections: int = 0
    """Found with readings that were imported as history."""
    undecided: int = 0
    unsupported: int = 0
    supported_again: int = 0
    incomplete: list[str] = []
    """Policies for which the log no longer holds all the history they need: what lies too near its
    beginning was not judged."""
