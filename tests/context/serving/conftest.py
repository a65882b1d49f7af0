"""Brokers on free ports of the loopback, closed at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from rapport.context.broker_server import ContextBroker
from rapport.kernel.clock import Chance, SystemClock

Opening = Callable[..., AbstractAsyncContextManager[list[ContextBroker]]]


@pytest.fixture
def line_of_brokers() -> Opening:
    """Brokers, each joined to the one before; each seeded, so that a run can be repeated."""

    @asynccontextmanager
    async def opening(count: int, **options: Any) -> AsyncIterator[list[ContextBroker]]:
        async with AsyncExitStack() as closing:
            brokers: list[ContextBroker] = []
            for number in range(count):
                broker = await ContextBroker.open(
                    ("127.0.0.1", 0), clock=SystemClock(), chance=Chance(number), **options
                )
                closing.push_async_callback(broker.close)
                if brokers:
                    await broker.join([brokers[-1].address])
                brokers.append(broker)
            yield brokers

    return opening
