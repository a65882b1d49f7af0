"""Buckets of a live query: a whole runner with its share of the stream, and its state. Pure. [PI-5,
PI-10, PO-8, design 14]

However the stream is split into batches and shared among buckets, together they find what one
runner finds that is fed with everything in the same order: a batch carries, besides a bucket's own
readings, as much of the others as is needed to judge lateness.

State is a snapshot and, after it, the batches since: writing a snapshot after every batch would
cost as much as the bucket knows, a batch costs as much as the batch. A bucket is restored from the
newest snapshot by processing those batches again. A chain of digests names every state.

A bucket also keeps which situations it told the beginning of. As in the node's engine, another
version of their policy continues them, and a policy that is stopped ends them.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
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
from rapport.policy.engine.open_situations import OpenSituation, OpenSituations, bindings_key
from rapport.policy.engine.stream_steps import TimeMoved
from rapport.policy.engine.value_record import ValueRecord
from rapport.policy.named_values import NOTHING_NEEDED, NeededValues
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import END_OF_TIME
from rapport.policy.plan import PolicyPlan, decode_plan, encode_plan
from rapport.policy.runner.local import LocalRunner
from rapport.policy.situation_plan import SituationPlan

POSITION, HIGH = "position", "high"
"""Columns before those of a reading: its place in `events`, and the time that the stretch had
reached with it, whoever's readings those are: no reading moves it beyond its arrival.
"""
Times = npt.NDArray[np.int64]


class BucketBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The positions `first` to `last` of `events` (0: none) as one bucket needs them."""

    first: int = 0
    last: int = 0
    latest: int | None = None
    """The largest time of all readings in it."""
    beats: tuple[TimeMoved, ...] = ()
    """Ticks of the clock."""
    readings: bytes = b""
    """Arrow: POSITION, HIGH, then the columns of readings, in the order of positions."""
    others: bytes = b""
    """Arrow: POSITION, HIGH, time and id of readings that no policy uses; they may be late."""
    aside: bytes = b""
    """Events for `quarantine`, as a block."""


_READ = msgspec.msgpack.Decoder(BucketBatch)


def encode_batch(batch: BucketBatch) -> bytes:
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
"""The version of the saved state; another one is refused."""
_BEGIN_OF_TIME = -END_OF_TIME


class BucketPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The policies of one bucket, and how they are run."""

    number: int
    buckets: int
    plans: tuple[PolicyPlan, ...]
    keys: Mapping[str, Key]
    """By policy its partition key; a policy without one runs in this bucket alone."""
    lateness_ms: int
    sources: Mapping[str, PushSource]
    began: int | None = None
    """When the policies started: silence and situations count from there. None: with the first
    reading.
    """
    after: int = 0
    """The position of `events` behind which reading begins."""
    stopped: Mapping[str, str] = {}
    """Why policies do not run any more: the reason with which their open situations end."""
    needed: Mapping[str, NeededValues] = {}
    """The values that texts of situations name. Every reading of their instances comes here."""

    def situations(self) -> dict[str, SituationPlan]:
        """The plans with a situation by policy."""
        return {one.policy: one for one in self.plans if isinstance(one, SituationPlan)}

    def parts(self) -> dict[str, str]:
        """By policy the partitioning that its state depends on."""
        keys = {name: f"{key.alias}/{self.buckets}" for name, key in self.keys.items()}
        return {plan.policy: keys.get(plan.policy, "whole") for plan in self.plans}


class BucketResult(msgspec.Struct):
    """Decided detections, undecided ones, and readings that came too late."""

    detections: list[Detection] = []
    undecided: list[Undecided] = []
    late: list[Cause] = []


class _Saved(msgspec.Struct):
    """A snapshot of a bucket. It has plans, tables and sources, since the batches after it are
    processed again with those of then.
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
    """Empty, with no sources: saved by a version that used the tables of now."""
    sources: dict[str, PushSource] | None = None
    open: list[OpenSituation] = []
    """Missing if saved by a version without situations."""
    needed: dict[str, NeededValues] = {}
    values: dict[str, bytes] = {}


