"""Many like tasks over the cores or the cluster, or one after the other in this process. [PI-8]"""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from rapport.core.errors import Unavailable
from rapport.pipeline.errors import spark_errors

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
    processes: int = 1,
) -> list[Result]:
    """The results in the order of the tasks; one Spark task each. Without Spark in so many
    processes of this machine; with one of them, or for a single task, the work is done here.
    """
    if spark is None and processes > 1 and len(tasks) > 1:
        return _spread_here(work, tasks, doing, min(processes, len(tasks)))
    if spark is None or len(tasks) < 2:
        return [work(task) for task in tasks]

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers = batch.column(0)
            for number, packed in zip(numbers, batch.column(1).to_pylist(), strict=True):
                result = pickle.dumps(work(pickle.loads(packed)))
                columns = [pa.array([number.as_py()], pa.int32()), pa.array([result], pa.binary())]
                yield pa.RecordBatch.from_arrays(columns, names=["number", "result"])

    with spark_errors(doing):
        rows = [(number, bytearray(pickle.dumps(task))) for number, task in enumerate(tasks)]
        frame = spark.createDataFrame(rows, "number INT, task BINARY")
        frame = frame.repartitionById(len(tasks), "number")
        found = frame.mapInArrow(run, "number INT, result BINARY").toArrow()
    results = dict(zip(found["number"].to_pylist(), found["result"].to_pylist(), strict=True))
    return [pickle.loads(results[number]) for number in range(len(tasks))]


def _spread_here(
    work: Callable[[Task], Result], tasks: Sequence[Task], doing: str, processes: int
) -> list[Result]:
    """Over fresh processes, which import what the work is made of; the first task that fails ends
    it, those that run are finished.
    """
    # Who interrupts this process means it alone: the others end when their task has.
    unmoved = (signal.SIGINT, signal.SIG_IGN)
    context = get_context("spawn")
    with ProcessPoolExecutor(
        processes, mp_context=context, initializer=signal.signal, initargs=unmoved
    ) as pool:
        try:
            return list(pool.map(work, tasks))
        except BrokenProcessPool as broken:
            raise Unavailable(
                f"a process was ended while {doing}",
                code="grid.process_ended",
                hint="is there enough memory? run it again, it goes on where it was",
            ) from broken
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
