"""What a back-test found, policy by policy: rows in the order of the fixed output, counts and
comparisons. [PI-9]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Literal, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.detection import (
    Detection,
    Undecided,
    detection_line,
    detection_order,
    identity_order,
)
from rapport.core.errors import Problem
from rapport.pipeline.drawing.calendar import Calendar
from rapport.pipeline.history.detection_table import detections_from, encode_detections, joined
from rapport.policy.explain.answer import Explanation, WhyNotAnswer
from rapport.policy.explain.wording import duration

_DETECTIONS_AT_ONCE = 10_000

NO_END = -(2**63)
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class DetectionColumns:
    """Takes what policies found, piece by piece: structs, which it packs to about 100 bytes each,
    or tables, which may be mapped from files and are not copied.
    """

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._waiting: list[Detection | Undecided] = []

    def add(self, found: Iterable[Detection | Undecided]) -> None:
        """Takes more; the structs are let go every ten thousand."""
        for one in found:
            self._waiting.append(one)
            if len(self._waiting) >= _DETECTIONS_AT_ONCE:
                self._pack()

    def add_columns(self, rows: pa.Table) -> None:
        """Takes more that are columns already."""
        self._tables.append(rows)

    @property
    def table(self) -> pa.Table:
        """All rows, as they came."""
        self._pack()
        self._tables = [joined(self._tables)]
        return self._tables[0]

    def __len__(self) -> int:
        return sum(len(rows) for rows in self._tables) + len(self._waiting)

    def of(self, policy: str, begin: int | None, end: int | None) -> Findings:
        """What one policy found in [begin, end), sorted, each once."""
        rows = self.table
        chosen = pc.equal(rows.column("policy"), policy)
        if begin is not None:
            chosen = pc.and_(chosen, pc.greater_equal(rows.column("time"), begin))
        if end is not None:
            chosen = pc.and_(chosen, pc.less(rows.column("time"), end))
        is_found = pc.is_null(rows.column("silent"))
        found = _places(pc.and_(chosen, is_found))
        left_open = _places(pc.and_(chosen, pc.invert(is_found)))
        return Findings(rows, order_of(rows, found), rows.take(pa.array(left_open)))

    def _pack(self) -> None:
        if self._waiting:
            self._tables.append(pa.Table.from_batches([encode_detections(self._waiting)]))
            self._waiting = []


class Findings:
    """What one policy found, in the order of the fixed output: places in a table that stays where
    it is. Holds 8 bytes for each."""

    def __init__(self, table: pa.Table, order: Numbers, undecided: pa.Table) -> None:
        self._table, self._order, self.undecided = table, order, undecided

    def __len__(self) -> int:
        return len(self._order)

    def taken(self, places: Numbers) -> pa.Table:
        """Those at some places, in this order."""
        return self._table.take(pa.array(self._order[places])).combine_chunks()

    def pieces(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Some columns, a few thousand rows at a time."""
        narrow = self._table.select(list(columns))
        for start in range(0, len(self), _DETECTIONS_AT_ONCE):
            yield narrow.take(pa.array(self._order[start : start + _DETECTIONS_AT_ONCE]))

    def times(self) -> Numbers:
        return np.asarray(self._table.column("time").to_numpy(), np.int64)[self._order]

    def aliases(self) -> list[str]:
        """Every alias that some finding binds, sorted."""
        names: set[str] = set()
        for piece in self.pieces(["bindings"]):
            for chunk in piece.column("bindings").chunks:
                names |= set(chunk.keys.unique().to_pylist())
        return sorted(names)

    def chosen(self, flags: Flags) -> Findings:
        """Those that are flagged."""
        return Findings(self._table, self._order[flags], self.undecided)

    def began(self) -> Numbers:
        """Of the ends of situations when they began; NO_END for all others."""
        found = [
            piece.column("began").fill_null(NO_END).to_numpy() for piece in self.pieces(["began"])
        ]
        return np.concatenate([np.zeros(0, np.int64), *found])

    def identities(self, alias: str) -> Iterator[pa.ChunkedArray]:
        """For each piece, the identities that its findings bind to an alias; null where unbound."""
        for piece in self.pieces(["bindings"]):
            yield pc.map_lookup(piece.column("bindings"), pa.scalar(alias), "first")

    def first(self, count: int) -> list[Detection]:
        return detections_from(self.taken(np.arange(min(max(count, 0), len(self)))))

    def at(self, places: Sequence[int]) -> list[Detection]:
        """Those in some rows as structs."""
        return detections_from(self.taken(np.asarray(places, np.int64)))

    def silent(self) -> list[str]:
        """The sources whose silence left something undecided, sorted."""
        names = [chunk.values for chunk in self.undecided.column("silent").chunks]
        return sorted({name for each in names for name in each.unique().to_pylist()})

    def lines(self, policy: str) -> Iterator[bytes]:
        """The fixed output in pieces, under the name `policy`."""
        last = b""
        for start in range(0, len(self), _DETECTIONS_AT_ONCE):
            piece: list[bytes] = []
            end = min(start + _DETECTIONS_AT_ONCE, len(self))
            for one in detections_from(self.taken(np.arange(start, end))):
                line = detection_line(msgspec.structs.replace(one, policy=policy))
                if line != last:  # rests on other readings of the same names
                    piece.append(line + b"\n")
                last = line
            yield b"".join(piece)


