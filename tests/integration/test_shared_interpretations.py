"""Interpretations spread between real nodes by ordinary links: a client may connect anywhere.

[ME-12, CH-11]
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.faults.network import Network
from support.processes.node import NodeProcess

pytestmark = pytest.mark.slow

SITE = """
[site]
name = "n{number}"
[concepts.station.attributes]
temperature = "number"
[concepts.station.units]
temperature = "degC"
"""


class Line:
    """Three nodes, each linked both ways with the next."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.sites = [folder / f"site{number}" for number in range(3)]
        self.nodes = [stack.enter_context(NodeProcess(site)) for site in self.sites]
        self.networks: list[Network] = []
        for number, site in enumerate(self.sites):
            site.mkdir()
            (site / "site.toml").write_text(SITE.format(number=number))
        for to, source in ((0, 1), (1, 0), (1, 2), (2, 1)):
            network = Network(self.nodes[source])
            stack.callback(network.close)
            self.networks.append(network)
            with (self.sites[to] / "site.toml").open("a") as file:
                file.write(f'[links.n{source}]\nurl = "{network.url}"\n')
                file.write('receive = ["interpretations"]\n')
        for node in self.nodes:
            node.start()

    def declare(self, number: int, name: str, unit: str) -> None:
        body = f'[interpretations.{name}]\nunits = {{ "station.temperature" = "{unit}" }}\n'
        ask(self.nodes[number], "/interpretations/changes", body.encode(), "application/toml")

    def stamps(self, number: int) -> dict[str, str]:
        rows = ask(self.nodes[number], "/interpretations")["interpretations"]
        return {row["name"]: row["stamp"] for row in rows}

    def agree_on(self, *names: str) -> bool:
        found = [self.stamps(number) for number in range(3)]
        return all(each == found[0] for each in found) and set(found[0]) == {"root", *names}


def ask(node: NodeProcess, path: str, body: bytes | None = None, media: str = "") -> Any:
    assert node.doors is not None
    request = urllib.request.Request("http://{}:{}{}".format(*node.doors, path), data=body)
    if media:
        request.add_header("Content-Type", media)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return msgspec.json.decode(answer.read())


def until(holds: Callable[[], bool], seconds: float = 40) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.05)
    return False


def test_a_change_anywhere_is_in_force_everywhere_and_apart_nodes_come_to_agree(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        line = Line(tmp_path, stack)
        line.declare(0, "us", "degF")
        assert until(lambda: line.agree_on("us"))
        # Apart, the ends change the same one to different things, and others besides.
        for network in line.networks:
            network.cut()
        line.declare(0, "us", "K")
        line.declare(2, "us", "degC")
        line.declare(2, "lab", "K")
        line.nodes[1].kill()
        line.nodes[1].start()
        for network in line.networks:
            network.heal()
        assert until(lambda: line.agree_on("us", "lab"))
        history = [ask(node, "/interpretations/changes") for node in line.nodes]
        assert [each["id"] for each in history[0]] == [each["id"] for each in history[2]]
        # What one node had in force explains events wherever they are.
        stamp = line.stamps(0)["us"]
        assert ask(line.nodes[2], f"/interpretations/{stamp}")["version"]["name"] == "us"
