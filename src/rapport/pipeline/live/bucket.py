"""One bucket of a live query: a whole runner that is given its share of the stream and judges
lateness by all of it. Pure. [PI-5, PO-8, design 14]

However the stream is cut into batches and shared among buckets, together they find what one runner
finds that is fed with everything in the same order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rapport.core.detection import Cause, Detection, Undecided
from rapport.core.errors import Conflict, Corrupt, Problem
from rapport.pipeline.history.keys import Key
from rapport.pipeline.live.parcel import HIGH, POSITION, Parcel, Times, unpack_rows
from rapport.pipeline.worker_tables import WorkerTables, decode_tables
from rapport.policy.engine.stream_steps import TimeMoved
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import END_OF_TIME
from rapport.policy.plan import Plan, decode_plan, encode_plan
from rapport.policy.runner.local import LocalRunner

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


class Found(msgspec.Struct):
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

    def take(self, parcels: Iterable[Parcel]) -> Found:
        """Takes the parcels of one batch, in any order; raises Conflict when they overlap, or hold
        what was taken before.
        """
        given = list(parcels)
        self._beats = _latest([*self._beats, *(beat for parcel in given for beat in parcel.beats)])
        found, kept = Found(), list[pa.RecordBatch]()
        for parcel in sorted((one for one in given if one.last), key=lambda one: one.first):
            self._check_follows(parcel)
            kept += self._judge(parcel, found)
        self._meet(self.reached + 1)
        self._run(kept, found)
        return found

    def _check_follows(self, parcel: Parcel) -> None:
        if parcel.first <= self.reached:
            raise Conflict(
                f"events {parcel.first} to {parcel.last} come after event {self.reached}",
                code="live.out_of_order",
                hint="a live query reads positions in their order; start it with a new checkpoint",
            )

    def _meet(self, before: int) -> None:
        """The clock moved time on before this position."""
        met = bisect_left(self._beats, before, key=_place)
        self.latest = max(self.latest, *(beat.time for beat in self._beats[:met]), _BEGIN_OF_TIME)
        del self._beats[:met]

    def _judge(self, parcel: Parcel, found: Found) -> list[pa.RecordBatch]:
        """What of a parcel is not late, with how far the stream had come by then."""
        self._meet(parcel.first)
        inside = self._beats[: bisect_left(self._beats, parcel.last, key=_place)]
        kept: list[pa.RecordBatch] = []
        for raw, is_used in ((parcel.readings, True), (parcel.others, False)):
            rows = unpack_rows(raw)
            if rows is None:
                continue
            late = self._late(rows, inside)
            if late.any():
                found.late += _causes(rows.filter(pa.array(late)))
                rows = rows.filter(pa.array(~late))
            if is_used and len(rows):
                kept.append(rows.drop_columns([POSITION]))
        if parcel.latest is not None:
            self.latest = max(self.latest, parcel.latest)
        self._meet(parcel.last)
        self.reached = parcel.last
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

    def _run(self, kept: list[pa.RecordBatch], found: Found) -> None:
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
