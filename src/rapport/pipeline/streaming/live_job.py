"""The job of a live query: its policies, how they share buckets, and the readings that each bucket
needs. Pure but for `policies_on_spark`. [PI-5, PO-8, PO-9]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rapport.communication.config import communication_from_site
from rapport.core.codec import encode_block
from rapport.core.errors import Conflict, SiteError
from rapport.core.event import content_id
from rapport.pipeline.datasource.locations import Location
from rapport.pipeline.datasource.offsets import PositionRange
from rapport.pipeline.history.keys import EVERY, Key, Router, choose_key
from rapport.pipeline.streaming.buckets import (
    HIGH,
    POSITION,
    BucketBatch,
    BucketPlan,
    pack_rows,
    running_high,
)
from rapport.pipeline.streaming.decoder import DecodedRows, read_events
from rapport.pipeline.worker_tables import WorkerTables, tables_for
from rapport.policy.compiler.compile import CompiledPolicy
from rapport.policy.engine.spark_policies import SparkPolicies
from rapport.policy.lifecycle.registry import (
    CHANNEL,
    WHY_WITHDRAWN,
    PolicyEntry,
    PolicyRegistry,
    recorded_change,
)
from rapport.policy.named_values import NeededValues
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.operators.uncertainty import watched_sources
from rapport.policy.plan import Plan, PolicyPlan, decode_plan, encode_plan
from rapport.policy.runner.deployed_plans import check_plan
from rapport.policy.situation_plan import SituationPlan
from rapport.site.actions import needed_by_texts
from rapport.site.interpretations import terms_of_policies
from rapport.site.policies import PolicyFile, compile_text
from rapport.site.site import Site

Mask = npt.NDArray[np.bool_]


KeptPlaces = Mapping[str, str | int]
"""Where policies ran before: the alias by which they are parted, or the bucket of whole ones."""


class PolicyAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """By policy its partition key, or the one bucket in which it runs whole."""

    buckets: int
    keys: dict[str, Key]
    homes: dict[str, int]
    reasons: dict[str, str]
    """Why those run whole."""

    def places(self) -> dict[str, str | int]:
        """Where each policy runs."""
        return {name: key.alias for name, key in self.keys.items()} | self.homes

    def explain(self) -> list[str]:
        parted = {
            name: f"{name}: {self.buckets} buckets by {key.alias}"
            for name, key in self.keys.items()
        }
        whole = {
            name: f"{name}: whole, in bucket {home}, because {self.reasons[name]}"
            for name, home in self.homes.items()
        }
        return [line for _, line in sorted((parted | whole).items())]


def assign_policies(
    plans: Sequence[PolicyPlan],
    pull: PullData,
    sources: Mapping[str, PushSource],
    buckets: int,
    kept: KeptPlaces | None = None,
) -> PolicyAssignment:
    """Partitions the plans that have a key; spreads the others over the buckets.

    `kept`: situations stay where they are, since what is open lasts longer than any window; others
    that run whole stay in their bucket.
    """
    keys: dict[str, Key] = {}
    reasons: dict[str, str] = {}
    kept = kept or {}
    for plan in plans:
        chosen = _place(plan, pull, sources, buckets, kept.get(plan.policy))
        if isinstance(chosen, Key):
            keys[plan.policy] = chosen
        else:
            reasons[plan.policy] = chosen
    homes = {name: home for name in reasons if isinstance(home := kept.get(name), int)}
    counts = Counter(homes.values())
    for name in sorted(reasons.keys() - homes.keys()):
        homes[name] = min(range(buckets), key=lambda number: (counts[number], number))
        counts[homes[name]] += 1
    return PolicyAssignment(buckets=buckets, keys=keys, homes=homes, reasons=reasons)


def _place(
    plan: PolicyPlan,
    pull: PullData,
    sources: Mapping[str, PushSource],
    buckets: int,
    kept: str | int | None,
) -> Key | str:
    if buckets == 1:
        return "there is one bucket only"
    if not isinstance(plan, SituationPlan):
        return choose_key(plan, pull, sources, is_live=True)
    if isinstance(kept, int):
        return "it began so"
    return choose_key(plan, pull, sources, is_live=True, kept=kept or "")


def plan_of_bucket(
    number: int,
    plans: Sequence[PolicyPlan],
    shares: PolicyAssignment,
    *,
    lateness_ms: int,
    sources: Mapping[str, PushSource],
    began: int | None,
    after: int,
    stopped: Mapping[str, str] | None = None,
    needed: Mapping[str, NeededValues] | None = None,
) -> BucketPlan:
    own = tuple(one for one in plans if shares.homes.get(one.policy, number) == number)
    names = {one.policy for one in own}
    return BucketPlan(
        number=number,
        buckets=shares.buckets,
        plans=own,
        keys={one.policy: shares.keys[one.policy] for one in own if one.policy in shares.keys},
        lateness_ms=lateness_ms,
        sources=sources,
        began=began,
        after=after,
        stopped=stopped or {},
        needed={name: values for name, values in (needed or {}).items() if name in names},
    )


class BatchRouter:
    """Makes bucket batches: every bucket gets the readings its plans use, and enough of the rest
    to judge lateness. Remembers the identities it has seen.
    """

    def __init__(
        self,
        plans: Sequence[PolicyPlan],
        shares: PolicyAssignment,
        pull: PullData,
        sources: Mapping[str, PushSource],
    ) -> None:
        self._shares = shares
        self._router = Router(shares.keys.values(), pull, shares.buckets) if shares.keys else None
        self._streams: list[set[str]] = [set() for _ in range(shares.buckets)]
        self._sources: list[set[str]] = [set() for _ in range(shares.buckets)]
        for plan in plans:
            home = shares.homes.get(plan.policy)
            if home is not None:
                self._streams[home].update(plan.streams())
                if isinstance(plan, Plan):
                    self._sources[home].update(watched_sources(plan, sources))

    def batches(self, decoded: DecodedRows) -> list[BucketBatch]:
        """One for every bucket, in their order; none when the rows have no events and no ticks."""
        if not (decoded.last or decoded.beats):
            return []
        rows, latest = _with_places(decoded)
        wanted = self._wanted(decoded.readings)
        others = _others(rows.filter(pa.array(~np.logical_or.reduce(wanted))))
        aside = encode_block(decoded.aside) if decoded.aside else b""
        return [
            BucketBatch(
                first=decoded.first,
                last=decoded.last,
                latest=latest,
                beats=tuple(decoded.beats),
                readings=pack_rows(rows if own.all() else rows.filter(pa.array(own))),
                # One bucket reports readings that no policy uses.
                others=pack_rows(others) if number == 0 else b"",
                aside=aside if number == 0 else b"",
            )
            for number, own in enumerate(wanted)
        ]

    def _wanted(self, readings: pa.RecordBatch) -> list[Mask]:
        """By bucket which readings it needs."""
        if self._router is None:
            wanted = [np.zeros(len(readings), np.bool_) for _ in range(self._shares.buckets)]
        else:
            places = self._router.buckets(readings)
            wanted = [
                (places == number) | (places == EVERY) for number in range(self._shares.buckets)
            ]
        for number, mask in enumerate(wanted):
            for column, names in (("stream", self._streams), ("source", self._sources)):
                if names[number]:
                    mask |= _is_in(readings.column(column), names[number])
        return wanted


def _is_in(column: pa.Array, names: set[str]) -> Mask:
    found: Mask = pc.is_in(column, pa.array(sorted(names), pa.string())).to_numpy(
        zero_copy_only=False
    )
    return found


def _with_places(decoded: DecodedRows) -> tuple[pa.RecordBatch, int | None]:
    """The readings with their positions and the largest time so far, and the largest of all."""
    readings = decoded.readings
    times = readings.column("time").to_numpy()
    # As live in the node: no reading moves time beyond its arrival.
    high = running_high(times if decoded.received is None else np.minimum(times, decoded.received))
    columns = [pa.array(decoded.positions, pa.int64()), pa.array(high, pa.int64())]
    rows = pa.RecordBatch.from_arrays(
        [*columns, *readings.columns], names=[POSITION, HIGH, *readings.schema.names]
    )
    return rows, int(high[-1]) if len(high) else None


def _others(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.select([POSITION, HIGH, "time", "id"])


class LiveJob(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that workers need besides rows. Made anew when policies or tables change."""

    name: str
    """The site's name: the source of appended events."""
    encoded: tuple[bytes, ...]
    """The plans as JSON: pickled plans would have other versions."""
    assignment: PolicyAssignment
    ontology: Ontology
    tables: WorkerTables
    location: Location
    lateness_ms: int
    skew_ms: int
    began: int | None
    """When the policies started, see BucketPlan."""
    after: int
    """The position of `events` behind which reading begins."""
    keys: tuple[int, ...]
    """By bucket the number under which Spark keeps its state."""
    stamp: str
    """Tells this job from others in the memory of a worker."""
    stopped: dict[str, str] = {}
    needed: dict[str, NeededValues] = {}
    """See BucketPlan."""

    def plans(self) -> list[PolicyPlan]:
        return [decode_plan(raw) for raw in self.encoded]


