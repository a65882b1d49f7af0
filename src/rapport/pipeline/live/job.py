"""What a live query is: policies, how they share its buckets, and where it begins; as it travels
to Spark's workers. [PI-5]
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rapport.core.ids import content_id
from rapport.pipeline.live.sharing import Shares, share_out
from rapport.pipeline.sources.place import Place
from rapport.pipeline.worker_tables import WorkerTables, tables_asked
from rapport.policy.ontology import Ontology
from rapport.policy.operators import make_operator
from rapport.policy.operators.base import PullData
from rapport.policy.plan import Plan, decode_plan, encode_plan


class LiveJob(msgspec.Struct, frozen=True, kw_only=True):
    """All that workers need besides rows. Made anew when policies or tables change."""

    name: str
    """Of the site: the source of what is appended."""
    encoded: tuple[bytes, ...]
    """The plans as JSON: pickled ones would say of themselves to be other versions."""
    shares: Shares
    ontology: Ontology
    tables: WorkerTables
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
        tables=tables_asked(plans, pull),
        place=place,
        lateness_ms=lateness_ms,
        skew_ms=skew_ms,
        began=began,
        after=after,
        keys=keys,
        stamp=content_id(stamp, name, *versions, str(lateness_ms), *map(str, keys)),
    )
