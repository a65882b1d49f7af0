"""Two hundred changes of policies while fifty thousand events flow through a node: it finds what a
replay finds that makes the same changes in the places on record. [PO-8, PO-9]
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rapport.channel.channel import Channels
from rapport.core.detection import DETECTED, Detection
from rapport.core.event import Event, StoredEvent, make_event
from rapport.kernel.clock import Chance, SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.node import Node
from rapport.node.wiring import make_node
from rapport.policy.engine.stream_steps import TIME_TYPE, StreamPosition
from rapport.policy.lifecycle.registry import CHANGED, CHANNEL, PolicyChange
from rapport.policy.runner.local import LocalRunner
from rapport.site.site import Site, load_site
from support.event_readings import readings_from_events

pytestmark = pytest.mark.slow

CHECK = Path(__file__).parents[1] / "data" / "checks" / "small-policies"
NAMES = ("one", "two", "three", "four")
STAYS = "concepts\n  person A (status='guest')\n  room R (security='restricted')\n"
STAYS += "conditions\n  A is inside R for 3 s\nactions\n  raise alarm\n"
EVENTS, CHANGES = 50_000, 200


def texts() -> list[str]:
    kinds = ("or", "and-not", "mixed", "within", "followed-by-not", "inside-and-within")
    return [(CHECK / f"{kind}.dpl").read_text() for kind in kinds] + [STAYS]


def make_site(directory: Path) -> Site:
    """Nobody is told: it is the finding that is under load."""
    site = Path(shutil.copytree(CHECK, directory, ignore=shutil.ignore_patterns("*.dpl")))
    file = site / "site.toml"
    head, _, _ = file.read_text().partition("[collectives.guards]")
    file.write_text(head + '[actions."raise alarm"]\nappend = "alarms"\ntype = "alarm"\n')
    return load_site(site)


class Crowd:
    """People who wander about; what they do and what is done to policies follows from chance."""

    def __init__(self, node: Node, chance: Chance) -> None:
        self._node, self._chance = node, chance
        self._time, self._number = SystemClock().now_ms() - 3_600_000, 0
        self._texts = texts()
        self.done: Counter[str] = Counter()

    def readings(self, count: int) -> list[Event]:
        return [self._reading() for _ in range(count)]

    def _reading(self) -> Event:
        chance = self._chance
        self._time += chance.randint(0, 60)
        self._number += 1
        person = str(chance.choice([2, 3, 4, 7, 10, 11]))
        return make_event(
            source="positions",
            id=f"e{self._number}",
            type="person.position",
            subject=f"person/{person}",
            time=self._time - chance.randint(0, 1_900),
            data={"key": person, "value": [chance.randint(-40, 60), chance.randint(-40, 60)]},
        )

    async def change(self) -> None:
        """Something that can be done as things are."""
        life, chance = self._node.policies.life, self._chance
        states = {policy.name: policy.state for policy in life.policies()}
        name = chance.choice(NAMES)
        if name not in states:
            what = "register"
        elif states[name] == "paused":
            what = chance.choice(["resume", "resume", "replace", "delete"])
        else:
            what = chance.choice(["replace", "replace", "replace", "pause", "delete"])
        call = getattr(life, what)
        done = await (call(name, self._text()) if what in ("register", "replace") else call(name))
        self.done[what] += done.changed

    def _text(self) -> str:
        """Each is a version of its own."""
        window = f"  within {self._chance.randint(1_000, 6_000)} ms\nactions"
        return self._chance.choice(self._texts).replace("actions", window)


async def kept(channels: Channels, channel: str, *types: str) -> list[StoredEvent]:
    stored = await channels.channel(channel).read_after(0, limit=1_000_000)
    return [one for one in stored if not types or one.event.type in types]


async def replayed(node: Node, site: Site) -> list[str]:
    """Ids of what one runner finds that is changed and moved on where the record says."""
    changes = [
        one.event.payload_as(PolicyChange) for one in await kept(node.channels, CHANNEL, CHANGED)
    ]
    moved = [one.event.payload() for one in await kept(node.channels, "detections", TIME_TYPE)]
    steps: list[tuple[StreamPosition, int, Any]] = [(one.place, 1, one) for one in changes]
    steps += [(StreamPosition(one["after"], one["time"]), 0, one["time"]) for one in moved]
    steps.sort(key=lambda step: step[:2])
    replay = _Replay(node, site)
    events = await kept(node.channels, "events")
    for place, _, step in steps:
        cut = sum(one.position <= place.after for one in events[: place.after])
        replay.feed(events[:cut])
        events = events[cut:]
        replay.meet(step)
    replay.feed(events)
    return [one.id() for one in replay.found]


class _Replay:
    def __init__(self, node: Node, site: Site) -> None:
        self._node, self._site = node, site
        self._runner = LocalRunner([], site.tables, lateness_ms=site.lateness_ms)
        self._paused: dict[str, bool] = {}
        self._newest: dict[str, str] = {}
        self.found: list[Detection] = []

    def feed(self, events: Sequence[StoredEvent]) -> None:
        for first in range(0, len(events), 500):
            batch = [one.event for one in events[first : first + 500]]
            self.found += self._runner.feed(readings_from_events(batch, self._site.ontology))

    def meet(self, step: PolicyChange | int) -> None:
        if isinstance(step, int):
            self.found += self._runner.advance(step)
            return
        name = step.name
        if step.what in ("paused", "resumed", "registered"):
            self._paused[name] = step.what == "paused"
        self._newest[name] = step.version or self._newest[name]
        if name in self._runner.policies():
            self._runner.withdraw(name)
        if step.what != "deleted" and not self._paused[name]:
            compiled = self._node.policies.life.compiled(name, self._newest[name])
            assert compiled is not None
            self._runner.deploy(compiled.plan)


@pytest.mark.parametrize(
    "seed", [7, *(pytest.param(seed, marks=pytest.mark.long) for seed in (8, 9))]
)
def test_a_node_changed_two_hundred_times_under_load_finds_what_a_replay_finds(
    tmp_path: Path, seed: int
) -> None:
    async def story() -> None:
        site = make_site(tmp_path / "site")
        node = make_node(site, NodeSettings(port=0), SystemClock())
        await node.start()
        try:
            crowd, chance = Crowd(node, Chance(seed)), Chance(seed + 1)
            events = node.channels.channel("events")
            for _ in range(CHANGES):
                await events.append(crowd.readings(EVENTS // CHANGES))
                await SystemClock().sleep(chance.randint(0, 30))
                await crowd.change()
            while node.policy.behind():
                await SystemClock().sleep(20)
            assert sum(crowd.done.values()) >= CHANGES * 0.95, crowd.done
            assert min(crowd.done.values()) >= 10, crowd.done
            async with node.policy.turn:  # nothing is found while both are looked at
                told = [one.event.id for one in await kept(node.channels, "detections", DETECTED)]
                assert len(told) > 500
                assert sorted(told) == sorted(await replayed(node, site))
        finally:
            await node.stop()

    asyncio.run(asyncio.wait_for(story(), 300))