def make_job(
    *,
    name: str,
    policies: LivePolicies,
    ontology: Ontology,
    pull: PullData,
    location: Location,
    lateness_ms: int,
    skew_ms: int,
    keys: tuple[int, ...],
    began: int | None = None,
    after: int = 0,
    kept: KeptPlaces | None = None,
    stamp: str = "",
) -> LiveJob:
    """Raises the errors of `check_plan` for a plan that cannot run, here and not on a worker.

    `stamp`: distinguishes the job from others with the same policies, such as a start time.
    """
    plans = policies.plans
    for plan in plans:
        check_plan(plan, pull, ontology.sources)
    versions = [f"{plan.policy}@{plan.version()}" for plan in plans]
    return LiveJob(
        name=name,
        encoded=tuple(encode_plan(plan) for plan in plans),
        assignment=assign_policies(plans, pull, ontology.sources, len(keys), kept),
        ontology=ontology,
        tables=tables_for(plans, pull),
        location=location,
        lateness_ms=lateness_ms,
        skew_ms=skew_ms,
        began=began,
        after=after,
        keys=keys,
        stamp=content_id(stamp, name, *versions, str(lateness_ms), *map(str, keys)),
        stopped=policies.stopped,
        needed=policies.needed,
    )


class LivePolicies(msgspec.Struct, frozen=True):
    """The plans that a site lets run on Spark, why others do not run any more, and the values that
    texts of situations name."""

    plans: tuple[PolicyPlan, ...]
    stopped: dict[str, str] = {}
    needed: dict[str, NeededValues] = {}


