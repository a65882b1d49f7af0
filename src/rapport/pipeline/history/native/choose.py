"""What of a plan Spark does by itself: all of it, a filter before the operators, or nothing. [PI-5]

This is the door of the room: history and live call the functions here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from rapport.pipeline.history.native.arrow_filter import Naming, arrow_filter
from rapport.pipeline.history.native.describe import described
from rapport.pipeline.history.native.interest import Interest, interest_of
from rapport.pipeline.history.native.row_filter import RowFilter
from rapport.pipeline.history.native.spark_filter import spark_filtered
from rapport.pipeline.history.native.whole import detected, why_not_native
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import PullData
from rapport.policy.plan import Plan

__all__ = [
    "Choice",
    "choose",
    "detected",
    "interest_filter",
    "kept_share",
    "prefiltered",
    "row_filter",
    "why_not_native",
]

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WORTH_LEAVING_OUT = 0.1
"""Asking costs a reading some hundredths of a microsecond, sorting and deciding it some tenths: it
pays from where about so much of them is left out.
"""

Way = Literal["native", "filter", "operators"]
Asked = Literal["auto", "native", "operators"]
"""Who is to decide plans that Spark can decide by itself; `auto`: whoever is cheaper."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """How a plan is best run on Spark; all three ways give the same detections."""

    policy: str
    way: Way
    """`native`: `detected` does all of it; `filter`: `prefiltered` or `interest_filter` before the
    operators; `operators`: on every reading of its streams.
    """
    reason: str
    """Why operators are needed; empty for `native`."""
    wanted: str
    """The readings that matter, in words."""
    kept: float | None = None
    """The share of a sample's readings of its streams that matter."""

    def text(self) -> str:
        """One sentence for people."""
        if self.way == "native":
            return (
                f"{self.policy}: wholly by Spark, because one event at a time decides it; "
                f"reads {self.wanted}"
            )
        share = "" if self.kept is None else f" ({self.kept:.0%} of a sample)"
        if self.way == "filter":
            return (
                f"{self.policy}: operators, because {self.reason}; Spark leaves out before them "
                f"all but {self.wanted}{share}"
            )
        return (
            f"{self.policy}: operators on every reading of its streams{share}, because "
            f"{self.reason}, and nearly every reading matters"
        )


def choose(
    plan: Plan,
    pull: PullData,
    sources: Mapping[str, PushSource] | None = None,
    *,
    sample: pa.RecordBatch | None = None,
    without_native: str = "",
) -> Choice:
    """How a plan is best run: by its shape and the tables, and by how much of a sample of readings
    matters to it where one is given. `without_native`: why Spark is not to decide it by itself.
    """
    interest = interest_of([plan], pull, sources)
    reason = why_not_native(plan) or without_native
    kept = None if sample is None else kept_share(interest, plan, sample)
    chosen: Way = "native"
    if reason:
        leaves_out = _can_leave_out(interest, plan, pull) if kept is None else 1 - kept
        chosen = "filter" if leaves_out >= WORTH_LEAVING_OUT else "operators"
    return Choice(
        policy=plan.policy, way=chosen, reason=reason, wanted=described(interest, pull), kept=kept
    )


def kept_share(interest: Interest, plan: Plan, sample: pa.RecordBatch) -> float:
    """Of the readings of a plan's streams in a sample, how many matter; 1 where there are none."""
    streams = pa.array(plan.streams(), pa.string())
    own = sample.filter(pc.is_in(sample.column("stream"), value_set=streams))
    return len(own.filter(arrow_filter(interest))) / len(own) if len(own) else 1.0


def _can_leave_out(interest: Interest, plan: Plan, pull: PullData) -> float:
    """A guess without readings: the share of known identities of which no reading at all is
    needed, in the stream where that is largest; 1 where values decide too.
    """
    watched = 0.0 if interest.sources else 1.0
    return watched * max((_left_out_of(interest, one, pull) for one in plan.streams()), default=0.0)


def _left_out_of(interest: Interest, stream: str, pull: PullData) -> float:
    whole: set[str] = set()
    for part in interest.of_stream(stream):
        if part.values is None:
            if part.keys is None:
                return 0.0
            whole |= part.keys
    known = len(pull.instances(stream.partition(".")[0]))
    return 1.0 - len(whole) / known if known else 1.0


def interest_filter(
    plans: Sequence[Plan],
    pull: PullData,
    sources: Mapping[str, PushSource] | None = None,
    *,
    began: int | None = None,
    column: Naming = str,
) -> pc.Expression | None:
    """What a task may leave out of the readings it reads: true for those that matter to the plans.

    Only after lateness was judged, by all readings. None where nothing but readings of streams
    that no plan reads can be left out. For `batch.filter(...)` of readings, or for a Parquet scan
    whose columns `column` names (`key`, `stream`, `time`, `source`, `<stream>.<part>` as in
    readings).

    Args:
        sources: those of the site: one with a period must be heard whole where absence depends on
            it.
        began: time of the first reading that is not late; all readings of that time are kept where
            plans count silence from it. Without it operators must be told it, and be run even when
            no reading is left.
    """
    interest = interest_of(plans, pull, sources, began=began)
    streams = {stream for plan in plans for stream in plan.streams()}
    if not interest.sources and all(map(interest.takes_all_of, streams)):
        return None
    return arrow_filter(interest, column)


def row_filter(
    plans: Sequence[Plan], pull: PullData, sources: Mapping[str, PushSource] | None = None
) -> RowFilter | None:
    """The same question for tasks whose rows have numbers for identities; None where every reading
    of the plans' streams matters. Readings of watched sources, and of the moment from which silence
    counts, are to be kept besides.
    """
    interest = interest_of(plans, pull, sources)
    streams = {stream for plan in plans for stream in plan.streams()}
    return None if all(map(interest.takes_all_of, streams)) else RowFilter(interest)


def prefiltered(
    rows: DataFrame,
    plans: Sequence[Plan],
    pull: PullData,
    sources: Mapping[str, PushSource] | None = None,
    *,
    began: int | None = None,
) -> DataFrame:
    """The same on Spark: the rows that matter, with all their columns, which are those of readings
    and perhaps others; before a shuffle.
    """
    return spark_filtered(rows, interest_of(plans, pull, sources, began=began))
