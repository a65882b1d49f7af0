"""Where channels are: the files of a site, or the doors of a node. [PI-2]

Both are small values that travel to Spark's workers; whoever reads or writes opens what is needed
there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from rapport.channel.validation import is_reserved
from rapport.core.errors import UnknownName
from rapport.pipeline.sources.filters import Condition
from rapport.pipeline.sources.options import PlaceOptions
from rapport.pipeline.sources.planning import Piece, Span
from rapport.pipeline.sources.reading import Chunk

_RAW = "raw."


class Opened(Protocol):
    """A place that is being read."""

    def names(self) -> list[str]:
        """The channels that hold something."""

    def span(self, channel: str) -> Span:
        """What a channel holds; nothing when it does not exist."""

    def chunks(
        self, piece: Piece, conditions: Sequence[Condition], *, bare: bool, passes_damage: bool
    ) -> Iterator[Chunk]:
        """The events of a piece in order; conditions on `received` may leave some out. `bare`:
        headers are not wanted and may be missing.

        Positions that retention has let go are passed over and told in the log. Damage raises
        Corrupt, or is passed over likewise.
        """


class Place(Protocol):
    """Where channels are."""

    def opened(self) -> AbstractContextManager[Opened]:
        """The place for reading."""


def place_of(options: PlaceOptions) -> Place:
    """The place that the options name; nothing is opened yet."""
    from rapport.pipeline.sources.door_place import DoorPlace
    from rapport.pipeline.sources.site_place import SitePlace

    if options.url:
        return DoorPlace(options.url, options.key_file, options.patience_ms)
    return SitePlace(options.site, options.key_file)


def spans_of(opened: Opened, channels: Sequence[str], *, streaming: bool) -> dict[str, Span]:
    """What each channel holds.

    Raises UnknownName for one that does not exist, unless the node makes it itself when it is
    needed, or it belongs to a source of which a stream waits to hear.
    """
    # The last one first: what stood in an earlier channel before something of a later one is seen.
    looked_at = {name: opened.span(name) for name in reversed(channels)}
    spans = {name: looked_at[name] for name in channels}
    for name, span in spans.items():
        awaited = is_reserved(name) or (streaming and name.startswith(_RAW))
        if span.last == 0 and not awaited:
            raise UnknownName("channel", name, opened.names(), code="source.unknown_channel")
    return spans