def policies_on_spark(site: Site, place: Location) -> LivePolicies:
    """Raises Conflict when a version on record cannot be made from what the site says now, and
    SiteError when its text does not compile.
    """
    chosen = SparkPolicies(site.on_spark)
    registry = _registry(place)
    if not registry.entries:  # no node has run yet: what its files say will run
        known = sorted(site.policies.items())
        return _live_policies(site, [one for name, one in known if name in chosen], {})
    entries = [one for one in registry.alive() if one.state == "running" and one.name in chosen]
    stopped = {
        name: WHY_WITHDRAWN[one.state]
        for name, one in registry.entries.items()
        if one.state in WHY_WITHDRAWN
    }
    return _live_policies(site, [_compiled(site, entry) for entry in entries], stopped)


def _live_policies(
    site: Site, compiled: Sequence[CompiledPolicy], stopped: dict[str, str]
) -> LivePolicies:
    people, _problems = communication_from_site(site.file, site.directory)
    needed = {
        one.plan.policy: needed_by_texts(one, people, site.ontology)
        for one in compiled
        if isinstance(one.plan, SituationPlan)
    }
    return LivePolicies(tuple(one.plan for one in compiled), stopped, needed)


def _registry(place: Location) -> PolicyRegistry:
    registry = PolicyRegistry()
    with place.opened() as opened:
        span = opened.span(CHANNEL)
    for stored in read_events(place, PositionRange(CHANNEL, span.first - 1, span.last)):
        kept = recorded_change(stored)
        if kept is not None:
            registry.add(kept)
    return registry


def _compiled(site: Site, entry: PolicyEntry) -> CompiledPolicy:
    known = site.policies.get(entry.name)
    if known is not None and known.plan.version() == entry.version:
        return known
    terms, faults = terms_of_policies(site.file, site.directory, site.ontology, [entry.name])
    file = PolicyFile(entry.name, Path(f"{entry.name}.dpl"), f"{entry.name} (on record)")
    compiled, problems = compile_text(
        file, entry.text, site.ontology, site.window_ms, terms.terms.get(entry.name)
    )
    if compiled is None:
        raise SiteError([one for one in (*faults, *problems) if one.severity == "error"])
    if compiled.plan.version() != entry.version:
        raise Conflict(
            f"policy {entry.name!r} is version {entry.version} in the node, but what the site says "
            f"now makes it {compiled.plan.version()}",
            code="live.other_policy",
            hint="let the node take in the site: rapport policy reload",
        )
    return compiled
