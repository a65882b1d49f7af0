"""Push gossip in rounds among very many nodes, on arrays instead of machines. [EN-11, EN-12]"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from rapport.core.errors import InvalidInput

_SEED_BITS = 2**64 - 1
"""Seeds below 0 are seeds, too; numpy takes none."""


class RumourRun(msgspec.Struct, frozen=True):
    """What became of one rumour."""

    nodes: int
    informed: tuple[int, ...]
    """How many knew it before the first round and after each."""
    messages: int

    @property
    def rounds(self) -> int:
        """Rounds until all knew it, or until the last that was played."""
        return len(self.informed) - 1

    @property
    def is_complete(self) -> bool:
        """Whether all know it."""
        return self.informed[-1] == self.nodes


def spread_rumour(
    nodes: int, *, fan_out: int = 3, loss: float = 0.0, seed: int = 1, most_rounds: int = 200
) -> RumourRun:
    """One node knows a rumour; in each round each that knows tells `fan_out` drawn others.

    A message costs about 20 ns: a million nodes take about a second.
    """
    if nodes < 1 or nodes > 100_000_000 or fan_out < 1 or not 0 <= loss < 1:
        raise InvalidInput(
            f"no rumour spreads among {nodes} nodes with fan-out {fan_out} and loss {loss}",
            code="ensemble.bad_rumour",
            hint="1 to 100,000,000 nodes, fan-out of 1 or more, loss from 0 to below 1",
        )
    generator = np.random.Generator(np.random.PCG64(seed & _SEED_BITS))
    knows: Any = np.zeros(nodes, dtype=np.bool_)
    knows[0] = True
    informed, messages = [1], 0
    while informed[-1] < nodes and len(informed) <= most_rounds:
        tellers = np.flatnonzero(knows)
        messages += len(tellers) * fan_out
        for _ in range(fan_out):
            _tell(knows, tellers, loss, generator)
        informed.append(int(np.count_nonzero(knows)))
    return RumourRun(nodes, tuple(informed), messages)


def _tell(knows: Any, tellers: Any, loss: float, generator: np.random.Generator) -> None:
    others = len(knows) - 1
    # Never oneself: a number of the others, counted on from one's own.
    told = tellers + generator.integers(1, others + 1, size=len(tellers), dtype=np.int32)
    told[told > others] -= others + 1
    if loss:
        told = told[generator.random(len(told)) >= loss]
    knows[told] = True
