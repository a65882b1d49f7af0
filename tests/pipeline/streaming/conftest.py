"""Random streams of a site with beats of the clock, and the two ways through them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from rapport.core.detection import Cause, Detection, Undecided, detection_order, unique_undecided
from rapport.core.errors import PolicyError
from rapport.kernel.clock import Chance
from rapport.pipeline.streaming.buckets import (
    BucketBatch,
    BucketKeeper,
    CachedBucket,
    StateEntry,
    StateMark,
    decode_batch,
    encode_batch,
)
from rapport.pipeline.streaming.decoder import DecodedRows
from rapport.pipeline.streaming.live_job import (
    BatchRouter,
    PolicyAssignment,
    assign_policies,
    plan_of_bucket,
)
from rapport.pipeline.worker_tables import WorkerTables, tables_for
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.engine.stream_steps import TimeMoved
from rapport.policy.named_values import WHY, NeededValues, needed_values, vocabulary
from rapport.policy.ontology import Ontology
from rapport.policy.operators import check_supported
from rapport.policy.operators.base import PullData
from rapport.policy.plan import Plan, PolicyPlan
from rapport.policy.runner.local import LocalRunner
from rapport.policy.situation_plan import SituationPlan
from rapport.tables.instances import Instances
from support.judge.holding import Reading
from support.situation_policies import ZONES, PolicyWriter
from support.situation_worlds import EDGES, ONTOLOGY, attributes_in, varied_world
from support.varied.policies import varied_policy
from support.varied.sites import varied_site
from support.varied.worlds import readings_batch

FAR_MS = 10_000_000
AHEAD_MS = 60
Outcome = tuple[list[Detection], list[Undecided], list[Cause]]


class Stream(msgspec.Struct):
    """Readings at positions 1 and on, in arrival order, and beats in the order of their places."""

    ontology: Ontology
    pull: PullData
    plans: list[PolicyPlan]
    readings: list[Reading]
    beats: list[TimeMoved]
    lateness_ms: int
    needed: dict[str, NeededValues] = {}

    @property
    def began(self) -> int:
        return self.readings[0].time

    def received(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """When readings arrived: every fourth is from a clock that is ahead."""
        times = np.array([one.time for one in self.readings], np.int64)
        ahead = np.where(np.arange(len(times)) % 4 == 1, AHEAD_MS, 0)
        received: npt.NDArray[np.int64] = np.maximum.accumulate(times - ahead)
        return received[first - 1 : last]


class DictShelf:
    """A shelf in memory; what is put there survives nothing but a new keeper."""

    def __init__(self) -> None:
        self._mark: StateMark | None = None
        self._rows: list[StateEntry] = []

    def mark(self) -> StateMark | None:
        return self._mark

    def entries(self) -> Iterator[StateEntry]:
        return iter(self._rows)

    def add(self, mark: StateMark, rows: Sequence[StateEntry]) -> None:
        self._mark, self._rows = mark, [*self._rows, *rows]

    def replace(self, mark: StateMark, rows: Sequence[StateEntry]) -> None:
        self._mark, self._rows = mark, list(rows)


class Ways:
    """What tests call."""

    shelf = DictShelf

    def stream(self, chance: Chance, *, events: int = 40, policies: int = 3) -> Stream:
        """A random site with policies that can be run, readings out of order, and beats."""
        site = varied_site(chance, events=events)
        plans = self.plans(chance, site.ontology, policies)
        lateness = chance.choice((0, 10, 50, 200))
        readings = _shaken(chance, site.readings)
        beats = _beats(chance, readings, lateness)
        return Stream(site.ontology, site.pull, plans, readings, beats, lateness)

    def stateful(self, chance: Chance, *, events: int = 40, with_values: bool = False) -> Stream:
        """A random world with situations and a policy with `while`; texts may name all."""
        edge, zone = chance.choice(EDGES), chance.choice(("Europe/Berlin", *ZONES))
        writer = PolicyWriter(chance, edge, zone)
        ontology = msgspec.structs.replace(ONTOLOGY, zone=zone)
        plans: list[PolicyPlan] = []
        texts: list[str] = []
        needed: dict[str, NeededValues] = {}
        for write in (writer.policy, writer.policy, writer.guarded):
            made = None
            while made is None:
                text, name = write(), f"p{len(plans)}"
                with contextlib.suppress(PolicyError):
                    made = compile_policy(text, name=name, ontology=ontology, window_ms=3_000)
            plans.append(made.plan)
            texts.append(text)
            if with_values and isinstance(made.plan, SituationPlan):
                named = [*vocabulary(made, ontology), WHY]
                needed[name] = needed_values(named, made, ontology)
        world = varied_world(
            chance,
            attributes_in("\n".join(texts)) or ["temperature"],
            edge=edge,
            zone=zone,
            events=events,
            changing_tables=False,
        )
        lateness = chance.choice((0, 700, 3_000))
        readings = _shaken(chance, world.readings, (0, 0, 0, 500, 2_900, 6_000))
        beats = _beats(chance, readings, lateness, (-500, 0, 1_000, 9_000))
        pull = world.tables[0].pull
        return Stream(ontology, pull, plans, readings, beats, lateness, needed)

    def plans(self, chance: Chance, ontology: Ontology, wanted: int) -> list[PolicyPlan]:
        """Random ones, named by number."""
        plans: list[PolicyPlan] = []
        while len(plans) < wanted:
            text, name = varied_policy(chance, ontology), f"p{len(plans)}"
            try:
                plan = compile_policy(text, name=name, ontology=ontology, window_ms=100).plan
            except PolicyError:
                continue
            assert isinstance(plan, Plan)
            if not check_supported(plan):
                plans.append(plan)
        return plans

    def other_tables(self, chance: Chance, stream: Stream) -> PullData:
        """The same identities, each with what another one had."""
        asked = tables_for(stream.plans, stream.pull)
        return WorkerTables(
            {one.concept: _shifted(chance, one) for one in asked.held()},
            asked._pairs,
            asked._days,
        )

    def runner(
        self,
        stream: Stream,
        plans: Sequence[PolicyPlan] | None = None,
        pull: PullData | None = None,
    ) -> LocalRunner:
        return LocalRunner(
            stream.plans if plans is None else plans,
            stream.pull if pull is None else pull,
            lateness_ms=stream.lateness_ms,
            sources=stream.ontology.sources,
            began=stream.began,
        )

    def alone(
        self,
        stream: Stream,
        plans: Sequence[PolicyPlan] | None = None,
        *,
        switch: tuple[int, PullData] | None = None,
    ) -> Outcome:
        """One runner fed one by one; goes over to other tables after a position, as a node does."""
        runner = self.runner(stream, plans)
        found: list[Detection] = []
        undecided: list[Undecided] = []
        beats = list(stream.beats)
        for position in range(len(stream.readings) + 1):
            if position:
                one = stream.readings[position - 1]
                received = stream.received(position, position)
                found += runner.feed(readings_batch([one], stream.ontology), received)
                undecided += runner.take_undecided()
            while beats and beats[0].after == position:
                found += runner.advance(beats.pop(0).time)
                undecided += runner.take_undecided()
            if switch is not None and position == switch[0]:
                runner = self.gone_over(stream, runner, plans, switch[1])
        return in_form(found, undecided, runner.take_late())

    def gone_over(
        self,
        stream: Stream,
        runner: LocalRunner,
        plans: Sequence[PolicyPlan] | None,
        pull: PullData,
    ) -> LocalRunner:
        """One that knows the same and looks things up elsewhere."""
        after = self.runner(stream, plans, pull)
        assert not after.restore_known(runner.snapshot())
        return after

    def parcels(
        self, stream: Stream, sharing: BatchRouter, batch: Batch
    ) -> list[list[BucketBatch]]:
        """By bucket the parcels of a batch, as they travel."""
        found: list[list[BucketBatch]] = []
        for decoded in self.decoded(stream, batch):
            made = sharing.batches(decoded)
            found = found or [[] for _ in made]
            for own, parcel in zip(found, made, strict=True):
                own.append(decode_batch(encode_batch(parcel)))
        return found

    def decoded(self, stream: Stream, batch: Batch) -> Iterator[DecodedRows]:
        none = readings_batch([], stream.ontology)
        if batch.beats:
            yield DecodedRows(0, 0, np.zeros(0, np.int64), none, [], batch.beats)
        for first, last in batch.stretches:
            rows = readings_batch(stream.readings[first - 1 : last], stream.ontology)
            received = stream.received(first, last)
            yield DecodedRows(first, last, np.arange(first, last + 1), rows, [], [], received)

    def shared(
        self, stream: Stream, batches: Sequence[Batch], buckets: int, chance: Chance
    ) -> Outcome:
        """Several buckets that are put away and taken up again in between, now and then by a
        process that has an older state in memory, or none.
        """
        shares = self.shares(stream, buckets)
        sharing = BatchRouter(stream.plans, shares, stream.pull, stream.ontology.sources)
        keepers = [self.keeper(stream, shares, number) for number in range(buckets)]
        shelves = [DictShelf() for _ in range(buckets)]
        memories: list[list[CachedBucket | None]] = [[None, None] for _ in range(buckets)]
        found: list[Detection] = []
        undecided: list[Undecided] = []
        late: list[Cause] = []
        for batch in batches:
            for number, own in enumerate(self.parcels(stream, sharing, batch)):
                worker = chance.randint(0, 1)
                memory, memories[number][worker] = memories[number][worker], None
                chance.shuffle(own)
                told, held = keepers[number].step(shelves[number], own, memory)
                memories[number][worker] = held if chance.randint(0, 3) else None
                found += told.detections
                undecided += told.undecided
                late += told.late
        return in_form(found, undecided, late)

    def shares(self, stream: Stream, buckets: int) -> PolicyAssignment:
        return assign_policies(stream.plans, stream.pull, stream.ontology.sources, buckets)

    def keeper(
        self,
        stream: Stream,
        shares: PolicyAssignment,
        number: int,
        stopped: Mapping[str, str] | None = None,
    ) -> BucketKeeper:
        plan = plan_of_bucket(
            number,
            stream.plans,
            shares,
            lateness_ms=stream.lateness_ms,
            sources=stream.ontology.sources,
            began=stream.began,
            after=0,
            stopped=stopped,
            needed=stream.needed,
        )
        return BucketKeeper(plan, tables_for(stream.plans, stream.pull))

    def batch(self, stretches: list[tuple[int, int]], beats: list[TimeMoved]) -> Batch:
        return Batch(stretches, beats)

    def cut(self, chance: Chance, stream: Stream) -> list[Batch]:
        """Batches of contiguous stretches; beats come with their place or before it."""
        batches: list[Batch] = []
        position, beats = 0, list(stream.beats)
        while position < len(stream.readings) or beats:
            batch = Batch([], [])
            for _ in range(chance.randint(0, 3)):
                until = min(position + chance.randint(1, 12), len(stream.readings))
                if until > position:
                    batch.stretches.append((position + 1, until))
                    position = until
            while beats and (beats[0].after <= position or chance.randint(0, 3) == 0):
                batch.beats.append(beats.pop(0))
            batches.append(batch)
        return batches


class Batch(msgspec.Struct):
    """Stretches of positions and beats that are read together."""

    stretches: list[tuple[int, int]]
    beats: list[TimeMoved]


def in_form(found: list[Detection], undecided: list[Undecided], late: list[Cause]) -> Outcome:
    """In one order; late ones that stand in several buckets once."""
    return sorted(found, key=detection_order), unique_undecided(undecided), sorted(set(late))


def _shifted(chance: Chance, instances: Instances) -> Instances:
    by = chance.randint(1, max(1, len(instances) - 1))
    columns = {name: np.roll(values, by, axis=0) for name, values in instances.columns.items()}
    return Instances(instances.concept, list(instances.ids), columns)


def _shaken(
    chance: Chance,
    readings: Sequence[Reading],
    late_ms: Sequence[int] = (0, 0, 0, 10, 60, 300),
) -> list[Reading]:
    """Some come later than they should, some much later."""
    delays = {
        number: chance.choice(late_ms) + reading.time for number, reading in enumerate(readings)
    }
    return [readings[number] for number in sorted(delays, key=lambda n: (delays[n], n))]


def _beats(
    chance: Chance,
    readings: Sequence[Reading],
    lateness: int,
    ahead_ms: Sequence[int] = (-50, 0, 30, 300),
) -> list[TimeMoved]:
    beats = []
    for position in range(1, len(readings) + 1):
        if chance.randint(0, 7) == 0:
            time = max(one.time for one in readings[:position])
            beats.append(TimeMoved(time + chance.choice(ahead_ms), position))
    return [*beats, TimeMoved(readings[-1].time + FAR_MS, len(readings))]


@pytest.fixture(scope="session")
def ways() -> Ways:
    return Ways()
