"""Other logs, forced to disk as ours is, measured with Python clients in the same run. [CH-13]"""

from __future__ import annotations

from typing import Any


def run(quick: bool) -> dict[str, Any]:
    """Ourselves and every peer that is installed."""
    from benchmarks.peers.compare import compare

    return {"name": "peers", "results": compare(quick)}
