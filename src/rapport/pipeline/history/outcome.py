"""What a task sends back: rows of packed lists, small and quick to make and to read. [PI-5]"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args

import msgspec
import pyarrow as pa

from rapport.core.detection import Detection, Undecided
from rapport.core.errors import Problem
from rapport.pipeline.history.detection_columns import as_bytes, encode_detections, from_bytes
from rapport.pipeline.history.feeds import GroupFacts
from rapport.pipeline.history.lateness import Late
from rapport.policy.replay.replay import FaultyRows

OUTCOME = "task INT, kind STRING, body BINARY"
"""The columns, as Spark writes them."""
SCHEMA = pa.schema([("task", pa.int32()), ("kind", pa.string()), ("body", pa.binary())])
_AT_ONCE = 2_048
_DETECTIONS_AT_ONCE = 1 << 14
_DETECTIONS = "Detections"


class Failed(msgspec.Struct, frozen=True, array_like=True):
    """A policy that was set aside, and from when on nothing of it counts."""

    policy: str
    since: int
    problem: Problem


class Refused(msgspec.Struct, frozen=True, array_like=True):
    """Why a worker could not do its task: a file it cannot read, a function it does not have."""

    problem: Problem


class Suppressed(msgspec.Struct, frozen=True, array_like=True):
    """How many detections of a policy `at most once per` left out."""

    policy: str
    count: int


class LateCount(msgspec.Struct, frozen=True, array_like=True):
    """How many readings of some groups were late."""

    count: int


class Faulty(msgspec.Struct, frozen=True, array_like=True):
    """Rows that could not be used: the first of them, and all by file and reason."""

    problems: list[Problem]
    by_reason: list[FaultyRows]


Told = Undecided | Late | LateCount | GroupFacts | Failed | Faulty | Refused | Suppressed

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Told)}
_READ = {name: msgspec.msgpack.Decoder(list[kind]) for name, kind in _KINDS.items()}  # type: ignore[valid-type]
_WRITE = msgspec.msgpack.Encoder()


def packed(task: int, told: Sequence[Told]) -> Iterator[pa.RecordBatch]:
    """Things of one kind as rows; no batch when there is nothing."""
    for first in range(0, len(told), _AT_ONCE):
        part = told[first : first + _AT_ONCE]
        yield _row(task, type(part[0]).__name__, _WRITE.encode(part))


def packed_detections(task: int, found: Sequence[Detection]) -> Iterator[pa.RecordBatch]:
    """Detections as rows of columns: there may be millions, and nobody needs all as structs."""
    for first in range(0, len(found), _DETECTIONS_AT_ONCE):
        part = encode_detections(found[first : first + _DETECTIONS_AT_ONCE])
        yield _row(task, _DETECTIONS, as_bytes(part))


def _row(task: int, kind: str, body: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"task": [task], "kind": [kind], "body": [body]}, SCHEMA)


def unpacked(table: pa.Table, kind: type[Any], tasks: Iterable[int] | None = None) -> Iterator[Any]:
    """All things of a kind, by task; each part is read when its turn comes."""
    for body in _bodies(table, kind.__name__, None if tasks is None else set(tasks)):
        yield from _READ[kind.__name__].decode(body)


def unpacked_columns(table: pa.Table) -> Iterator[pa.Table]:
    """The detections, by task, part by part; without a copy."""
    return map(from_bytes, _bodies(table, _DETECTIONS, None))


def _bodies(table: pa.Table, kind: str, tasks: set[int] | None) -> Iterator[pa.Buffer]:
    columns = (table.column(name).to_pylist() for name in ("task", "kind"))
    places = [
        (task, place)
        for place, (task, name) in enumerate(zip(*columns, strict=True))
        if name == kind and (tasks is None or task in tasks)
    ]
    bodies = table.column("body")
    for _, place in sorted(places):
        yield bodies[place].as_buffer()
