"""Brokers as processes of this machine, in a topology. [CX-7, CX-12]"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

import msgspec

from benchmarks.context.broker_process import CLOCK, Connect, Fill, Look, Order, Setup, Standing
from benchmarks.context.subject import MEMBER
from rapport.context.broker.broker_settings import BrokerSettings
from rapport.kernel.clock import Chance
from rapport.transport.base import Address
from rapport.transport.keys import DatagramKey
from rapport_lab.topology import Topology, mesh, ring, waxman

TOPOLOGIES = ("ring", "mesh", "waxman", "centralized")
_PROGRAM = (sys.executable, "-m", "benchmarks.context.broker_process")
_CONNECT_SECONDS = 20.0
_SEED = 7
"""Of the Waxman graph: the same in every run."""


class BrokerAtWork:
    """One broker process; calls wait for its answer."""

    def __init__(self, setup: Setup) -> None:
        """Starts it; `wait` says when it hears."""
        self._process = subprocess.Popen(_PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.address: Address = ("", 0)
        self._write(msgspec.json.encode(setup))

    def wait(self) -> Standing:
        """When it has started."""
        found = self._read()
        self.address = found.address
        return found

    def order(self, order: Order) -> Standing:
        """Has it do something; how it stands afterwards."""
        self._write(msgspec.json.encode(order))
        return self._read()

    def look(self) -> Standing:
        """How it stands."""
        return self.order(Look())

    def end(self) -> None:
        """Lets it leave, or kills it."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()

    def _read(self) -> Standing:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a broker process ended with {self._process.wait()}")
        return msgspec.json.decode(line, type=Standing)


@contextlib.contextmanager
def brokers_at_work(
    count: int,
    topology: str,
    keys: Sequence[DatagramKey],
    settings: BrokerSettings | None = None,
) -> Iterator[list[BrokerAtWork]]:
    """So many broker processes, each with the neighbours of the topology; gone afterwards."""
    own = MEMBER if keys else ""
    setup = Setup(keys=tuple(keys), own=own, settings=settings or BrokerSettings())
    brokers = [BrokerAtWork(setup) for _ in range(count)]
    try:
        for broker in brokers:
            broker.wait()
        if count > 1:
            _connect(brokers, shape(topology, count))
        yield brokers
    finally:
        for broker in brokers:
            broker.end()


def shape(topology: str, count: int) -> Topology[int]:
    """Who is whose neighbour, by number; the source's moderate connectivity is a mean of 2."""
    nodes = list(range(count))
    makes: dict[str, Callable[[], Topology[int]]] = {
        "ring": lambda: ring(nodes),
        "mesh": lambda: mesh(nodes),
        "waxman": lambda: waxman(nodes, Chance(_SEED), degree=2),
    }
    return makes[topology]()


def fill(broker: BrokerAtWork, records: int, *, large: int) -> Standing:
    """Puts records into a broker's table, the first of 1 kB."""
    return broker.order(Fill(records, large))


def _connect(brokers: list[BrokerAtWork], wanted: Topology[int]) -> None:
    for number, broker in enumerate(brokers):
        others = tuple(brokers[other].address for other in wanted.neighbours[number])
        broker.order(Connect(others))
    began_ns = CLOCK.steady_ns()
    degrees = [len(wanted.neighbours[number]) for number in range(len(brokers))]
    while [broker.look().neighbours for broker in brokers] != degrees:
        if (CLOCK.steady_ns() - began_ns) / 1e9 > _CONNECT_SECONDS:
            found = [broker.look().neighbours for broker in brokers]
            raise RuntimeError(f"the brokers have {found} neighbours instead of {degrees}")
