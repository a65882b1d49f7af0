"""What a live query is: policies, how they share its buckets, and where it begins; and the tables
as they travel to Spark's workers. [PI-5]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from rapport.core.errors import UnknownName
from rapport.core.ids import content_id
from rapport.pipeline.live.sharing import Shares, share_out
from rapport.pipeline.sources.place import Place
from rapport.policy.ontology import Ontology
from rapport.policy.plan import Plan, decode_plan, encode_plan
from rapport.policy.runners.base import PullData
from rapport.policy.runners.operators import make_operator
from rapport.policy.runners.operators.predicate import looked_up
from rapport.tables.instances import Instances

Pairs = Mapping[str, Mapping[tuple[str, ...], float]]


class SentTables:
    """Those of a site's tables that the plans ask for, as a copy; a `PullData`."""

    def __init__(self, pull: PullData, plans: Sequence[Plan]) -> None:
        concepts = sorted({concept for plan in plans for concept in plan.concepts()})
        functions = sorted({name for plan in plans for name in looked_up(plan)})
        self._instances = {concept: pull.instances(concept) for concept in concepts}
        self._pairs: Pairs = {name: dict(pull.pairs(name)) for name in functions}

    def instances(self, concept: str) -> Instances:
        """The instances of a concept, empty when no table gives any."""
        known = self._instances.get(concept)
        return Instances(concept, [], {}) if known is None else known

    def pairs(self, function: str) -> Mapping[tuple[str, ...], float]:
        """What a looked-up function gives; raises UnknownName."""
        if function not in self._pairs:
            raise UnknownName("looked-up function", function, list(self._pairs))
        return self._pairs[function]


class LiveJob(msgspec.Struct, frozen=True, kw_only=True):
    """All that workers need besides rows. Made anew when policies or tables change."""

    name: str
    """Of the site: the source of what is appended."""
    encoded: tuple[bytes, ...]
    """The plans as JSON: pickled ones would say of themselves to be other versions."""
    shares: Shares
    ontology: Ontology
    tables: SentTables
    place: Place
    """Where the channels are."""
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

    def plans(self) -> list[Plan]:
        """The plans of all policies."""
        return [decode_plan(raw) for raw in self.encoded]


def make_job(
    *,
    name: str,
    plans: Sequence[Plan],
    ontology: Ontology,
    pull: PullData,
    place: Place,
    lateness_ms: int,
    skew_ms: int,
    keys: tuple[int, ...],
    began: int | None = None,
    after: int = 0,
    stamp: str = "",
) -> LiveJob:
    """Raises what `make_operator` raises for a plan that cannot run, here and not on a worker.

    `stamp`: what else tells the job from others, such as the start of its query.
    """
    for plan in plans:
        make_operator(plan, pull, sources=ontology.sources)
    versions = [f"{plan.policy}@{plan.version()}" for plan in plans]
    return LiveJob(
        name=name,
        encoded=tuple(encode_plan(plan) for plan in plans),
        shares=share_out(plans, pull, ontology.sources, len(keys)),
        ontology=ontology,
        tables=SentTables(pull, plans),
        place=place,
        lateness_ms=lateness_ms,
        skew_ms=skew_ms,
        began=began,
        after=after,
        keys=keys,
        stamp=content_id(stamp, name, *versions, str(lateness_ms), *map(str, keys)),
    )
