"""Policies over history on Spark: the same operators as in the node, in parallel. [PI-5, PO-8]

Readings are written to Parquet, spread over tasks as `partitioning.py` says, sorted by Spark, and
given to the operators batch by batch; the detections are the same bytes as the local runner's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from rapport.core.detection import Cause, Detection, Undecided, detection_order, each_once
from rapport.core.errors import InvalidInput
from rapport.pipeline.faults import spark_faults
from rapport.pipeline.history.ingest import Ingestion
from rapport.pipeline.history.partitioning import Layout, lay_out
from rapport.pipeline.history.tasks import (
    DETECTIONS,
    Job,
    detections_from,
    encode_detections,
    run_tasks,
    undecided_from,
)
from rapport.pipeline.lake.files import spark_path
from rapport.policy.ontology import PushSource
from rapport.policy.plan import Plan, encode_plan
from rapport.policy.runners.base import END_OF_TIME, PullData
from rapport.policy.runners.operators import make_operator
from rapport.policy.runners.operators.predicate import looked_up

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_PARTITIONS = 10_000


class SparkReplay(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay on Spark found; `detections` in the order of the fixed output."""

    detections: list[Detection]
    late: list[Cause]
    events: int
    layout: Layout
    undecided: list[Undecided] = []


def replay_spark(
    spark: SparkSession,
    plans: Sequence[Plan],
    pull: PullData,
    readings: Iterable[pa.RecordBatch],
    *,
    lateness_ms: int,
    partitions: int | None = None,
    directory: Path | None = None,
    goes_on: Callable[[], bool] = lambda: False,
    sources: Mapping[str, PushSource] | None = None,
) -> SparkReplay:
    """Runs the plans over readings given in arrival order, as one Spark job.

    `partitions` (default: twice the cores) is the number of time slices. `directory` is where the
    readings are kept while the job runs, a temporary one by default; on a cluster every worker must
    see it. `goes_on` is asked when all readings are read: if more are to come another time, only
    what is certain already is decided, as a local runner would have it. `sources` are those of the
    site: one with a period can leave absence undecided. Raises what `make_operator` raises, and
    RapportErrors for whatever goes wrong on Spark.
    """
    for plan in plans:
        make_operator(
            plan, pull, sources=sources
        )  # a plan that cannot run is refused here, not on a worker
    with tempfile.TemporaryDirectory(prefix="rapport-replay-", dir=directory) as folder:
        path = Path(folder) / "readings.parquet"
        ingestion = Ingestion(lateness_ms)
        schema = ingestion.write(readings, path)
        with spark_faults("replaying on Spark"):
            parts = _checked(partitions, spark)
            end = ingestion.watermark() if goes_on() else END_OF_TIME
            known = dict(sources or {})
            layout = lay_out(plans, ingestion.sampled_times(), parts, end, known)
            found = pa.Table.from_batches([encode_detections([])])
            if schema is not None and layout.tasks:
                rows = _readings(spark, path, plans).where(f"time < {end}L")
                rows = spread(rows, schema.names, layout)
                job = Job(
                    plans=[encode_plan(plan) for plan in plans],
                    tasks=layout.tasks,
                    schema=schema.serialize().to_pybytes(),
                    sources=known,
                    began=ingestion.first,
                )
                found = _detect(rows, plans, pull, job)
    return SparkReplay(
        detections=sorted(detections_from(found), key=detection_order),
        undecided=each_once(undecided_from(found)),
        late=ingestion.late,
        events=ingestion.events,
        layout=layout,
    )


def spread(rows: DataFrame, columns: Sequence[str], layout: Layout) -> DataFrame:
    """Every reading once per task that needs it: `task`, then the columns without their names.

    One Spark partition per task, in event order; equal times go by id as UTF-8 bytes, which is the
    order of code points.
    """
    bounds = ", ".join(f"{bound}L" for bound in layout.bounds)

    def slice_of(time: str) -> str:
        return f"size(filter(array({bounds}), bound -> bound <= {time}))" if bounds else "0"

    # An event is read by slices that begin later and that end earlier, each up to a distance;
    # times at the ends of the scale must not overflow.
    first = slice_of(f"coalesce(try_subtract(time, {layout.look_ahead_ms}L), time)")
    last = slice_of(f"coalesce(try_add(time, {layout.look_back_ms}L), time)")
    slices = f"sequence({first}, {last})" if layout.slices else "array()"
    whole = ", ".join(str(task) for task in range(layout.slices, len(layout.tasks)))
    # Spark does not hand columns with dots in their names to Python: they go by number.
    numbered = [f"`{name}` AS c{number}" for number, name in enumerate(columns)]
    order = [f"c{columns.index(name)}" for name in ("time", "id")]
    return (
        rows.selectExpr(f"explode(concat({slices}, array({whole}))) AS task", *numbered)
        .repartitionById(len(layout.tasks), "task")
        .sortWithinPartitions("task", *order)
    )


def _readings(spark: SparkSession, path: Path, plans: Sequence[Plan]) -> DataFrame:
    from pyspark.sql.functions import col

    streams = sorted({stream for plan in plans for stream in plan.streams()})
    rows = spark.read.parquet(spark_path(path))
    return rows.where(~col("late") & col("stream").isin(streams))


def _detect(rows: DataFrame, plans: Sequence[Plan], pull: PullData, job: Job) -> pa.Table:
    concepts = sorted({concept for plan in plans for concept in plan.concepts()})
    instances = {concept: pull.instances(concept) for concept in concepts}
    functions = sorted({name for plan in plans for name in looked_up(plan)})
    pairs = {name: dict(pull.pairs(name)) for name in functions}
    # Tables travel once per worker, not once per task.
    shared = rows.sparkSession.sparkContext.broadcast((instances, pairs))

    def detect(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        known, numbers = shared.value
        return run_tasks(job, known, batches, numbers)

    try:
        return rows.mapInArrow(detect, DETECTIONS).toArrow()
    finally:
        shared.destroy()


def _checked(partitions: int | None, spark: SparkSession) -> int:
    if partitions is None:
        return 2 * int(spark.sparkContext.defaultParallelism)
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise InvalidInput(
            f"{partitions} is not a number of partitions",
            code="spark.bad_partitions",
            hint=f"choose 1 to {MOST_PARTITIONS}",
        )
    return partitions
