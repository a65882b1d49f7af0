"""Everything about context in one run: one broker's speed, the source's experiment with brokers as
processes, and the simulated study of rare data. [CX-12]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.context.grid import (
    Measured,
    grid_lines,
    grid_plots,
    grid_results,
    idle_python_kb,
    measure,
)
from benchmarks.context.one_broker import one_broker
from benchmarks.context.published import MAIN_POINT, chosen, published
from benchmarks.context.simulated import (
    run_search_study,
    scale,
    study_lines,
    study_plots,
    study_results,
)
from benchmarks.results import Result
from rapport.core.errors import UnknownName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """How a run is wanted."""

    quick: bool
    full: bool = False
    """All of the published configurations."""
    plot: Path | None = None
    """A directory for SVG files."""
    lake: Path | None = None
    """Keeps the rows of the simulated study, which then goes on where it was."""
    master: str = ""
    """Of Spark, on which that study is made; empty: in this process."""


Part = Callable[[Asked], list[Result]]


def run(
    quick: bool,
    full: bool = False,
    part: str | None = None,
    plot: Path | None = None,
    lake: Path | None = None,
    master: str = "",
) -> dict[str, Any]:
    """Some ten minutes, one when quick, more than an hour when `full` (all 251 configurations).
    `plot` is a directory for SVG files; `lake` keeps the rows of the simulated study, `master` is
    where Spark makes it. Progress goes to stderr.
    """
    if part is not None and part not in PARTS:
        raise UnknownName("part of the benchmark context", part, list(PARTS))
    if plot is not None:
        plot.mkdir(parents=True, exist_ok=True)
    asked = Asked(quick=quick, full=full, plot=plot, lake=lake, master=master)
    results: list[Result] = []
    for name, measured in PARTS.items():
        if part in (None, name):
            _say(f"{name} …")
            results += measured(asked)
    return {"name": "context", "results": results}


def _broker(asked: Asked) -> list[Result]:
    return one_broker(asked.quick)


def _grid(asked: Asked) -> list[Result]:
    seconds, warm_s = (2.0, 1.0) if asked.quick else (10.0, 3.0)
    idle_kb = idle_python_kb()
    rows: list[Measured] = []
    for configuration in chosen(quick=asked.quick, full=asked.full):
        rows.append(measure(configuration, seconds=seconds, warm_s=warm_s))
        _say(f"{configuration}: {rows[-1].mean_us:,.0f} us")
    _say("\n".join(grid_lines(rows, idle_kb)))
    _draw(asked.plot, grid_plots(rows, idle_kb))
    main = published()[MAIN_POINT]
    searched = measure(main, seconds=seconds, warm_s=warm_s, copies=False)
    _say("\n".join(["without copies, so that requests walk:", *grid_lines([searched], idle_kb)]))
    return grid_results([*rows, searched], idle_kb)


def _search(asked: Asked) -> list[Result]:
    with _spark(asked.master) as spark:
        rows = run_search_study(quick=asked.quick, spark=spark, lake=asked.lake)
    _say("\n".join(study_lines(rows)))
    _draw(asked.plot, study_plots(rows))
    return study_results(rows)


def _scale(asked: Asked) -> list[Result]:
    return scale(asked.quick)


PARTS: dict[str, Part] = {"broker": _broker, "grid": _grid, "search": _search, "scale": _scale}


@contextmanager
def _spark(master: str) -> Iterator[SparkSession | None]:
    if not master:
        yield None
        return
    from rapport.pipeline.session import SparkSettings, running_spark

    with running_spark(SparkSettings(master=master)) as spark:
        yield spark


def _draw(plot: Path | None, drawn: dict[str, str]) -> None:
    if plot is not None:
        for name, picture in drawn.items():
            (plot / f"{name}.svg").write_text(picture, encoding="utf-8")


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
