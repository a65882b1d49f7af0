"""How far a job is, told whenever one of its tasks is finished. [PI-5]"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext


class Progress:
    """Adds up rows and tells somebody, never more than there are: a task that is run again after
    a failure counts twice.
    """

    def __init__(self, rows: int, tell: Callable[[int], None] | None) -> None:
        self._rows, self._tell = rows, tell
        self._done = 0

    def add(self, rows: int) -> None:
        """So many more are done."""
        self._done = min(self._done + rows, self._rows)
        if self._tell is not None and rows:
            self._tell(self._done)


def counted(context: SparkContext, progress: Progress) -> Accumulator[int]:
    """What tasks add to; the driver hears of it when a task has finished."""
    from pyspark.accumulators import AccumulatorParam

    class Told(AccumulatorParam[int]):  # type: ignore[misc]
        """Plain addition; beside that the driver's own copy tells `progress`."""

        def __init__(self, told: Progress | None) -> None:
            self._told = told

        def __reduce__(self) -> Any:
            return Told, (None,)

        def zero(self, value: int) -> int:
            return 0

        def addInPlace(self, value1: int, value2: int) -> int:
            if self._told is not None:
                self._told.add(value2)
            return value1 + value2

    return context.accumulator(0, Told(progress))
