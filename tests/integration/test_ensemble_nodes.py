"""Ensemble nodes as real processes: over unicast and multicast, killed, stopped, and on machines of
their own with loss and a cut. [EN-10]
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rapport.transport.keys import add_key, load_keys, make_key
from support.faults.namespaces import Machines, why_not
from support.processes.context import BrokerProcess
from support.processes.ensemble_nodes import (
    PROGRAM,
    NodeProcesses,
    has_members,
    knows,
    node_process,
)
from support.servers.ports import free_port

pytestmark = pytest.mark.slow


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "cars.py"
    file.write_text(PROGRAM)
    return file


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys.toml"
    add_key(file, make_key("cars", "network"))
    return file


def test_sealed_processes_bear_that_one_is_killed_and_one_stopped(
    program: Path, keys: Path
) -> None:
    first = ("127.0.0.1", free_port(is_udp=True))
    processes = {"a": node_process(program, "a", listen=first, keys=keys)} | {
        name: node_process(program, name, keys=keys, join=(first,)) for name in "bc"
    }

    async def scenario(nodes: NodeProcesses) -> None:
        await nodes.until(knows("a", "b", "c"))
        processes["c"].kill()
        await nodes.until(knows("a", "b"), "a", "b")
        # Of one that is stopped for 3 s, 10 periods, the others think that it is dead.
        os.kill(processes["b"].pid, signal.SIGSTOP)
        await nodes.until(has_members("a"), "a")
        os.kill(processes["b"].pid, signal.SIGCONT)
        await nodes.until(has_members("a", "b"), "a", "b")
        await nodes.until(knows("a", "b"), "a", "b")
        stopped = await nodes.status("b")
        assert stopped is not None
        assert stopped.counters.get("members_failed", 0) == 1, "it called nobody but c dead"
        assert processes["b"].stop() == 0
        await nodes.until(has_members("a"), "a", seconds=2)

    with NodeProcesses(processes, load_keys(keys)) as nodes:
        asyncio.run(scenario(nodes))


def test_processes_of_a_multicast_group_find_each_other(program: Path) -> None:
    options = ("--group", f"239.77.4.11:{free_port(is_udp=True)}")
    processes = {name: node_process(program, name, options=options) for name in "ab"}

    with NodeProcesses(processes) as nodes:
        asyncio.run(nodes.until(knows("a", "b")))


@pytest.fixture
def machines() -> Iterator[Machines]:
    missing = why_not()
    if missing:
        pytest.skip(missing)
    with Machines(4, name="ensemble") as made:
        yield made


def test_machines_of_their_own_bear_loss_and_a_cut(
    machines: Machines, program: Path, keys: Path
) -> None:
    """Two hear each other by broadcast, all but the first are on IP; knowledge crosses both."""
    group = ("--group", "10.77.0.255:7412")

    def process(number: int, *, radio: bool, ip: bool) -> BrokerProcess:
        return node_process(
            program,
            f"m{number}",
            listen=(machines.host(number), 7411),
            inside=machines.inside(number),
            keys=keys,
            options=group if radio else (),
            join=((machines.host(1), 7411),) if ip and number != 1 else (),
        )

    names = ("m0", "m1", "m2", "m3")
    processes = {
        "m0": process(0, radio=True, ip=False),
        "m1": process(1, radio=False, ip=True),
        "m2": process(2, radio=True, ip=True),
        "m3": process(3, radio=False, ip=True),
    }

    async def scenario(nodes: NodeProcesses) -> None:
        machines.lose(0.1)
        await nodes.until(knows(*names))
        await nodes.until(has_members("m1", "m2", "m3"), "m1", "m2", "m3")
        machines.lose(0)
        machines.cut((0, 1), (2, 3))
        await nodes.until(has_members("m1"), "m1")
        with machines.entered(3):
            await nodes.until(has_members("m2", "m3"), "m2", "m3")
        machines.heal()
        await nodes.until(has_members("m1", "m2", "m3"), "m1", "m2", "m3")
        await nodes.until(knows(*names))

    with machines.entered(0), NodeProcesses(processes, load_keys(keys)) as nodes:
        asyncio.run(scenario(nodes))
