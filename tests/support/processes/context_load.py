"""Providers and consumers beside brokers, and an account of what became of each request.
[CX-1, CX-3, CX-5]
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from rapport.context.clients.consumer import ContextConsumer
from rapport.context.clients.provider import ContextProvider
from rapport.core.errors import RapportError
from rapport.kernel.clock import Chance, SystemClock
from rapport.transport.base import Address
from rapport.transport.keys import DatagramKeys
from rapport.transport.station import EndpointWrapper, direct_link

SCOPE = "status"
LATE_MS = 500
"""What a machine with too many processes may add to a deadline before an answer counts as late."""

_BY_CHANCE = 2
_PADDING = "x" * 200
_clock = SystemClock()


@dataclass
class Tally:
    """What became of requests."""

    answered: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """By code."""
    late: list[float] = field(default_factory=list)
    """ms of those that were answered or refused after their deadline."""
    stale: int = 0
    """Records that were past their validity when they were returned."""
    wrong: int = 0
    """Records of something else than was asked for."""
    took_ms: list[float] = field(default_factory=list)
    hops: Counter[int] = field(default_factory=Counter)

    @property
    def asked(self) -> int:
        """All of them."""
        return self.answered + sum(self.refused.values())

    @property
    def share(self) -> float:
        """Answered, of all."""
        return self.answered / max(self.asked, 1)

    def reaches(self, share: float) -> bool:
        """Whether so many were answered; of a few requests two more may fail by chance."""
        return sum(self.refused.values()) <= (1 - share) * self.asked + _BY_CHANCE

    def percentile_ms(self, part: float) -> float:
        """Of the time that answers took."""
        ordered = sorted(self.took_ms)
        return ordered[min(int(part * len(ordered)), len(ordered) - 1)] if ordered else 0.0

    def __str__(self) -> str:
        return (
            f"{self.asked} asked, {self.answered} answered ({self.share:.2%}), refused "
            f"{dict(self.refused)}, late {len(self.late)}, stale {self.stale}, wrong {self.wrong}; "
            f"p50 {self.percentile_ms(0.5):.1f} ms, p99 {self.percentile_ms(0.99):.1f} ms, "
            f"most {self.percentile_ms(1.0):.1f} ms"
        )


@asynccontextmanager
async def providing(
    homes: Sequence[Sequence[Address]],
    *,
    each: int = 5,
    every_ms: int = 1_000,
    valid_for_ms: int = 3_000,
    prefix: str = "room/",
    keys: DatagramKeys | None = None,
    link: EndpointWrapper = direct_link,
) -> AsyncIterator[list[list[str]]]:
    """A provider for each list of brokers; each tells of so many entities every so often. Yields
    their names when all were told once.
    """
    async with AsyncExitStack() as closing:
        names, tasks = [], []
        for number, brokers in enumerate(homes):
            provider = await ContextProvider.open(brokers, name=f"p{number}", keys=keys, link=link)
            closing.push_async_callback(provider.close)
            own = [f"{prefix}{number}-{n}" for n in range(each)]
            names.append(own)
            tasks.append((provider, own))
        told = [
            provider.update(name, SCOPE, {"of": name, "n": 0}, valid_for_ms=valid_for_ms)
            for provider, own in tasks
            for name in own
        ]
        await asyncio.gather(*told)
        running = [
            asyncio.create_task(_tell(provider, name, every_ms, valid_for_ms))
            for provider, own in tasks
            for name in own
        ]
        try:
            yield names
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def _tell(provider: ContextProvider, name: str, every_ms: int, valid_for_ms: int) -> None:
    number = 0

    def measure() -> dict[str, object]:
        nonlocal number
        number += 1
        return {"of": name, "n": number, "padding": _PADDING}

    await provider.provide_every(
        name, SCOPE, measure, every_ms=every_ms, valid_for_ms=valid_for_ms, within_ms=every_ms
    )


@asynccontextmanager
async def consumers(
    homes: Sequence[Sequence[Address]],
    *,
    keys: DatagramKeys | None = None,
    link: EndpointWrapper = direct_link,
) -> AsyncIterator[list[ContextConsumer]]:
    """A consumer for each list of brokers."""
    async with AsyncExitStack() as closing:
        opened = []
        for brokers in homes:
            consumer = await ContextConsumer.open(brokers, keys=keys, link=link)
            closing.push_async_callback(consumer.close)
            opened.append(consumer)
        yield opened


async def ask_once(
    consumer: ContextConsumer, name: str, tally: Tally, *, within_ms: int = 2_000
) -> None:
    """One request, and what became of it."""
    began_ns = _clock.steady_ns()
    try:
        located = await consumer.request(name, SCOPE, within_ms=within_ms)
    except RapportError as error:
        tally.refused[error.code] += 1
        _note_time(tally, began_ns, within_ms)
        return
    now_ms = _clock.now_ms()
    tally.answered += 1
    tally.hops[located.hops] += 1
    # The millisecond in which it ends is that of the clock's own resolution.
    tally.stale += located.record.valid_until < now_ms
    tally.wrong += str(located.record.entity) != name or located.record.values["of"] != name
    tally.took_ms.append(_note_time(tally, began_ns, within_ms))


async def ask_for(
    asking: Sequence[ContextConsumer],
    pick: Callable[[], str],
    *,
    seconds: float,
    every_ms: float = 50,
    within_ms: int = 2_000,
    tally: Tally | None = None,
) -> Tally:
    """Each consumer asks every so often, whether or not the last answer came."""
    tally = tally if tally is not None else Tally()
    rounds = int(seconds * 1_000 / every_ms)
    chance, began_ns = Chance(7), _clock.steady_ns()
    offsets = [chance.random() * every_ms for _ in asking]
    running: set[asyncio.Task[None]] = set()
    for number in range(rounds):
        for consumer, offset in sorted(zip(asking, offsets, strict=True), key=lambda one: one[1]):
            due_ms = number * every_ms + offset
            await _clock.sleep(max(due_ms - (_clock.steady_ns() - began_ns) / 1e6, 0))
            task = asyncio.create_task(ask_once(consumer, pick(), tally, within_ms=within_ms))
            running.add(task)
            task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    return tally


def _note_time(tally: Tally, began_ns: int, within_ms: int) -> float:
    took_ms = (_clock.steady_ns() - began_ns) / 1e6
    if took_ms > within_ms + LATE_MS:
        tally.late.append(took_ms)
    return took_ms