class Bucket:
    """Readings in the order of positions and ticks of the clock in, detections out.

    Holds a `LocalRunner`, the last processed position of `events`, the largest time of the whole
    stream, and ticks whose position was not reached yet.
    """

    def __init__(self, plan: BucketPlan, tables: WorkerTables) -> None:
        self.plan, self._tables = plan, tables
        self._runner = _runner(plan, tables)
        self.reached, self.latest = plan.after, _BEGIN_OF_TIME
        self._beats: list[TimeMoved] = []
        self._open = OpenSituations()
        self._values = self._value_record({})
        self._ends: list[Detection] = []
        """Ends of situations whose policy was stopped, told with the next batches."""

    def _value_record(self, state: Mapping[str, bytes]) -> ValueRecord:
        plan = self.plan
        made = ValueRecord(lambda policy, _version: plan.needed.get(policy, NOTHING_NEEDED))
        made.restore(state)
        versions = {name: one.version() for name, one in plan.situations().items()}
        made.use_policies(versions, plan.lateness_ms)
        self._runner.name_values(made.at_turns(versions))
        return made

    @property
    def watermark(self) -> int:
        """Everything before this time is decided."""
        return self._runner.watermark

    def failed(self) -> dict[str, Problem]:
        """The policies that were stopped because a function or table they use raised."""
        return self._runner.failed()

    def take(self, batches: Iterable[BucketBatch]) -> BucketResult:
        """Processes the bucket's batches of one micro-batch, in any order; raises Conflict when
        they overlap or were processed before.
        """
        given = list(batches)
        ticks = (beat for batch in given for beat in batch.beats)
        self._beats = _merged_ticks([*self._beats, *ticks])
        found, kept = BucketResult(), list[pa.RecordBatch]()
        for batch in sorted((one for one in given if one.last), key=lambda one: one.first):
            self._check_order(batch)
            kept += self._judge(batch, found)
        self._apply_ticks(self.reached + 1)
        self._run(kept, found)
        return found

    def _check_order(self, batch: BucketBatch) -> None:
        if batch.first <= self.reached:
            raise Conflict(
                f"events {batch.first} to {batch.last} come after event {self.reached}",
                code="live.out_of_order",
                hint="a live query reads positions in their order; start it with a new checkpoint",
            )

    def _apply_ticks(self, before: int) -> None:
        """Moves time on by the ticks before a position."""
        met = bisect_left(self._beats, before, key=_tick_position)
        self.latest = max(self.latest, *(beat.time for beat in self._beats[:met]), _BEGIN_OF_TIME)
        del self._beats[:met]

    def _judge(self, batch: BucketBatch, found: BucketResult) -> list[pa.RecordBatch]:
        """The readings of a batch that are not late, with the stream's largest time at each."""
        self._apply_ticks(batch.first)
        inside = self._beats[: bisect_left(self._beats, batch.last, key=_tick_position)]
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
        self._apply_ticks(batch.last)
        self.reached = batch.last
        return kept

    def _late(self, rows: pa.RecordBatch, beats: Sequence[TimeMoved]) -> npt.NDArray[np.bool_]:
        """Marks readings older than the largest time before them minus the lateness."""
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
        """Feeds the runner. None of the readings is late for it: it has seen less of the stream."""
        runner = self._runner
        detections: list[Detection] = []
        if kept:
            rows = kept[0] if len(kept) == 1 else pa.concat_batches(kept)
            high = rows.column(HIGH).to_numpy()
            before = runner.watermark
            detections += runner.feed(rows.drop_columns([HIGH]), high)
            self._values.take(rows, (), before)
        if self.latest > _BEGIN_OF_TIME:
            detections += runner.advance(self.latest)
        situations = self.plan.situations()
        own = [one for one in detections if self._is_own(one)]
        own = self._open.continued(own, situations)
        self._open.note(own, situations)
        own = self._values.with_values(own, self._tables, self.plan.sources)
        found.detections += [*self._ends, *own]
        self._ends = []
        found.undecided += [one for one in runner.take_undecided() if self._is_own(one)]

    def _is_own(self, one: Detection | Undecided) -> bool:
        key = self.plan.keys.get(one.policy)
        return key is None or key.owns(one, self.plan.number, self.plan.buckets)

    def snapshot(self) -> bytes:
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
                self._open.state(),
                dict(plan.needed),
                self._values.state(self.watermark),
            )
        )

    @staticmethod
    def restored(
        snapshot: bytes, sources: Mapping[str, PushSource], tables: WorkerTables
    ) -> Bucket:
        """The bucket as it was saved, with the plans, tables and sources of then; the given ones
        are for a snapshot without. Raises Corrupt.
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
            needed=saved.needed,
        )
        bucket = Bucket(plan, decode_tables(saved.tables) if saved.tables else tables)
        bucket.reached, bucket.latest, bucket._beats = saved.reached, saved.latest, saved.beats
        bucket._runner.restore_known(saved.runner)
        bucket._open = OpenSituations(saved.open)
        bucket._values = bucket._value_record(saved.values)
        return bucket

    def is_of(self, plan: BucketPlan, tables: WorkerTables) -> bool:
        """Whether the bucket can go on with this plan and these tables as it is."""
        own = self.plan
        if own is plan and self._tables is tables:
            return True
        return (
            _versions(own) == _versions(plan)
            and own.parts() == plan.parts()
            and own.lateness_ms == plan.lateness_ms
            and own.sources == plan.sources
            and own.needed == plan.needed
            and self._tables.encoded == tables.encoded
        )

    def migrated_to(self, plan: BucketPlan, tables: WorkerTables) -> tuple[Bucket, list[str]]:
        """A bucket with other plans or tables that goes on here. Plans with the same version and
        partitioning keep their state; the names of the others, which begin here, are returned too.
        Open situations of those go on, if they can; others end.
        """
        before, after = self.plan.parts(), plan.parts()
        parted = {name for name, part in after.items() if before.get(name, part) != part}
        turned = Bucket(_without(plan, parted), tables)
        anew = turned._runner.restore_known(self._runner.snapshot())
        turned.plan = plan
        turned._values = turned._value_record(self._values.state(self.watermark))
        for one in plan.plans:
            if one.policy in parted:
                turned._runner.deploy(one)
        turned.reached, turned.latest = self.reached, self.latest
        turned._beats = list(self._beats)
        turned._open = OpenSituations(self._open.state())
        ends = turned._end_stopped(self.plan, parted)
        turned._ends = self._values.with_values(ends, self._tables, self.plan.sources)
        begun = sorted([*anew, *parted])
        for policy in begun:
            known = turned._open.of(policy)
            if known:
                began = {bindings_key(one.bindings): one.began for one in known}
                turned._runner.continue_open(policy, began)
        return turned, begun

    def _end_stopped(self, before: BucketPlan, parted: Container[str]) -> list[Detection]:
        """Ends the situations that no policy of this bucket can continue."""
        ends: list[Detection] = []
        past, now = before.situations(), self.plan.situations()
        for policy in self._open.count():
            if policy not in now:
                reason = self.plan.stopped.get(policy, "the policy was stopped")
            elif _aliases(past[policy]) != _aliases(now[policy]):
                reason = "the policy was replaced by one about other things"
            elif policy in parted:
                reason = "the policy is divided among other parts now"
            else:
                continue
            version = past[policy].version()
            ends += self._open.end(policy, version, reason, self.watermark)
        return ends


def _tick_position(beat: TimeMoved) -> int:
    return beat.after


def _merged_ticks(beats: Iterable[TimeMoved]) -> list[TimeMoved]:
    """In the order of positions; of several at one position the latest counts. A quiet site has
    many of them.
    """
    times: dict[int, int] = {}
    for beat in beats:
        times[beat.after] = max(beat.time, times.get(beat.after, beat.time))
    return [TimeMoved(times[after], after) for after in sorted(times)]


def _aliases(plan: SituationPlan) -> dict[str, str]:
    return {bound.alias: bound.concept for bound in plan.aliases}


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
"""Largest value in the state store."""
_LEAST_BYTES = 4 * 1024 * 1024
_MOST_ENTRIES = 100
_MARK_BYTES = 16


class StateMark(msgspec.Struct, frozen=True, array_like=True):
    """Identifies a state, and decides when the next snapshot is due."""

    digest: bytes
    entries: int
    """Batches since the snapshot."""
    given_bytes: int
    snapshot_bytes: int

    def is_snapshot_due(self) -> bool:
        """Once the batches since the last one are as large as a snapshot."""
        return self.entries >= _MOST_ENTRIES or self.given_bytes > max(
            _LEAST_BYTES, self.snapshot_bytes
        )


class StateEntry(msgspec.Struct, frozen=True, array_like=True):
    """A part of the stored state: entry 0 is the snapshot, 1 and on are the batches after it, each
    with the digest of the state it leads to. Large entries have several parts.
    """

    entry: int
    digest: bytes
    piece: bytes


class BucketStore(Protocol):
    """The state of one bucket; all changes of a micro-batch are committed together."""

    def mark(self) -> StateMark | None:
        """The mark of the stored state; None when there is none yet."""

    def entries(self) -> Iterator[StateEntry]:
        """All parts, in the order in which they were added."""

    def add(self, mark: StateMark, rows: Sequence[StateEntry]) -> None:
        """Appends parts."""

    def replace(self, mark: StateMark, rows: Sequence[StateEntry]) -> None:
        """Replaces all parts."""


class CachedBucket(msgspec.Struct):
    """A bucket in memory and the digest of its state."""

    digest: bytes
    bucket: Bucket


class BucketKeeper:
    """Restores a bucket from its store, gives it batches, and stores it."""

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
        """`cached`: the bucket that this process has in memory, which saves restoring it. It is
        used up, also after an error.
        """
        mark = store.mark()
        now = self._restored(store, mark, cached)
        is_other = not now.bucket.is_of(self._plan, self._tables)
        if is_other:
            now.bucket, anew = now.bucket.migrated_to(self._plan, self._tables)
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

    def _restored(
        self, store: BucketStore, mark: StateMark | None, cached: CachedBucket | None
    ) -> CachedBucket:
        """The bucket in the state that the store has."""
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
    """Encodes batches for the store, without events for quarantine, which are appended once."""
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
    """The parts of each entry joined; the snapshot comes first."""
    found: list[StateEntry] = []
    for _, pieces in groupby(rows, key=lambda row: row.entry):
        first, *more = pieces
        found.append(
            StateEntry(first.entry, first.digest, b"".join(one.piece for one in (first, *more)))
        )
    if [row.entry for row in found] != list(range(len(found))) or not found:
        raise Corrupt("pieces of a bucket are missing", code="live.bad_state")
    return found
