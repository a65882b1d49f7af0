"""A node that begins anew with its clock set back goes on above the versions of its former lives,
and its ensemble hears it. [EN-10, EN-14]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.knowledge import Knowledge
from rapport.ensemble.gossip.gossip_machine import GossipMachine, Publication
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.runtime.ensemble_node import EnsembleNode
from rapport.ensemble.runtime.node_status import RuntimeSettings
from rapport.kernel.clock import Chance, Now, SystemClock
from rapport.node.ensemble import AHEAD_MS, COUNTED, is_short, reserved
from rapport.node.node import Node
from rapport.overlay.swim_protocol import SwimSettings
from rapport.transport.addresses import format_address
from support.running import running

WALL = 1_800_000_000_000
HOUR_MS = 3_600_000
SITE = """
[site]
name = "town"
[concepts.car.attributes]
position = "point"
[ensemble]
node = "hall"
listen = "127.0.0.1:0"
join = ["{join}"]
components = ["hall.py"]
gossip = {{ knowledge_ms = 100 }}
membership = {{ period_ms = 100, ack_ms = 25, gossip_ms = 20 }}
"""
HALL = """
from rapport.ensemble import Component

class Hall(Component):
    open: bool = True

components = [Hall(id="hall")]
"""
QUICK = RuntimeSettings(
    gossip=GossipSettings(knowledge_ms=100),
    swim=SwimSettings(period_ms=100, ack_ms=25, gossip_ms=20),
)


class Hall:
    def published(self, now: Now) -> list[Publication]:
        return [Publication("hall", ("Role",), b"\x80")]


class Disk:
    """What a node's records would hold: `GivenVersions` without the disk."""

    def __init__(self) -> None:
        self.kept = 0

    def life(self, wall_ms: int, steps: list[int], *, is_killed: bool) -> list[int]:
        """Publishes once after each step of the clock; the versions."""
        before, self.kept = self.kept, reserved(self.kept, wall_ms)
        machine = GossipMachine(
            "hall", GossipSettings(), Chance(1), source=Hall(), given_before=before
        )
        versions = []
        for step_ms in steps:
            wall_ms += step_ms
            machine.publish_now("hall", Now(wall_ms, 0.0))
            versions.append(machine.given)
            if is_short(self.kept, machine.given, wall_ms):
                self.kept = reserved(machine.given, wall_ms)
        if not is_killed and versions:
            self.kept = versions[-1]
        return versions


@given(
    lives=st.lists(
        st.tuples(
            st.integers(-4 * HOUR_MS, 4 * HOUR_MS),
            st.lists(st.integers(0, AHEAD_MS // 2), max_size=8),
            st.booleans(),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_versions_grow_over_lives_that_end_anyhow_on_clocks_that_go_anywhere(lives: Any) -> None:
    disk, versions = Disk(), []
    for offset_ms, steps, is_killed in lives:
        versions += disk.life(WALL + offset_ms, steps, is_killed=is_killed)
    assert versions == sorted(set(versions))


@given(pauses=st.lists(st.integers(COUNTED, 20_000), min_size=1, max_size=60))
def test_versions_of_a_node_that_is_killed_again_and_again_stay_near_the_clock(
    pauses: list[int],
) -> None:
    disk, wall_ms = Disk(), WALL
    for pause_ms in pauses:
        wall_ms += pause_ms
        versions = disk.life(wall_ms, [0], is_killed=True)
        assert versions[-1] <= wall_ms + AHEAD_MS + COUNTED


def test_a_life_with_a_clock_days_ahead_does_not_spoil_what_is_kept() -> None:
    disk = Disk()
    disk.life(WALL + 240 * HOUR_MS, [0, 5_000], is_killed=True)
    first = disk.life(WALL, [0, 5_000], is_killed=True)
    assert first == [WALL, WALL + 5_000]
    second = disk.life(WALL - HOUR_MS, [0], is_killed=True)
    assert second[0] > first[-1]


class ClockSetBack(SystemClock):
    """The machine's clock, some minutes back."""

    def now_ms(self) -> int:
        return super().now_ms() - 8 * 60_000


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - of real nodes, which tell nobody
            await asyncio.sleep(0.01)


def kill(node: Node) -> None:
    """From now on it does nothing that a killed one would not do."""

    async def nothing() -> None:
        return None

    assert node.ensemble is not None
    node.ensemble._versions.finish = nothing  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_a_node_restarted_with_its_clock_set_back_is_heard_at_once(
    tmp_path: Path, is_killed: bool
) -> None:
    heard: list[Knowledge] = []

    def in_life(opened: bool) -> bool:
        return bool(heard) and heard[-1].values["open"] is opened

    async def scenario() -> None:
        other = await EnsembleNode.open(
            "other",
            listen=("127.0.0.1", 0),
            clock=SystemClock(),
            chance=Chance(),
            settings=QUICK,
            on_changed=heard.append,
        )
        try:
            (tmp_path / "site.toml").write_text(SITE.format(join=format_address(other.address)))
            (tmp_path / "hall.py").write_text(HALL)
            async with running(tmp_path) as node:
                await until(lambda: in_life(True))
                if is_killed:
                    kill(node)
            (tmp_path / "hall.py").write_text(HALL.replace("True", "False"))
            async with running(tmp_path, clock=ClockSetBack()):
                await until(lambda: in_life(False))
            versions = [one.version for one in heard]
            assert versions == sorted(set(versions))
            assert other.status().counters.get("gossip_overtaken", 0) == 0
        finally:
            await other.close()

    asyncio.run(scenario())
