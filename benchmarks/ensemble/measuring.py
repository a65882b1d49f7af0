"""Everything about the speed of ensembles in one run: the simulator at four sizes, its scheduler
against SimPy, a real node. [EN-10, EN-11, EN-12]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from benchmarks.ensemble.node import real_node
from benchmarks.ensemble.simulated import huge, large, rumours, sweep
from benchmarks.ensemble.with_simpy import against_simpy
from benchmarks.results import Result
from rapport.core.errors import UnknownName

PARTS: dict[str, Callable[[bool], list[Result]]] = {
    "sweep": sweep,
    "rumours": rumours,
    "simpy": against_simpy,
    "node": real_node,
    "large": large,
    "huge": huge,
}


def run(quick: bool, part: str | None = None) -> dict[str, Any]:
    """Some ten minutes, half a one when quick. Progress goes to stderr."""
    if part is not None and part not in PARTS:
        raise UnknownName("part of the benchmark ensemble", part, list(PARTS))
    results: list[Result] = []
    for name, measured in PARTS.items():
        if part in (None, name):
            print(f"{name} …", file=sys.stderr, flush=True)
            results += measured(quick)
    return {"name": "ensemble", "results": results}
