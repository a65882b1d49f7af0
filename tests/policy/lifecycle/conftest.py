"""A life of policies on channels in memory, with the policies of the small checks."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from rapport.channel.backends.local import open_memory
from rapport.channel.channel import Channels
from rapport.core.detection import DETECTED, Detection
from rapport.core.event import Event, make_event
from rapport.kernel.clock import ManualClock
from rapport.policy.compiler.compile import CompiledPolicy, compile_policy
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.lifecycle.lifecycle import PolicyLifecycle
from rapport.site.site import load_site
from rapport.tables.tables import Tables

CHECK = Path(__file__).parents[2] / "data" / "checks" / "small-policies"
SITE = load_site(CHECK)
NOW = 100_000


class World:
    """One log; engines and lives may die and start anew on it."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW)
        self.channels: Channels = open_memory(self.clock)
        self.ontology, self.pull = SITE.ontology, SITE.tables
        self.texts = {name: (CHECK / f"{name}.dpl").read_text() for name in SITE.policies}

    def compile(self, name: str, text: str) -> CompiledPolicy:
        return compile_policy(text, name=name, ontology=self.ontology, window_ms=SITE.window_ms)

    async def start(self, *files: str, texts: dict[str, str] | None = None, **options: Any) -> None:
        """A new process on the same log; what was not committed is lost."""
        self.engine = PolicyEngine(
            self.channels,
            self.clock,
            name="site",
            ontology=self.ontology,
            pull=SITE.tables,
            lateness_ms=options.pop("lateness_ms", 0),
            quiet_ms=options.pop("quiet_ms", 0),
            **options,
        )
        self.life = PolicyLifecycle(self.channels, self.engine, self.clock, self.compile)
        self.done = await self.life.begin(
            texts if texts is not None else {name: self.texts[name] for name in files}
        )

    async def send(self, *events: Event) -> None:
        """Events that arrive when they happen: the clock is not behind them."""
        self.clock.set_ms(max(self.clock.now_ms(), *(event.time for event in events)))
        await self.channels.channel("events").append(events)
        await self.drain()

    async def drain(self) -> None:
        while await self.engine.step(timeout_ms=0):
            pass

    async def until(self, time_ms: int) -> None:
        self.clock.set_ms(time_ms)
        await self.drain()

    async def events(self, type: str, channel: str = "detections") -> list[Event]:
        stored = await self.channels.channel(channel).read_after(0, limit=100_000)
        return [item.event for item in stored if item.event.type == type]

    async def found(self) -> list[tuple[str, int]]:
        """Policy and time of each detection."""
        found = [Detection.from_event(event) for event in await self.events(DETECTED)]
        return [(one.policy, one.time) for one in found]

    def states(self) -> dict[str, str]:
        return {policy.name: policy.state for policy in self.life.policies()}

    @staticmethod
    def with_guest(key: str) -> Tables:
        """The tables with one guest more."""
        with TemporaryDirectory() as directory:
            site = Path(shutil.copytree(CHECK, Path(directory) / "site"))
            with (site / "persons.csv").open("a") as file:
                file.write(f"{key},guest\n")
            return load_site(site).tables

    @staticmethod
    def position(time_ms: int, id: str, person: str, x: float = 5, y: float = 5) -> Event:
        return make_event(
            source="positions",
            id=id,
            type="person.position",
            subject=f"person/{person}",
            time=time_ms,
            data={"key": person, "value": [x, y]},
        )


@pytest.fixture
def play() -> Callable[[Callable[[World], Coroutine[Any, Any, None]]], None]:
    """Runs a story in a world of its own."""

    def run(story: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        async def whole() -> None:
            world = World()
            await story(world)
            await world.channels.close()

        asyncio.run(whole())

    return run
