"""What became of each request of a simulation, as columns and as a Parquet file. [CX-12]"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rapport.context.protocol import PROCESSED
from rapport_lab.context.load import Moments

ASKS, RETURNS, PROBES, HEARD = range(4)
"""Places in a request's counts of messages: searching on, coming back, looking ahead,
acknowledging.
"""
NO_ANSWER = 0
"""The status of a request that nobody answered, not even with a refusal."""


class Asked:
    """The outcome of every request; filled while the simulation runs."""

    def __init__(self, requests: Moments) -> None:
        count = len(requests.times_ms)
        self.requests = requests
        self.statuses = [NO_ANSWER] * count
        self.hops = [0] * count
        self.response_ms = [float("nan")] * count
        self.counts = [[0, 0, 0, 0] for _ in range(count)]
        """Messages between brokers on behalf of each request."""
        self.answered = 0

    def answer(self, number: int, status: int, hops: int, time_ms: float) -> None:
        """Notes how a request ended; only the first answer counts."""
        if self.statuses[number] != NO_ANSWER:
            return
        self.statuses[number] = status
        self.hops[number] = hops
        self.response_ms[number] = time_ms - float(self.requests.times_ms[number])
        self.answered += 1

    def table(self) -> pa.Table:
        """A row for each request, in the order they were made. `messages` are those between
        brokers without acknowledgements, which stand beside.
        """
        counts = np.asarray(self.counts, dtype=np.int32).reshape(-1, 4)
        return pa.table(
            {
                "number": np.arange(len(self.statuses), dtype=np.int32),
                "key": self.requests.keys.astype(np.int32),
                "broker": self.requests.brokers.astype(np.int32),
                "asked_ms": self.requests.times_ms,
                "status": np.asarray(self.statuses, dtype=np.int16),
                "found": np.asarray(self.statuses) == PROCESSED,
                "hops": np.asarray(self.hops, dtype=np.int32),
                "messages": counts[:, :HEARD].sum(axis=1, dtype=np.int32),
                "asks": counts[:, ASKS],
                "returns": counts[:, RETURNS],
                "probes": counts[:, PROBES],
                "acknowledgements": counts[:, HEARD],
                "response_ms": np.asarray(self.response_ms),
            }
        )

    def write(self, path: Path) -> None:
        """The table as Parquet."""
        pq.write_table(self.table(), path, compression="zstd")
