"""Buckets of a live query: a whole runner with its share of the stream, and its state. Pure. [PI-5,
PI-10, PO-8, design 14]

However the stream is split into batches and shared among buckets, together they find what one
runner finds that is fed with everything in the same order: a batch carries, besides a bucket's own
readings, as much of the others as is needed to judge lateness.

State is a snapshot and, after it, the batches since: writing a snapshot after every batch would
cost as much as the bucket knows, a batch costs as much as the batch. A bucket is restored from the
newest snapshot by processing those batches again. A chain of digests names every state.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rapport.core.detection import Cause, Detection, Undecided
from rapport.core.errors import Conflict, Corrupt, Problem
from rapport.pipeline.history.keys import Key
from rapport.pipeline.worker_tables import WorkerTables, decode_tables
from rapport.policy.engine.stream_steps import TimeMoved
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import END_OF_TIME
from rapport.policy.plan import Plan, decode_plan, encode_plan
from rapport.policy.runner.local import LocalRunner

POSITION, HIGH = "position", "high"
"""Columns before those of a reading: its place in `events`, and the time that the stretch had
reached with it, whoever's readings those are: no reading moves it beyond its arrival.
"""
Times = npt.NDArray[np.int64]


class BucketBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of positions of `events`, `first` to `last` (0 when there is none in it), as one
    bucket needs it.
    """

    first: int = 0
    last: int = 0
    latest: int | None = None
    """The largest time of the stretch, whoever's readings those are."""
    beats: tuple[TimeMoved, ...] = ()
    """Where the clock moved time on."""
    readings: bytes = b""
    """Arrow: POSITION, HIGH, then the columns of readings, in the order of positions."""
    others: bytes = b""
    """Arrow: POSITION, HIGH, time and id of readings that no policy looks at; they may be late."""
    aside: bytes = b""
    """Events for `quarantine`, as a block."""


_READ = msgspec.msgpack.Decoder(BucketBatch)


def encode_batch(batch: BucketBatch) -> bytes:
    """As it travels and as it is kept."""
    return msgspec.msgpack.encode(batch)


def decode_batch(raw: bytes) -> BucketBatch:
    """What `encode_batch` wrote; raises Corrupt."""
    try:
        return _READ.decode(raw)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Corrupt(f"a batch cannot be read: {error}", code="live.bad_state") from None


def pack_rows(rows: pa.RecordBatch) -> bytes:
    """Rows as an Arrow stream; none as nothing."""
    if not len(rows):
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())


def unpack_rows(raw: bytes) -> pa.RecordBatch | None:
    """The rows that `pack_rows` wrote, None when there are none; raises Corrupt."""
    if not raw:
        return None
    try:
        return pa.ipc.open_stream(raw).read_next_batch()
    except (pa.ArrowInvalid, OSError, StopIteration) as error:
        raise Corrupt(f"a batch cannot be read: {error}", code="live.bad_state") from None


def running_high(times: Times) -> Times:
    """The largest time up to and with each."""
    high: Times = np.maximum.accumulate(times)
    return high


FORM = 1
"""The version of what is saved; another one is refused."""
_BEGIN_OF_TIME = -END_OF_TIME


class BucketPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What runs in one bucket of a query."""

    number: int
    buckets: int
    plans: tuple[Plan, ...]
    keys: Mapping[str, Key]
    """By policy what it is parted by; one that is not named runs in this bucket alone."""
    lateness_ms: int
    sources: Mapping[str, PushSource]
    began: int | None = None
    """When the policies started: silence counts from there. None: with the first reading."""
    after: int = 0
    """The position of `events` behind which reading begins."""

    def parts(self) -> dict[str, str]:
        """By policy what its state depends on besides its version: who has which identities."""
        keys = {name: f"{key.alias}/{self.buckets}" for name, key in self.keys.items()}
        return {plan.policy: keys.get(plan.policy, "whole") for plan in self.plans}


class BucketResult(msgspec.Struct):
    """What became certain, and the readings that came too late."""

    detections: list[Detection] = []
    undecided: list[Undecided] = []
    late: list[Cause] = []


class _Saved(msgspec.Struct):
    """A bucket as it is kept; plans, tables and sources too, since what was taken after it is taken
    again by them, and they may be others now.
    """

    form: int
    reached: int
    latest: int
    beats: list[TimeMoved]
    runner: bytes
    plans: list[bytes]
    keys: dict[str, Key]
    parts: dict[str, str]
    lateness_ms: int
    number: int
    buckets: int
    began: int | None = None
    tables: bytes = b""
    """Empty, and no sources: kept by a version that took again by those of now."""
    sources: dict[str, PushSource] | None = None


class Bucket:
    """Readings in the order of positions, beats of the clock in their places, detections out.

    Holds a `LocalRunner`, how far `events` was taken, the largest time of the whole stream, and
    beats whose place was not reached yet.
    """

    def __init__(self, plan: BucketPlan, tables: WorkerTables) -> None:
        self.plan, self._tables = plan, tables
        self._runner = _runner(plan, tables)
        self.reached, self.latest = plan.after, _BEGIN_OF_TIME
        self._beats: list[TimeMoved] = []

    @property
    def watermark(self) -> int:
        """Everything before this time is decided."""
        return self._runner.watermark

    def failed(self) -> dict[str, Problem]:
        """The policies that were set aside because something they use raised."""
        return self._runner.failed()

    def take(self, batches: Iterable[BucketBatch]) -> BucketResult:
        """Takes the batches of one batch, in any order; raises Conflict when they overlap, or hold
        what was taken before.
        """
        given = list(batches)
        self._beats = _latest([*self._beats, *(beat for batch in given for beat in batch.beats)])
        found, kept = BucketResult(), list[pa.RecordBatch]()
        for batch in sorted((one for one in given if one.last), key=lambda one: one.first):
            self._check_follows(batch)
            kept += self._judge(batch, found)
        self._meet(self.reached + 1)
        self._run(kept, found)
        return found

    def _check_follows(self, batch: BucketBatch) -> None:
        if batch.first <= self.reached:
            raise Conflict(
                f"events {batch.first} to {batch.last} come after event {self.reached}",
                code="live.out_of_order",
                hint="a live query reads positions in their order; start it with a new checkpoint",
            )

    def _meet(self, before: int) -> None:
        """The clock moved time on before this position."""
        met = bisect_left(self._beats, before, key=_place)
        self.latest = max(self.latest, *(beat.time for beat in self._beats[:met]), _BEGIN_OF_TIME)
        del self._beats[:met]

    def _judge(self, batch: BucketBatch, found: BucketResult) -> list[pa.RecordBatch]:
        """What of a batch is not late, with how far the stream had come by then."""
        self._meet(batch.first)
        inside = self._beats[: bisect_left(self._beats, batch.last, key=_place)]
        kept: list[pa.RecordBatch] = []
        for raw, is_used in ((batch.readings, True), (batch.others, False)):
            rows = unpack_rows(raw)
            if rows is None:
                continue
            late = self._late(rows, inside)
            if late.any():
                found.late += _causes(rows.filter(pa.array(late)))
                rows = rows.filter(pa.array(~late))
            if is_used and len(rows):
                kept.append(rows.drop_columns([POSITION]))
        if batch.latest is not None:
            self.latest = max(self.latest, batch.latest)
        self._meet(batch.last)
        self.reached = batch.last
        return kept

    def _late(self, rows: pa.RecordBatch, beats: Sequence[TimeMoved]) -> npt.NDArray[np.bool_]:
        """Which are older than the largest time before them minus the lateness."""
        largest: Times = np.maximum(rows.column(HIGH).to_numpy(), self.latest)
        positions = rows.column(POSITION).to_numpy()
        if beats:
            before = np.searchsorted([beat.after for beat in beats], positions, "left")
            told = np.maximum.accumulate([_BEGIN_OF_TIME, *(beat.time for beat in beats)])
            largest = np.maximum(largest, told[before])
        late: npt.NDArray[np.bool_] = (
            rows.column("time").to_numpy() < largest - self.plan.lateness_ms
        )
        return late

    def _run(self, kept: list[pa.RecordBatch], found: BucketResult) -> None:
        """None of them is late for the runner, which has seen less than the whole stream."""
        runner = self._runner
        detections: list[Detection] = []
        if kept:
            rows = kept[0] if len(kept) == 1 else pa.concat_batches(kept)
            high = rows.column(HIGH).to_numpy()
            detections += runner.feed(rows.drop_columns([HIGH]), high)
        if self.latest > _BEGIN_OF_TIME:
            detections += runner.advance(self.latest)
        found.detections += [one for one in detections if self._is_own(one)]
        found.undecided += [one for one in runner.take_undecided() if self._is_own(one)]

    def _is_own(self, one: Detection | Undecided) -> bool:
        key = self.plan.keys.get(one.policy)
        return key is None or key.owns(one, self.plan.number, self.plan.buckets)

    def snapshot(self) -> bytes:
        """All state."""
        plan = self.plan
        return msgspec.msgpack.encode(
            _Saved(
                FORM,
                self.reached,
                self.latest,
                self._beats,
                self._runner.snapshot(),
                [encode_plan(one) for one in plan.plans],
                dict(plan.keys),
                plan.parts(),
                plan.lateness_ms,
                plan.number,
                plan.buckets,
                plan.began,
                self._tables.encoded,
                dict(plan.sources),
            )
        )

    @staticmethod
    def restored(
        snapshot: bytes, sources: Mapping[str, PushSource], tables: WorkerTables
    ) -> Bucket:
        """The bucket as it was saved, with the plans, tables and sources of then; those given are
        for one that was saved without. Raises Corrupt.
        """
        saved = _read(snapshot)
        plan = BucketPlan(
            number=saved.number,
            buckets=saved.buckets,
            plans=tuple(decode_plan(raw) for raw in saved.plans),
            keys=saved.keys,
            lateness_ms=saved.lateness_ms,
            sources=sources if saved.sources is None else saved.sources,
            began=saved.began,
        )
        bucket = Bucket(plan, decode_tables(saved.tables) if saved.tables else tables)
        bucket.reached, bucket.latest, bucket._beats = saved.reached, saved.latest, saved.beats
        bucket._runner.restore_known(saved.runner)
        return bucket

    def is_of(self, plan: BucketPlan, tables: WorkerTables) -> bool:
        """Whether what this one knows can go on by them without a second look."""
        own = self.plan
        if own is plan and self._tables is tables:
            return True
        return (
            _versions(own) == _versions(plan)
            and own.parts() == plan.parts()
            and own.lateness_ms == plan.lateness_ms
            and own.sources == plan.sources
            and self._tables.encoded == tables.encoded
        )

    def turned_to(self, plan: BucketPlan, tables: WorkerTables) -> tuple[Bucket, list[str]]:
        """A bucket with other plans or tables that goes on here: plans that are the same, and
        parted by the same, keep what they know; the names of the others, which begin here, are
        given too.
        """
        before, after = self.plan.parts(), plan.parts()
        parted = {name for name, part in after.items() if before.get(name, part) != part}
        turned = Bucket(_without(plan, parted), tables)
        anew = turned._runner.restore_known(self._runner.snapshot())
        turned.plan = plan
        for one in plan.plans:
            if one.policy in parted:
                turned._runner.deploy(one)
        turned.reached, turned.latest = self.reached, self.latest
        turned._beats = list(self._beats)
        return turned, sorted([*anew, *parted])


def _place(beat: TimeMoved) -> int:
    return beat.after


def _latest(beats: Iterable[TimeMoved]) -> list[TimeMoved]:
    """In the order of their places; of several at one place the latest says it all. A site where
    little comes has many of them.
    """
    times: dict[int, int] = {}
    for beat in beats:
        times[beat.after] = max(beat.time, times.get(beat.after, beat.time))
    return [TimeMoved(times[after], after) for after in sorted(times)]


def _versions(plan: BucketPlan) -> dict[str, str]:
    return {one.policy: one.version() for one in plan.plans}


def _runner(plan: BucketPlan, tables: WorkerTables) -> LocalRunner:
    return LocalRunner(
        plan.plans,
        tables,
        lateness_ms=plan.lateness_ms,
        sources=plan.sources,
        began=plan.began,
    )


def _without(plan: BucketPlan, names: set[str]) -> BucketPlan:
    plans = tuple(one for one in plan.plans if one.policy not in names)
    return msgspec.structs.replace(plan, plans=plans)


def _causes(rows: pa.RecordBatch) -> list[Cause]:
    return list(zip(rows.column("time").to_pylist(), rows.column("id").to_pylist(), strict=True))


def _read(snapshot: bytes) -> _Saved:
    try:
        saved = msgspec.msgpack.decode(snapshot, type=_Saved)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Corrupt(f"a saved bucket cannot be read: {error}", code="live.bad_state") from None
    if saved.form != FORM:
        raise Corrupt(
            f"saved buckets of version {saved.form} cannot be read",
            code="live.bad_state",
            hint="start with a new checkpoint",
        )
    return saved


CHUNK_BYTES = 4 * 1024 * 1024
"""No single value is larger."""
_LEAST_BYTES = 4 * 1024 * 1024
_MOST_ENTRIES = 100
_MARK_BYTES = 16


class StateMark(msgspec.Struct, frozen=True, array_like=True):
    """Names a state, and says when the next snapshot is due."""

    digest: bytes
    entries: int
    """Given since the snapshot."""
    given_bytes: int
    snapshot_bytes: int

    def is_snapshot_due(self) -> bool:
        """Once as much was given as a snapshot has: then both cost the same."""
        return self.entries >= _MOST_ENTRIES or self.given_bytes > max(
            _LEAST_BYTES, self.snapshot_bytes
        )


class StateEntry(msgspec.Struct, frozen=True, array_like=True):
    """A piece of what is kept: entry 0 is the snapshot, 1 and on what was given after it, each with
    the digest it led to. Long ones have several rows.
    """

    entry: int
    digest: bytes
    piece: bytes


class BucketStore(Protocol):
    """Where one bucket is kept; all that is done to it in a batch becomes true together."""

    def mark(self) -> StateMark | None:
        """Of what is kept; None when there is nothing yet."""

    def entries(self) -> Iterator[StateEntry]:
        """All pieces, in the order in which they were put there."""

    def add(self, mark: StateMark, rows: Sequence[StateEntry]) -> None:
        """Puts further pieces behind the others."""

    def replace(self, mark: StateMark, rows: Sequence[StateEntry]) -> None:
        """Puts other pieces in their place."""


class CachedBucket(msgspec.Struct):
    """A bucket in memory and the digest of what led to it."""

    digest: bytes
    bucket: Bucket


class BucketKeeper:
    """Takes a bucket from its store, lets it take a batch, and puts it back."""

    def __init__(
        self,
        plan: BucketPlan,
        tables: WorkerTables,
        *,
        on_restart: Callable[[list[str]], None] | None = None,
    ) -> None:
        """`on_restart`: called with the names of policies that begin anew because they changed."""
        self._plan, self._tables = plan, tables
        self._on_restart = on_restart or (lambda _: None)

    def step(
        self, store: BucketStore, batches: Sequence[BucketBatch], cached: CachedBucket | None
    ) -> tuple[BucketResult, CachedBucket]:
        """`cached` is what this process still has in memory: it saves reading everything again. It
        is used up, whatever happens.
        """
        mark = store.mark()
        now = self._taken(store, mark, cached)
        is_other = not now.bucket.is_of(self._plan, self._tables)
        if is_other:
            now.bucket, anew = now.bucket.turned_to(self._plan, self._tables)
            self._on_restart(anew)
        raw = _pack(batches)
        found = now.bucket.take(batches)
        now.digest = _next_digest(now.digest, raw)
        added = _added(mark, now.digest, len(raw))
        if added is None or is_other or added.is_snapshot_due():
            snapshot = now.bucket.snapshot()
            store.replace(
                StateMark(now.digest, 0, 0, len(snapshot)), _rows(0, now.digest, snapshot)
            )
        else:
            store.add(added, _rows(added.entries, now.digest, raw))
        return found, now

    def _taken(
        self, store: BucketStore, mark: StateMark | None, cached: CachedBucket | None
    ) -> CachedBucket:
        """The bucket as the store has it."""
        if mark is None:
            return CachedBucket(b"", Bucket(self._plan, self._tables))
        if cached is not None and cached.digest == mark.digest:
            return cached
        snapshot, *given = _entries(store.entries())
        places = [entry.digest for entry in (snapshot, *given)]
        if cached is not None and cached.digest in places:
            begin, given = cached, given[places.index(cached.digest) :]
        else:
            bucket = Bucket.restored(snapshot.piece, self._plan.sources, self._tables)
            begin = CachedBucket(snapshot.digest, bucket)
        for entry in given:
            begin.bucket.take(_unpack(entry.piece))
            begin.digest = entry.digest
        if begin.digest != mark.digest:
            raise Corrupt(
                "what is kept of a bucket does not lead to where it stands", code="live.bad_state"
            )
        return begin


def _added(mark: StateMark | None, digest: bytes, size: int) -> StateMark | None:
    if mark is None:
        return None
    return StateMark(digest, mark.entries + 1, mark.given_bytes + size, mark.snapshot_bytes)


def _pack(batches: Sequence[BucketBatch]) -> bytes:
    """As they are kept: what is set aside is appended once and not needed again."""
    kept = (msgspec.structs.replace(batch, aside=b"") for batch in batches)
    return msgspec.msgpack.encode([encode_batch(batch) for batch in kept])


def _unpack(raw: bytes) -> list[BucketBatch]:
    return [decode_batch(one) for one in msgspec.msgpack.decode(raw, type=list[bytes])]


def _next_digest(digest: bytes, raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=_MARK_BYTES, key=digest).digest()


def _rows(entry: int, digest: bytes, raw: bytes) -> list[StateEntry]:
    return [
        StateEntry(entry, digest, raw[begin : begin + CHUNK_BYTES])
        for begin in range(0, max(len(raw), 1), CHUNK_BYTES)
    ]


def _entries(rows: Iterable[StateEntry]) -> list[StateEntry]:
    """Rows of one entry put together; the snapshot comes first."""
    found: list[StateEntry] = []
    for _, pieces in groupby(rows, key=lambda row: row.entry):
        first, *more = pieces
        found.append(
            StateEntry(first.entry, first.digest, b"".join(one.piece for one in (first, *more)))
        )
    if [row.entry for row in found] != list(range(len(found))) or not found:
        raise Corrupt("pieces of a bucket are missing", code="live.bad_state")
    return found
