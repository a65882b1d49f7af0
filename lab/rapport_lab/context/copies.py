"""How many copies of each record a simulated network holds, over time. [CX-6, CX-12]"""

from __future__ import annotations

import numpy as np

from rapport_lab.context.formulas import slope
from rapport_lab.context.load import Load, popularities
from rapport_lab.context.network import SimulatedNetwork

_LOOKS = 20


class CopiesCount:
    """Looks at all brokers some times in the second half of a load, when it has settled."""

    def __init__(self, network: SimulatedNetwork, load: Load, settle_ms: float = 0.0) -> None:
        self._network, self._load = network, load
        self._looks: list[dict[str, int]] = []
        begin_ms = network.scheduler.time_ms + settle_ms
        for look in range(_LOOKS):
            part = 0.5 + 0.5 * look / _LOOKS
            network.scheduler.at(begin_ms + part * load.duration_ms, self._look)

    def _look(self) -> None:
        wall_ms = self._network.scheduler.now.wall_ms
        counts: dict[str, int] = {}
        for machine in self._network.machines:
            for held in machine.table.held():
                if held.record.is_valid_at(wall_ms):
                    name = held.record.entity.id
                    counts[name] = counts.get(name, 0) + 1
        self._looks.append(counts)

    def by_key(self) -> list[float]:
        """For each key the mean number of valid copies, the provider's own among them."""
        looks = max(len(self._looks), 1)
        return [
            sum(look.get(str(key), 0) for look in self._looks) / looks
            for key in range(self._load.keys)
        ]

    def mean(self) -> float:
        """Over all keys."""
        return float(np.mean(self.by_key()))

    def slope(self) -> float:
        """The exponent with which copies follow the rate of requests; not a number when all keys
        are asked for alike.
        """
        if self._load.popularity == "uniform" or self._load.keys < 2:
            return float("nan")
        return slope(popularities(self._load).tolist(), np.maximum(self.by_key(), 1e-9).tolist())
