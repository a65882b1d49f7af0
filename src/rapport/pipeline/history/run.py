"""Policies over history in Parquet files, read and decided by Spark's workers. [PI-5, PO-8]

Nothing of the data passes through the driver: workers read the row groups they need, judge what is
late, sort, and run the same operators as the node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from rapport.core.errors import InvalidInput
from rapport.pipeline.errors import spark_errors
from rapport.pipeline.history.choosing import choose_ways
from rapport.pipeline.history.driving import Parts, drive
from rapport.pipeline.history.files import ReadingsFiles
from rapport.pipeline.history.found import HistoryFound
from rapport.pipeline.history.native.choose import Asked
from rapport.pipeline.history.native.running import detect_natively, judged_history
from rapport.pipeline.history.progress import Progress
from rapport.pipeline.history.result import SparkReplay
from rapport.pipeline.history.spark_engine import SparkEngine
from rapport.pipeline.history.switching import Pull, first_of, is_changing
from rapport.policy.ontology import PushSource
from rapport.policy.operators import make_operator
from rapport.policy.operators.base import END_OF_TIME
from rapport.policy.plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_PARTITIONS = 10_000
_ROWS_PER_SLICE = 4_000_000
_SLICES_PER_CORE = 3


def run_history(
    spark: SparkSession,
    plans: Sequence[Plan],
    pull: Pull,
    history: ReadingsFiles,
    *,
    lateness_ms: int,
    partitions: int | None = None,
    sources: Mapping[str, PushSource] | None = None,
    progress: Callable[[int], None] | None = None,
    most_late: int | None = None,
    needed_only: bool = False,
    way: Asked = "auto",
) -> SparkReplay:
    """What `LocalRunner` finds in the readings of `history` in arrival order, byte for byte.

    Args:
        pull: tables, or what they were at each time; where they change, operators decide all
            plans, in slices of time or in one piece, and no reading is left out beforehand.
        partitions: how many parts; None: as fits rows and cores. The result does not depend on it.
        sources: those of the site: periods, clock uncertainties and staleness matter.
        progress: called with the number of readings done so far, whenever a part is finished.
        most_late: keep about so many late readings (all are counted); None: all of them.
        needed_only: streams that no plan reads are not even judged: their late and faulty rows are
            not told.
        way: who decides plans that one event at a time decides: `native`, Spark by itself;
            `operators`; `auto`, whoever is cheaper. The result does not depend on it.

    Raises what `make_operator` raises, SiteError for files that cannot be read, and RapportErrors
    for whatever goes wrong on Spark.
    """
    found = find_in_history(
        spark,
        plans,
        pull,
        history,
        lateness_ms=lateness_ms,
        partitions=partitions,
        sources=sources,
        progress=progress,
        most_late=most_late,
        needed_only=needed_only,
        way=way,
    )
    return SparkReplay.of(found)


def find_in_history(
    spark: SparkSession,
    plans: Sequence[Plan],
    pull: Pull,
    history: ReadingsFiles,
    *,
    lateness_ms: int,
    partitions: int | None = None,
    sources: Mapping[str, PushSource] | None = None,
    progress: Callable[[int], None] | None = None,
    most_late: int | None = None,
    needed_only: bool = False,
    end: int = END_OF_TIME,
    way: Asked = "auto",
) -> HistoryFound:
    """The same for whoever does not want millions of detections in memory at once: they stay
    packed until they are asked for. Everything is decided up to before `end`.
    """
    check_plans(plans, pull, sources)
    with spark_errors("running policies over history"):
        cores = int(spark.sparkContext.defaultParallelism)
        parts = parts_of(partitions, history.rows, cores)
        first = first_of(pull)
        choices = choose_ways(
            plans, first, history, sources, "operators" if is_changing(pull) else way
        )
        own = [plan for plan, one in zip(plans, choices, strict=True) if one.way == "native"]
        rest = [plan for plan, one in zip(plans, choices, strict=True) if one.way != "native"]
        found = drive(
            rest,
            pull,
            history,
            SparkEngine(spark, rest, pull, Progress(history.rows, progress)),
            lateness_ms=lateness_ms,
            parts=parts,
            sources=sources,
            end=end,
            most_late=most_late,
            needed_only=needed_only,
            beside=own,
        )
        native = None
        if own:
            judged = judged_history(history, found.told, lateness_ms=lateness_ms, end=end)
            native = detect_natively(spark, own, first, judged)
        return msgspec.structs.replace(found, native=native, choices=choices)


def check_plans(
    plans: Sequence[Plan], pull: Pull, sources: Mapping[str, PushSource] | None
) -> None:
    """A plan that cannot run anywhere is refused here, not on a worker; raises what
    `make_operator` raises.
    """
    for plan in plans:
        make_operator(plan, first_of(pull), sources=sources)


def parts_of(partitions: int | None, rows: int, cores: int) -> Parts:
    """How many slices and buckets: given, or as fits the rows and the cores."""
    if partitions is None:
        slices = max(rows // _ROWS_PER_SLICE, _SLICES_PER_CORE * cores)
        return Parts(min(slices, MOST_PARTITIONS), cores)
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise InvalidInput(
            f"{partitions} is not a number of partitions",
            code="spark.bad_partitions",
            hint=f"choose 1 to {MOST_PARTITIONS}",
        )
    return Parts(partitions, partitions)