def order_of(rows: pa.Table, places: Numbers) -> Numbers:
    """Places of rows of one policy in the order of the fixed output, each finding once. Mostly a
    time stands alone; only rows that share one are looked at closely.
    """
    times = np.asarray(rows.column("time").to_numpy(), np.int64)[places]
    order = np.argsort(times, kind="stable")
    times, places = times[order], places[order]
    return _untied(rows, places, times) if (np.diff(times) == 0).any() else places


def _untied(rows: pa.Table, order: Numbers, times: Numbers) -> Numbers:
    edges = np.flatnonzero(np.diff(times, prepend=times[0] - 1))
    kept: list[Numbers] = []
    for start, end in zip(edges, [*edges[1:], len(order)], strict=True):
        group = order[start:end]
        if len(group) > 1:
            found = detections_from(rows.take(pa.array(group)))
            keyed = {detection_order(one): place for one, place in zip(found, group, strict=True)}
            group = np.array([keyed[key] for key in sorted(keyed)], np.int64)
        kept.append(group)
    return np.concatenate(kept)


def _places(chosen: pa.ChunkedArray) -> Numbers:
    return np.flatnonzero(chosen.to_numpy())


def by_identity(pair: tuple[str, int]) -> tuple[int, tuple[int, int, str]]:
    """Most first, then by identity: the order of top lists."""
    return -pair[1], identity_order(pair[0])


FoundBy = Literal["first", "second"]
MOST_IDENTITIES = 10
APART = "\x1f"
"""Between texts that are one key."""


class TopIdentities(msgspec.Struct, frozen=True, kw_only=True):
    """Who stands most often under an alias."""

    alias: str
    top: list[tuple[str, int]]
    others: int
    """How many more identities there are."""


class EpisodeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how long a situation lasted within the period."""

    episodes: int
    open: int
    """Of these, not over when the period or the history ends."""
    total_ms: int
    longest_ms: int


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """What one version found."""

    label: str
    version: str
    detections: int
    days: dict[str, int]
    """Days of the calendar with at least one."""
    hours: list[list[int]]
    """Monday to Sunday, 24 hours each."""
    who: list[TopIdentities]
    first: list[Detection]
    undecided: int = 0
    silent: list[str] = []
    """Sources whose silence left something undecided."""
    suppressed: int | None = 0
    """Left out by `at most once per`; None: not counted by this engine or in a part of history."""
    once_per_ms: int | None = None
    text: str = ""
    """Of the policy."""
    episodes: EpisodeFigures | None = None
    """Of a policy with a situation; its detections are the beginnings."""


class Example(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A finding that is shown: perhaps of one version only, perhaps explained."""

    detection: Detection
    found_by: FoundBy = "first"
    why: Explanation | None = None
    """The conditions that held, by the version that found it."""
    why_not: WhyNotAnswer | None = None
    """How the other version stood."""
    command: str = ""
    """What to type to see it explained."""
    lasted_ms: int | None = None
    """Of a situation, so far if it is open."""
    is_open: bool = False
    """Whether it is not over when the period or the history ends."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two versions over the same history. Two findings are the same when they are about the same
    identities and rest on the same readings or have the same time: a longer window finds the same
    later. Two episodes are the same when they are about the same identities and overlap.
    """

    by: list[str]
    """The aliases that both speak of."""
    both: int
    """How many of the first's the second found, too."""
    only_first: int
    only_second: int
    days: dict[str, tuple[int, int, int]]
    """Per day: both, only the first, only the second."""
    examples: list[Example]
    of_episodes: bool = False
    """Whether episodes are compared."""


class BackTest(msgspec.Struct, frozen=True, kw_only=True):
    """All that is told of a back-test."""

    policy: str
    history: str
    engine: str
    zone: str
    events: int
    """Readings used, those around the period among them."""
    first: int | None
    last: int | None
    """The smallest and the largest of their times."""
    begin: int | None
    end: int | None
    """The period asked for; None: from the first, to the last."""
    late: int | None
    tallies: list[Tally]
    """Of the policy, then of the one it is compared with."""
    examples: list[Example]
    comparison: Comparison | None = None
    problems: list[Problem] = []
    seconds: float = 0.0

    @property
    def span(self) -> tuple[int, int] | None:
        """From when to when the calendar goes: as far as there is history in the period."""
        if self.first is None or self.last is None:
            return None
        begin = self.first if self.begin is None else max(self.begin, self.first)
        end = self.last if self.end is None else min(self.end - 1, self.last)
        return begin, max(begin, end)


