"""Everything about the channel in one run: ourselves, the peers, the doors, queries. [CH-13]

The parts can be run by themselves: `rapport bench embedded|peers|doors|soap|history`.
"""

from __future__ import annotations

from typing import Any

from benchmarks import peers
from benchmarks.channel import doors, embedded, history, soap


def run(quick: bool, full: bool = False) -> dict[str, Any]:
    """Some two minutes; `full` measures with 1e7 events too: many minutes and 10 GB."""
    results = embedded.run(quick, full)["results"]
    results += peers.run(quick)["results"]
    results += doors.run(quick)["results"]
    results += soap.run(quick)["results"]
    results += history.run(quick, full)["results"]
    return {"name": "channel", "results": results}
