"""What a back-test runs over: recorded files of a site's sources, or its lake, in pieces of which
the footers tell the rows and times. [PI-9]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa

from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import END_OF_TIME
from rapport.policy.recordings.formats import Report

BEGIN_OF_TIME = -END_OF_TIME
BATCH = 65_536
"""Readings per step: enough that operators work on whole columns."""

Kind = Literal["recorded", "silver", "bronze"]
ReadPiece = Callable[[Report], Iterator[pa.RecordBatch]]


class Window(msgspec.Struct, frozen=True, order=True):
    """Times from `begin` up to before `end`."""

    begin: int
    end: int


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Readings that are read together, such as a row group; None: nobody knows without reading."""

    read: ReadPiece
    rows: int | None = None
    first: int | None = None
    last: int | None = None

    def may_hold(self, windows: Sequence[Window] | None) -> bool:
        """Whether some of its readings can lie in one of the windows; None is all of time."""
        if windows is None or self.first is None or self.last is None:
            return True
        return any(one.begin <= self.last and self.first < one.end for one in windows)


class HistoryFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file, for people."""

    path: Path
    feed: str
    bytes: int
    rows: int | None = None
    first: int | None = None
    last: int | None = None


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """One source, or the lake: pieces in arrival order."""

    name: str
    streams: frozenset[str]
    files: tuple[HistoryFile, ...]
    pieces: tuple[Piece, ...]
    is_judged: bool = False
    """True: what came late is marked there already, and nothing else is late."""
    source: PushSource | None = None
    """Where all files are Parquet of one source in root form: Spark's workers read these."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known without reading a row."""

    label: str
    """As it was given."""
    kind: Kind
    feeds: tuple[Feed, ...]
    lake: Path | None = None
    """Of silver and bronze."""

    def streams(self) -> frozenset[str]:
        """The `concept.attribute` streams it can have readings of."""
        return frozenset(stream for feed in self.feeds for stream in feed.streams)

    def files(self) -> list[HistoryFile]:
        """All files."""
        return [file for feed in self.feeds for file in feed.files]

    def rows(self) -> int | None:
        """How many rows by the footers; None when some file has none."""
        counts = [piece.rows for feed in self.feeds for piece in feed.pieces]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def rows_in(self, windows: Sequence[Window] | None) -> int | None:
        """How many rows are read for these windows, by the footers."""
        pieces = [piece for feed in self.feeds for piece in feed.pieces if piece.may_hold(windows)]
        known = [piece.rows for piece in pieces if piece.rows is not None]
        return sum(known) if len(known) == len(pieces) else None

    def span(self) -> tuple[int, int] | None:
        """From when to when it goes, as far as footers tell."""
        pieces = [piece for feed in self.feeds for piece in feed.pieces]
        firsts = [piece.first for piece in pieces if piece.first is not None]
        lasts = [piece.last for piece in pieces if piece.last is not None]
        return (min(firsts), max(lasts)) if firsts and lasts else None
