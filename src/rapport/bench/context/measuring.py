"""Everything about context in one run: one broker's speed, the source's experiment with brokers as
processes, and the simulated study of rare data. [CX-12]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rapport.bench.context.grid import (
    Measured,
    grid_lines,
    grid_plots,
    grid_results,
    idle_python_kb,
    measure,
)
from rapport.bench.context.one_broker import one_broker
from rapport.bench.context.published import MAIN_POINT, chosen, published
from rapport.bench.context.simulated import (
    run_search_study,
    scale,
    study_lines,
    study_plots,
    study_results,
)
from rapport.bench.results import Result
from rapport.core.errors import UnknownName

Part = Callable[[bool, bool, Path | None], list[Result]]


def run(
    quick: bool, full: bool = False, part: str | None = None, plot: Path | None = None
) -> dict[str, Any]:
    """Some ten minutes, one when quick, more than an hour when `full` (all 251 configurations).
    `plot` is a directory for SVG files. Progress goes to stderr.
    """
    if part is not None and part not in PARTS:
        raise UnknownName("part of the benchmark context", part, list(PARTS))
    if plot is not None:
        plot.mkdir(parents=True, exist_ok=True)
    results: list[Result] = []
    for name, measured in PARTS.items():
        if part in (None, name):
            _say(f"{name} …")
            results += measured(quick, full, plot)
    return {"name": "context", "results": results}


def _broker(quick: bool, full: bool, plot: Path | None) -> list[Result]:
    return one_broker(quick)


def _grid(quick: bool, full: bool, plot: Path | None) -> list[Result]:
    seconds, warm_s = (2.0, 1.0) if quick else (10.0, 3.0)
    idle_kb = idle_python_kb()
    rows: list[Measured] = []
    for configuration in chosen(quick=quick, full=full):
        rows.append(measure(configuration, seconds=seconds, warm_s=warm_s))
        _say(f"{configuration}: {rows[-1].mean_us:,.0f} us")
    _say("\n".join(grid_lines(rows, idle_kb)))
    _draw(plot, grid_plots(rows, idle_kb))
    main = published()[MAIN_POINT]
    searched = measure(main, seconds=seconds, warm_s=warm_s, copies=False)
    _say("\n".join(["without copies, so that requests walk:", *grid_lines([searched], idle_kb)]))
    return grid_results([*rows, searched], idle_kb)


def _search(quick: bool, full: bool, plot: Path | None) -> list[Result]:
    rows = run_search_study(quick=quick)
    _say("\n".join(study_lines(rows)))
    _draw(plot, study_plots(rows))
    return study_results(rows)


def _scale(quick: bool, full: bool, plot: Path | None) -> list[Result]:
    return scale(quick)


PARTS: dict[str, Part] = {"broker": _broker, "grid": _grid, "search": _search, "scale": _scale}


def _draw(plot: Path | None, drawn: dict[str, str]) -> None:
    if plot is not None:
        for name, picture in drawn.items():
            (plot / f"{name}.svg").write_text(picture, encoding="utf-8")


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
