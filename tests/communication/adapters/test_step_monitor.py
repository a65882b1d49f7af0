"""An adapter that keeps the event loop from turning is named; the clock is moved by the adapter
itself, so nothing depends on the machine. [CO-4, CO-5]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from rapport.channel.backends.local import open_memory
from rapport.communication.adapters.base import Delivery, Sent
from rapport.communication.adapters.dispatch import Dispatch
from rapport.communication.adapters.inputs import Inputs
from rapport.communication.adapters.isolation import (
    SLOW_STEP_MS,
    AdapterCaller,
    IsolatedCall,
    StepMonitor,
)
from rapport.communication.arrival_checks import Trusted, never
from rapport.communication.arrivals import ArrivalResult
from rapport.core.message import Message
from rapport.kernel.clock import ManualClock
from rapport.node.metrics import adapter_metrics

MINUTE = 60_000


def blocks(clock: ManualClock, duration_ms: int) -> None:
    """What a step does that computes for so long: no other step runs meanwhile."""
    clock.set_ms(clock.now_ms() + duration_ms)


def told(logs: list[Any]) -> list[tuple[str, str, int]]:
    return [
        (entry["code"], entry["adapter"], entry["took_ms"])
        for entry in logs
        if entry.get("code") == "adapter.blocks"
    ]


@pytest.mark.parametrize("ends", ["returns", "raises"])
def test_a_slow_step_is_counted_and_reported_and_waiting_is_no_step(ends: str) -> None:
    clock = ManualClock()
    watched = StepMonitor("output pager", clock)

    async def work() -> str:
        waiting = clock.sleep(10 * MINUTE)
        await waiting  # however long: others go on
        blocks(clock, SLOW_STEP_MS)  # just not too long
        await asyncio.sleep(0)
        blocks(clock, SLOW_STEP_MS + 1)
        if ends == "raises":
            raise ValueError
        return "done"

    async def scenario() -> None:
        running = asyncio.ensure_future(IsolatedCall(work, watched))
        await asyncio.sleep(0)
        clock.set_ms(10 * MINUTE)
        (result,) = await asyncio.gather(running, return_exceptions=True)
        assert result == "done" if ends == "returns" else isinstance(result, ValueError)

    with capture_logs() as logs:
        asyncio.run(scenario())
    assert watched.blocked == 1
    assert told(logs) == [("adapter.blocks", "output pager", SLOW_STEP_MS + 1)]
    assert all(entry["hint"] for entry in logs)


def test_an_adapter_that_blocks_often_is_reported_once_a_minute() -> None:
    clock = ManualClock()
    watched = StepMonitor("input desk", clock)

    async def scenario() -> None:
        for _ in range(6):
            await IsolatedCall(lambda: step(clock), watched)

    with capture_logs() as logs:
        asyncio.run(scenario())
    assert watched.blocked == 6
    assert len(told(logs)) == 2


async def step(clock: ManualClock) -> None:
    blocks(clock, 20_000)


class Pager:
    """Sends without awaiting anything."""

    name = "pager"

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock

    async def send(self, _delivery: Delivery) -> Sent:
        blocks(self.clock, 2_000)
        return Sent()

    async def close(self) -> None:
        return


def test_an_output_is_named_and_its_delivery_goes_out_all_the_same() -> None:
    clock = ManualClock(1)
    sending = AdapterCaller(Pager(clock), clock, deadline_ms=MINUTE)
    delivery = Delivery(message="m", peer="ana", address="pager:1", attempt=1, text="hello")
    with capture_logs() as logs:
        assert asyncio.run(sending.send([delivery])) == [Sent()]
    assert told(logs) == [("adapter.blocks", "output pager", 2_000)]
    channels = open_memory(clock)
    assert Dispatch(Pager(clock), channels, channels.records, clock).steps.blocked == 0


async def takes_nothing(
    messages: Sequence[Message], *, adapter: str, trusted: Trusted = never
) -> Sequence[ArrivalResult]:
    assert not messages, (adapter, trusted)
    return ()


class Pulled:
    def __init__(self, look: Callable[[], None]) -> None:
        self.look = look

    async def pull(self) -> list[Message]:
        self.look()
        return []


class Pushed:
    def __init__(self, look: Callable[[], None]) -> None:
        self.look = look

    async def start(self, _intake: Any) -> None:
        self.look()

    async def stop(self) -> None:
        return


@pytest.mark.parametrize("kind", ["push", "pull"])
def test_an_input_is_named_in_its_status_and_the_metrics(kind: str) -> None:
    async def scenario() -> None:
        clock = ManualClock(1)
        channels = open_memory(clock)
        inputs = Inputs(takes_nothing, channels, channels.records, clock)
        looked = asyncio.Event()

        def look() -> None:
            blocks(clock, 700)
            looked.set()

        if kind == "push":
            await inputs.add_push(Pushed(look), name="desk")
        else:
            await inputs.add_pull(Pulled(look), 1_000, name="desk")
        await looked.wait()
        await asyncio.sleep(0)
        assert [status.blocked for status in inputs.status()] == [1]
        found = [
            (sample.labels, sample.value)
            for metric in adapter_metrics([], inputs.status())
            for sample in metric.samples
            if sample.name == "rapport_adapter_blocked_total"
        ]
        assert found == [({"direction": "input", "adapter": "desk"}, 1)]
        await inputs.close()

    with capture_logs() as logs:
        asyncio.run(scenario())
    assert told(logs) == [("adapter.blocks", "input desk", 700)]
