"""One cell of the source's grid: so many workers send to so many peers, who answer at once.
[CO-7, CO-10]

Handled are messages that were handed to the medium and answers that the application was told;
nothing else counts, and afterwards the ledger has to say the same.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from benchmarks.communication.places import Places
from benchmarks.communication.room import (
    APPLICATION,
    CLOCK,
    CONTENT,
    Room,
    directory_of,
    fresh_room,
    peer_name,
)
from rapport.communication.ledger_events import CONTROL_MESSAGE, DELIVERY_PREFIX
from rapport.communication.records import DELIVERIES
from rapport.core.message import MESSAGE, Identifier, Message, MessagePolicy

BATCH = 500
"""Messages in one `send`, or as many as a worker may have on their way."""
IN_FLIGHT = 4_000
"""Messages without an answer in the whole room, shared by its workers."""
_PAGE = 10_000


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """What one run gave."""

    workers: int
    peers: int
    messages: int
    seconds: float
    processor_seconds: float
    """Of all threads of this process."""

    @property
    def handled_per_second(self) -> float:
        """Sent and received."""
        return 2 * self.messages / self.seconds

    @property
    def processor_us(self) -> float:
        """Processor time per handled message."""
        return self.processor_seconds * 1e6 / (2 * self.messages)


class _Window:
    """How many messages of one worker are not answered yet."""

    def __init__(self, most: int) -> None:
        self._most, self._open = most, 0
        self._news = asyncio.Event()

    async def enter(self, count: int) -> None:
        while self._open and self._open + count > self._most:
            self._news.clear()
            await self._news.wait()
        self._open += count

    def leave(self) -> None:
        self._open -= 1
        if not self._news.is_set():
            self._news.set()

    async def empty(self) -> None:
        await self.enter(self._most)


async def run_cell(
    workers: int,
    peers: int,
    messages: int,
    *,
    policy: MessagePolicy = "unreliable",
    with_tokens: bool = False,
    batch: int = BATCH,
    places: Places | None = None,
) -> Cell:
    """Runs one cell in a fresh room and checks what the ledger says; raises RuntimeError when it
    says anything else than that each message was handed once and answered once.
    """
    people = directory_of(peers)
    async with fresh_room(people, with_tokens=with_tokens, places=places) as room:
        window = max(IN_FLIGHT // workers, 1)
        windows = [_Window(window) for _ in range(workers)]
        told: list[str] = []  # counted afterwards: counting is no part of what is measured

        def tell(message: Message) -> None:
            if message.type == "TASK":
                told.append(message.refers_to)
                windows[int(message.conversation)].leave()

        room.engine.add_notification(tell)
        began_ns, began_processor = CLOCK.steady_ns(), time.process_time()
        await asyncio.gather(
            *(
                _work(room, number, windows[number], share, peers, policy, min(batch, window))
                for number, share in enumerate(_shares(messages, workers))
            )
        )
        seconds = (CLOCK.steady_ns() - began_ns) / 1e9
        processor_seconds = time.process_time() - began_processor
        await _check(room, messages, Counter(told))
    return Cell(
        workers=workers,
        peers=peers,
        messages=messages,
        seconds=seconds,
        processor_seconds=processor_seconds,
    )


async def _work(
    room: Room, number: int, window: _Window, count: int, peers: int, policy: MessagePolicy,
    batch: int,
) -> None:  # fmt: skip
    """One worker: sends its share in batches, each durable before the next, and waits for the
    last answer.
    """
    receivers = [Identifier("peer", peer_name(each)) for each in range(peers)]
    for start in range(0, count, batch):
        size = min(batch, count - start)
        await window.enter(size)
        await room.arrivals.send(
            [
                Message(
                    type="TASK",
                    subtype="REQUEST",
                    sender=APPLICATION,
                    receiver=receivers[(number + start + each) % peers],
                    conversation=str(number),
                    content=CONTENT,
                    delivery_policy=policy,
                )
                for each in range(size)
            ]
        )
    await window.empty()


def _shares(messages: int, workers: int) -> list[int]:
    return [messages // workers + (number < messages % workers) for number in range(workers)]


# --- what the ledger says ---


async def _check(room: Room, messages: int, told: Counter[str]) -> None:
    await _settled(room)
    lines, handed = await _lines(room)
    wanted = dict.fromkeys(("queued", "notified", "handed", "answered"), messages)
    _must(lines == wanted, f"the ledger says {dict(lines)}, not {wanted}")
    _must(set(handed.values()) == {1}, "something was handed twice")
    _must(handed == told, "who was handed something and who answered differ")
    _must(not room.records.find(DELIVERIES, limit=1), "something is still open")
    _must(not room.failures, f"tasks failed: {room.failures}")


async def _settled(room: Room) -> None:
    """The last outcomes may still be on their way to the ledger when the last answer is told."""
    while room.dispatch.waiting():
        await CLOCK.sleep(1)


async def _lines(room: Room) -> tuple[Counter[str], Counter[str]]:
    """How often each state stands in the log, and how often each message was handed."""
    lines: Counter[str] = Counter()
    handed: Counter[str] = Counter()
    log, position = room.channels.channel("log"), 0
    while page := await log.read_after(position, limit=_PAGE):
        position = page[-1].position
        for stored in page:
            event = stored.event
            if event.type == MESSAGE:
                said = event.payload_as(_Fate)
                lines[said.fate] += 1
                lines["answered"] += bool(said.answered)
            elif event.type != CONTROL_MESSAGE:  # an ACK to its sender, where senders want one
                state = event.type.removeprefix(DELIVERY_PREFIX)
                lines[state] += 1
                if state == "handed":
                    handed[event.subject] += 1
    return lines, handed


class _Fate(msgspec.Struct):
    fate: str
    answered: int = 0
    """The event of an answer stands for the ledger's line about it."""


def _must(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RuntimeError(f"the run is not valid: {otherwise}")


def mean(cells: Sequence[Cell]) -> float:
    """The mean rate of several runs."""
    return sum(cell.handled_per_second for cell in cells) / len(cells)