def episodes_text(figures: EpisodeFigures) -> str:
    """`34 h 10 min in all, the longest 6 h; 1 is still open at the end`."""
    text = f"{duration(figures.total_ms)} in all, the longest {duration(figures.longest_ms)}"
    if not figures.open:
        return text
    return f"{text}; {figures.open:,} {'is' if figures.open == 1 else 'are'} open at the end"


def lasted_text(example: Example) -> str:
    """`, 2 h 5 min` behind an episode; nothing behind a detection."""
    if example.lasted_ms is None:
        return ""
    is_open = ", open at the end" if example.is_open else ""
    return f"  {duration(example.lasted_ms)}{is_open}"


def tally(
    findings: Findings,
    calendar: Calendar,
    *,
    label: str,
    version: str,
    show: int,
    suppressed: int | None = 0,
    once_per_ms: int | None = None,
    text: str = "",
    episodes: EpisodeFigures | None = None,
) -> Tally:
    """Counts what one version found; the first `show` are kept as they are."""
    times = findings.times()
    return Tally(
        label=label,
        version=version,
        detections=len(findings),
        days=calendar.per_day(times),
        hours=calendar.by_hour(times),
        who=[_who(findings, alias) for alias in findings.aliases()],
        first=findings.first(show),
        undecided=int(findings.undecided.num_rows),
        silent=findings.silent(),
        suppressed=suppressed,
        once_per_ms=once_per_ms,
        text=text,
        episodes=episodes,
    )


def compare(
    first: Findings,
    second: Findings,
    only: tuple[Flags, Flags],
    by: Sequence[str],
    calendar: Calendar,
    show: int,
    of_episodes: bool = False,
) -> Comparison:
    """What two versions found, parted as `only_one` says into what both did and what only one did;
    up to `show` examples of each side.
    """
    times = first.times()
    days = [
        calendar.per_day(times[~only[0]]),
        calendar.per_day(times[only[0]]),
        calendar.per_day(second.times()[only[1]]),
    ]
    every = sorted(set().union(*days))
    examples = [
        Example(detection=detection, found_by=cast(FoundBy, side))
        for side, findings, alone in (("first", first, only[0]), ("second", second, only[1]))
        for detection in findings.at(np.flatnonzero(alone)[:show].tolist())
    ]
    return Comparison(
        by=list(by),
        both=len(first) - int(only[0].sum()),
        only_first=int(only[0].sum()),
        only_second=int(only[1].sum()),
        days={
            day: (days[0].get(day, 0), days[1].get(day, 0), days[2].get(day, 0)) for day in every
        },
        examples=examples,
        of_episodes=of_episodes,
    )


def only_one(first: Findings, second: Findings, by: Sequence[str]) -> tuple[Flags, Flags]:
    """Of either side which rows the other does not have."""
    ours, theirs = np.ones(len(first), np.bool_), np.ones(len(second), np.bool_)
    for column in ("cause_ids", "time"):
        here, there = _keys(first, by, column), _keys(second, by, column)
        ours &= ~np.isin(here, there)
        theirs &= ~np.isin(there, here)
    return ours, theirs


def _keys(findings: Findings, by: Sequence[str], column: str) -> npt.NDArray[np.bytes_]:
    return np.array(finding_keys(findings, by, column), "V16")


def finding_keys(findings: Findings, by: Sequence[str], column: str = "") -> list[bytes]:
    """Of each finding 16 bytes that stand for its identities and its readings, its time, or when it
    began; without a column for its identities only.
    """
    keys: list[bytes] = []
    for piece in findings.pieces(["bindings", *([column] if column else [])]):
        bindings = piece.column("bindings")
        identities = [
            pc.fill_null(pc.map_lookup(bindings, pa.scalar(alias), "first"), "") for alias in by
        ]
        about = pa.nulls(len(piece), pa.string()).fill_null("")
        if column == "cause_ids":
            about = pc.binary_join(piece.column(column), APART)
        elif column:
            about = piece.column(column).cast(pa.string())
        texts = pc.binary_join_element_wise(*identities, about, APART).to_pylist()
        keys += [blake2b(text.encode(), digest_size=16).digest() for text in texts]
    return keys


def _who(findings: Findings, alias: str) -> TopIdentities:
    counts: Counter[str] = Counter()
    for piece in findings.identities(alias):
        found = pc.value_counts(piece.drop_null()).to_pylist()
        counts.update({one["values"]: one["counts"] for one in found})
    ranked = sorted(counts.items(), key=by_identity)
    top = ranked[:MOST_IDENTITIES]
    return TopIdentities(alias=alias, top=top, others=len(ranked) - len(top))
