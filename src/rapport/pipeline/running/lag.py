"""How far the jobs of a pipeline are behind: in events, and in the age of the oldest that waits.
[PI-12]
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from rapport.core.errors import InvalidInput, RapportError
from rapport.lake.bronze import exported_position
from rapport.lake.places import BRONZE, Lake
from rapport.pipeline.datasource.locations import Location, OpenChannels, location_of
from rapport.pipeline.datasource.offsets import PositionRange
from rapport.pipeline.datasource.source_options import LocationOptions
from rapport.pipeline.lake.silver import silver_due

EVENTS = "events"


class Behind(msgspec.Struct, frozen=True):
    """What waits for a job."""

    events: int = 0
    ms: int = 0


class Lag:
    """Measures by the channels and the lake of a site; reads a few events, changes nothing."""

    def __init__(self, site: Path, lake: Path) -> None:
        self._lake = Lake.at(lake)
        self._place: Location = location_of(LocationOptions(site=str(site)))

    def of_live(self, reached: int, now_ms: int) -> Behind:
        """Behind the end of `events`."""
        with self._opened() as opened:
            if opened is None:
                return Behind()
            last = opened.span(EVENTS).last
            return Behind(max(last - reached, 0), _age(opened, EVENTS, reached, last, now_ms))

    def of_export(self, now_ms: int) -> Behind:
        """What the channels hold that the lake has not."""
        events = oldest = 0
        with self._opened() as opened:
            if opened is None:
                return Behind()
            for name in opened.names():
                last, done = opened.span(name).last, exported_position(self._lake, name)
                events += max(last - done, 0)
                oldest = max(oldest, _age(opened, name, done, last, now_ms))
        return Behind(events, oldest)

    def of_silver(self, now_ms: int) -> Behind:
        """What bronze has that silver has not."""
        due = silver_due(self._lake).positions
        oldest = 0
        with self._opened() as opened:
            for name, events in due.items():
                last = exported_position(self._lake, name)
                if opened is not None:
                    oldest = max(oldest, _age(opened, name, last - events, last, now_ms))
        return Behind(sum(due.values()), oldest)

    @contextmanager
    def _opened(self) -> Iterator[OpenChannels | None]:
        """The channels; None as long as there is no log."""
        with ExitStack() as stack:
            try:
                opened: OpenChannels | None = stack.enter_context(self._place.opened())
            except InvalidInput as error:
                if error.code != "channel.no_log":
                    raise
                opened = None
            yield opened

    def exported(self) -> int:
        """Events that the lake has of all channels."""
        return sum(exported_position(self._lake, name) for name in self._lake.names(BRONZE))


def _age(opened: OpenChannels, channel: str, after: int, last: int, now_ms: int) -> int:
    """Since when the first event after a position waits; one that was let go of does not."""
    if last <= after:
        return 0
    piece = PositionRange(channel, after, after + 1)
    try:
        for chunk in opened.chunks(piece, (), bare=True, passes_damage=True):
            for received in chunk.received:
                return max(now_ms - int(received), 0)
    except RapportError:
        return 0  # damage is told by the job that meets it
    return 0
