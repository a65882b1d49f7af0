"""`rapport bench NAME`: one JSON object or a table, with machine and commit. [UX-3]"""

from __future__ import annotations

import importlib
import os
import platform
import subprocess
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from rapport.cli.output import print_note, write_json, write_table
from rapport.core.errors import InvalidInput, UnknownName

_ROOMS = (
    "channel",
    "communication",
    "context",
    "ensemble",
    "mediation",
    "policy",
    "situations",
    "spark",
)
_MODULES = {
    **{name: f"{name}.measuring" for name in _ROOMS},
    **{name: f"channel.{name}" for name in ("doors", "embedded", "history", "soap")},
    "console": "console",
    "peers": "peers",
    "scale": "spark.scale",
}
NAMES = tuple(sorted(_MODULES))
_WITH_FULL = ("channel", "communication", "context", "embedded", "history", "scale", "spark")
_WITH_PLOT = ("communication", "context")
_WITH_PART = ("context", "ensemble")


def bench(
    name: str,
    *,
    quick: Annotated[bool, Parameter(help="Smaller amounts, for a first look.")] = False,
    full: Annotated[
        bool,
        Parameter(
            help="Up to 1e7 events, spark up to 1e8, communication 1e6 a cell, context all of the "
            "published configurations; minutes, an hour."
        ),
    ] = False,
    events: Annotated[
        int | None, Parameter(help="spark: how many events of history, otherwise 1e7.")
    ] = None,
    year: Annotated[
        bool, Parameter(help="spark: also a year of 131 million readings.", negative="")
    ] = False,
    part: Annotated[
        str | None,
        Parameter(
            help="context: only broker, grid, search or scale; ensemble: only sweep, rumours, "
            "simpy, node, large or huge."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        Parameter(
            help="communication: draw the grid into this SVG file; context: the plots into this "
            "directory."
        ),
    ] = None,
    lake: Annotated[
        Path | None,
        Parameter(
            help="context: keep the rows of the search in this lake, and go on where it was."
        ),
    ] = None,
    master: Annotated[
        str | None, Parameter(help="context: make the search on Spark there, such as local[2].")
    ] = None,
    json: Annotated[bool, Parameter(help="One JSON object on stdout.")] = False,
) -> None:
    """Run a benchmark: channel (and its parts embedded, peers, doors, soap, history),
    communication, console, context, ensemble, mediation, policy, spark, or scale (jobs on Spark at
    several sizes).
    """
    if name not in NAMES:
        raise UnknownName("benchmark", name, NAMES)
    if full and (quick or name not in _WITH_FULL):
        raise InvalidInput(
            f"a full run have only {', '.join(_WITH_FULL)}",
            code="cli.bad_option",
            hint="leave out --full",
        )
    if (events is not None or year) and name != "spark":
        raise InvalidInput(
            "--events and --year are for the benchmark spark",
            code="cli.bad_option",
            hint="leave them out",
        )
    if plot is not None and name not in _WITH_PLOT:
        raise InvalidInput(
            f"--plot is for the benchmarks {', '.join(_WITH_PLOT)}",
            code="cli.bad_option",
            hint="leave it out",
        )
    if part is not None and name not in _WITH_PART:
        raise InvalidInput(
            f"--part is for the benchmarks {', '.join(_WITH_PART)}",
            code="cli.bad_option",
            hint="leave it out",
        )
    if (lake or master) and (name != "context" or part not in (None, "search")):
        raise InvalidInput(
            "--lake and --master are for the search of the benchmark context",
            code="cli.bad_option",
            hint="leave them out",
        )
    print_note(f"benchmark {name}{' (quick)' if quick else ''} …")
    asked = {"full": full, "events": events, "year": year, "part": part, "plot": plot}
    asked |= {"lake": lake, "master": master}
    measured = importlib.import_module(f"benchmarks.{_MODULES[name]}").run(
        quick=quick, **{option: value for option, value in asked.items() if value}
    )
    report = {
        "name": name,
        "commit": commit(),
        "machine": machine(),
        "quick": quick,
        "results": measured["results"],
    }
    if json:
        write_json(report)
        return
    write_table(
        f"{name}, commit {report['commit']}",
        ("metric", "value", "unit", "goal", "ok"),
        [_row(result) for result in measured["results"]],
    )


def commit() -> str:
    """The commit of the source tree, `unknown` outside a checkout."""
    try:
        done = subprocess.run(
            ("git", "rev-parse", "--short", "HEAD"),
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def _row(result: dict[str, Any]) -> tuple[str, ...]:
    value = result["value"]
    shown = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    goal = "" if result["goal"] is None else f"{result['goal']:,}"
    ok = {True: "yes", False: "no", None: "-"}[result["ok"]]
    return (result["metric"], shown, result["unit"], goal, ok)
