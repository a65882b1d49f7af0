"""Nodes side by side on one machine, each with its own people and its own log: what a site with
more to say than one process can carry may expect of a second. [CO-7]
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from multiprocessing.managers import SyncManager
from threading import Barrier

import uvloop

from benchmarks.communication.cell import run_cell
from rapport.kernel.tasks import pinned_to_cpu

_WARM_UP = 2_000
_PATIENCE_S = 300.0
"""How long one waits for the others before the run counts as broken."""


def side_by_side(nodes: int, workers: int, peers: int, messages: int, *, held: bool) -> float:
    """Handled a second by all together, from the common start to the end of the last: each node
    has `workers` of its own that send `messages` to `peers` of its own. `held`: each stays on a
    processor of its own, otherwise they move as the system likes.
    """
    context = multiprocessing.get_context("spawn")
    with (
        SyncManager(ctx=context) as manager,
        ProcessPoolExecutor(max_workers=nodes, mp_context=context) as pool,
    ):
        start = manager.Barrier(nodes)
        running = [
            pool.submit(_node, start, workers, peers, messages, number if held else None)
            for number in range(nodes)
        ]
        seconds = max(one.result() for one in running)
    return 2 * messages * nodes / seconds


def _node(start: Barrier, workers: int, peers: int, messages: int, processor: int | None) -> float:
    """How long this one took, warmed up and begun with the others."""
    with pinned_to_cpu(processor) if processor is not None else nullcontext():
        uvloop.run(run_cell(1, peers, _WARM_UP))
        start.wait(_PATIENCE_S)
        return uvloop.run(run_cell(workers, peers, messages)).seconds
