"""Calls in threads: each is told once; those that hang keep nobody else waiting. [EN-1, EN-10]"""

from __future__ import annotations

import asyncio
import threading

from rapport.ensemble.model.calls import Call, Outcome
from rapport.ensemble.runtime.call_threads import CallThreads
from rapport.kernel.clock import Now, SystemClock


class Work(Call):
    """Waits for an event, or raises."""

    def __init__(self, name: str, gate: threading.Event | None = None) -> None:
        super().__init__("c", name, Now(0, 0.0), 0)
        self.gate = gate

    def run(self) -> Outcome:
        if self.name == "bad":
            raise KeyError("nothing")
        if self.gate is not None:
            self.gate.wait(20)
        return Outcome({})


class Harness:
    """Threads and what they told."""

    def __init__(self, **settings: float) -> None:
        self.told: dict[str, Outcome] = {}
        self.changed = asyncio.Event()
        self.threads = CallThreads(self._done, SystemClock(), **settings)  # type: ignore[arg-type]

    def _done(self, call: Call, outcome: Outcome) -> None:
        assert call.name not in self.told
        self.told[call.name] = outcome
        self.changed.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.told) < count:
                self.changed.clear()
                await self.changed.wait()


def test_each_call_is_told_once_with_what_it_found() -> None:
    async def scenario() -> None:
        harness = Harness(hangs_ms=1_000)
        harness.threads.run([Work(f"w{number}") for number in range(50)])
        await harness.until(50)
        assert len(harness.threads) <= 4
        harness.threads.close()

    asyncio.run(scenario())


def test_what_a_call_raises_is_a_fault_in_its_outcome() -> None:
    async def scenario() -> None:
        harness = Harness(hangs_ms=1_000)
        harness.threads.run([Work("bad"), Work("good")])
        await harness.until(2)
        assert harness.told["bad"].faults[0].code == "ensemble.raised"
        assert not harness.told["good"].faults
        harness.threads.close()

    asyncio.run(scenario())


def test_calls_that_hang_keep_no_others_waiting() -> None:
    async def scenario() -> None:
        gate = threading.Event()
        harness = Harness(hangs_ms=1, at_once=2)
        harness.threads.run([Work(f"hangs{number}", gate) for number in range(4)])
        await asyncio.sleep(0.01)
        harness.threads.run([Work("quick")])
        async with asyncio.timeout(10):
            while "quick" not in harness.told:
                harness.threads.look()
                await asyncio.sleep(0.002)
        assert set(harness.told) == {"quick"}
        gate.set()
        await harness.until(5)
        harness.threads.close()

    asyncio.run(scenario())


def test_after_closing_nothing_is_told_and_nothing_begins() -> None:
    async def scenario() -> None:
        gate = threading.Event()
        harness = Harness(hangs_ms=1_000, at_once=1)
        harness.threads.run([Work("runs", gate), Work("waits")])
        harness.threads.close()
        gate.set()
        await asyncio.sleep(0.02)
        assert harness.told == {}
        assert harness.threads.waiting == 0

    asyncio.run(scenario())
