"""Many like tasks over the cores or the cluster, or one after the other in this process. [PI-3]"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from rapport.pipeline.faults import spark_faults

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Task = TypeVar("Task")
Result = TypeVar("Result")


def spread(
    spark: SparkSession | None,
    work: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    doing: str,
) -> list[Result]:
    """The results in the order of the tasks; one Spark task each. Without Spark, or for a single
    task, the work is done here.
    """
    if spark is None or len(tasks) < 2:
        return [work(task) for task in tasks]

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers = batch.column(0)
            for number, packed in zip(numbers, batch.column(1).to_pylist(), strict=True):
                result = pickle.dumps(work(pickle.loads(packed)))
                columns = [pa.array([number.as_py()], pa.int32()), pa.array([result], pa.binary())]
                yield pa.RecordBatch.from_arrays(columns, names=["number", "result"])

    with spark_faults(doing):
        rows = [(number, bytearray(pickle.dumps(task))) for number, task in enumerate(tasks)]
        frame = spark.createDataFrame(rows, "number INT, task BINARY")
        frame = frame.repartitionById(len(tasks), "number")
        found = frame.mapInArrow(run, "number INT, result BINARY").toArrow()
    results = dict(zip(found["number"].to_pylist(), found["result"].to_pylist(), strict=True))
    return [pickle.loads(results[number]) for number in range(len(tasks))]
