"""Nodes as real processes, linked in a line, a ring and a full mesh; links cut and healed, nodes
killed: each event is stored once per node. [CH-11]
"""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.faults.network import Network
from support.processes.node import NodeProcess
from support.written_log import WrittenLog

pytestmark = pytest.mark.slow

SITE = '[site]\nname = "{name}"\n\n[concepts.sample.attributes]\nmass = "number"\n'
COUNT = 5
SHAPES = {
    "line": [(0, 1), (1, 2), (2, 3), (3, 4)],
    "ring": [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)],
    "mesh": list(combinations(range(COUNT), 2)),
}


class Graph:
    """Nodes and, for each direction of each link, a network of its own."""

    def __init__(self, folder: Path, edges: list[tuple[int, int]], stack: ExitStack) -> None:
        self.sites = [folder / f"site{number}" for number in range(COUNT)]
        self.nodes = [stack.enter_context(NodeProcess(site)) for site in self.sites]
        self.networks: dict[tuple[int, int], Network] = {}
        for number, site in enumerate(self.sites):
            site.mkdir()
            (site / "site.toml").write_text(SITE.format(name=f"n{number}"))
        for a, b in edges:
            self._link(a, b, stack)
            self._link(b, a, stack)

    def _link(self, to: int, source: int, stack: ExitStack) -> None:
        network = self.networks[to, source] = Network(self.nodes[source])
        stack.callback(network.close)
        with (self.sites[to] / "site.toml").open("a") as file:
            file.write(
                f'\n[links.n{source}]\nurl = "{network.url}"\nreceive = ["shared", "raw.*"]\n'
            )

    def start(self) -> None:
        starting = [threading.Thread(target=node.start) for node in self.nodes]
        for one in starting:
            one.start()
        for one in starting:
            one.join()

    def publish(self, number: int, *ids: str) -> None:
        events = [{"id": one, "source": f"s{number}", "type": "t", "data": one} for one in ids]
        ask(self.nodes[number], "/channels/shared/events", events)

    def counts(self) -> list[int]:
        return [count_of(node) for node in self.nodes]

    def stored(self, count: int = COUNT) -> list[Counter[str]]:
        return [
            Counter(one.event.id for one in WrittenLog(site / ".rapport" / "log")["shared"])
            for site in self.sites[:count]
        ]


def ask(node: NodeProcess, path: str, body: Any = None) -> Any:
    assert node.doors is not None
    data = None if body is None else msgspec.json.encode(body)
    request = urllib.request.Request("http://{}:{}{}".format(*node.doors, path), data=data)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return msgspec.json.decode(answer.read())


def troubles(node: NodeProcess) -> set[str]:
    return {row["counts"]["trouble"] for row in ask(node, "/federation/links")}


def count_of(node: NodeProcess) -> int:
    """Events of the shared channel, by position."""
    try:
        page = ask(node, "/channels/shared/events?after=0&limit=10000")
    except (urllib.error.URLError, OSError):
        return -1
    return len(page["events"])


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(0.1)
    return True


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[[str], Graph]]:
    with ExitStack() as stack:
        yield lambda shape: Graph(tmp_path, SHAPES[shape], stack)


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param("line", marks=pytest.mark.long),
        pytest.param("mesh", marks=pytest.mark.long),
        "ring",
    ],
)
def test_events_reach_every_node_once_over_cuts_and_kills(build, shape: str) -> None:
    graph = build(shape)
    graph.start()
    wanted = set()

    def publish(number: int, *ids: str) -> None:
        graph.publish(number, *ids)
        wanted.update(ids)

    for number in range(COUNT):
        publish(number, *(f"before-{number}-{one}" for one in range(20)))
    assert wait_until(lambda: graph.counts() == [len(wanted)] * COUNT), graph.counts()

    cut = [graph.networks[0, 1], graph.networks[1, 0]]
    for network in cut:
        network.cut()
    for number in range(COUNT):
        publish(number, *(f"during-{number}-{one}" for one in range(20)))
    if shape != "line":  # the other way round still leads everywhere
        assert wait_until(lambda: graph.counts() == [len(wanted)] * COUNT), graph.counts()
    graph.nodes[2].kill()
    graph.nodes[2].start()
    for network in cut:
        network.heal()
    publish(2, "after")
    assert wait_until(lambda: graph.counts() == [len(wanted)] * COUNT), graph.counts()

    assert wait_until(lambda: troubles(graph.nodes[0]) == {""})
    for node in graph.nodes:
        node.stop()
    for counts in graph.stored():
        assert counts == Counter(dict.fromkeys(wanted, 1))


def test_a_node_behind_a_firewall_shares_both_ways_by_its_own_connections(tmp_path: Path) -> None:
    with ExitStack() as stack:
        graph = Graph(tmp_path, [], stack)
        near, far = graph.nodes[0], graph.nodes[1]
        far.start()
        assert far.doors is not None
        with (graph.sites[0] / "site.toml").open("a") as file:
            file.write(
                '\n[links.far]\nurl = "http://{}:{}"\nreceive = ["shared"]\nsend = ["shared"]\n'
                "query = \"type <> 'private'\"\n".format(*far.doors)
            )
        near.start()
        graph.publish(0, "a", "b")
        graph.publish(1, "c")
        secret = [{"id": "mine", "source": "s", "type": "private"}]
        ask(near, "/channels/shared/events", secret)
        assert wait_until(lambda: (count_of(near), count_of(far)) == (4, 3))
        graph.publish(0, "d")  # and nothing comes back that was sent
        assert wait_until(lambda: (count_of(near), count_of(far)) == (5, 4))
        rows = {row["way"]: row for row in ask(near, "/federation/links")}
        assert rows["send"]["counts"]["forwarded"] == 3
        assert rows["receive"]["counts"]["stored"] == 1
        near.stop()
        far.stop()
        mine, theirs = graph.stored(2)
        assert mine == Counter(["a", "b", "c", "d", "mine"])
        assert theirs == Counter(["a", "b", "c", "d"])
