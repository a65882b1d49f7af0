"""The process that test_policy_life.py kills: a life of policies on embedded channels, at a time
that the parent says.

Reads commands from stdin, one JSON array per line, and answers each with a line once it is done:
["time", ms], ["reading", id, ms, person, x, y], ["temperature", id, ms, station, degrees],
["register" | "replace", name, text],
["pause" | "resume" | "delete", name].
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from rapport.channel.backends.local import open_embedded
from rapport.core.event import make_event
from rapport.kernel.clock import ManualClock
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.lifecycle.lifecycle import PolicyLifecycle
from rapport.site.site import load_site


class Child:
    def __init__(self, directory: str, site: str, now_ms: str, commit_every_ms: str) -> None:
        self.clock = ManualClock(int(now_ms))
        self.site = load_site(Path(site), policies=[])
        self.channels = open_embedded(Path(directory), self.clock)
        self.engine = PolicyEngine(
            self.channels,
            self.clock,
            name="site",
            ontology=self.site.ontology,
            pull=self.site.tables,
            lateness_ms=500,
            quiet_ms=0,
            commit_every_ms=int(commit_every_ms),
        )
        self.life = PolicyLifecycle(self.channels, self.engine, self.clock, self.compile)

    def compile(self, name, text):
        return compile_policy(
            text, name=name, ontology=self.site.ontology, window_ms=self.site.window_ms
        )

    async def run(self) -> None:
        await self.life.begin({})
        await self.drain()
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            what, *rest = json.loads(line)
            await self.obey(what, rest)
            await self.drain()
            print("done", flush=True)

    async def obey(self, what, rest) -> None:
        if what == "time":
            self.clock.set_ms(rest[0])
        elif what == "reading":
            id, time_ms, person, x, y = rest
            event = make_event(
                source="positions",
                id=id,
                type="person.position",
                subject=f"person/{person}",
                time=time_ms,
                data={"key": person, "value": [x, y]},
            )
            await self.channels.channel("events").append([event])
        elif what == "temperature":
            id, time_ms, station, degrees = rest
            event = make_event(
                source="temperature",
                id=id,
                type="station.temperature",
                subject=f"station/{station}",
                time=time_ms,
                data={"key": station, "value": [degrees]},
            )
            await self.channels.channel("events").append([event])
        else:
            await getattr(self.life, what)(*rest)

    async def drain(self) -> None:
        while await self.engine.step(timeout_ms=0):
            pass
        await self.engine.step(timeout_ms=0)


async def main() -> None:
    await Child(*sys.argv[1:]).run()


asyncio.run(main())
