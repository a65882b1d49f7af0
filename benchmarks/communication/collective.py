"""One message to a large collective: how soon the first of them is told, how long all take, how
much memory that needs. [CO-8]
"""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec
import uvloop

from benchmarks.communication.room import APPLICATION, CLOCK, CONTENT, directory_of, fresh_room
from rapport.core.message import CONTROL, Identifier, Message

_STATM = Path("/proc/self/statm")
_PAGE_BYTES = 4096
_LOOK_EVERY_MS = 10


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """How it went."""

    first_seconds: float
    """From `send` to the first delivery."""
    all_seconds: float
    """From `send` until the sender was told that everybody was reached."""
    grown_mb: float
    """Most memory of the process over what it had before; 0 where the system does not say."""


def in_a_process_of_its_own(members: int) -> Told:
    """As `tell_everybody`. What a run before has freed is still the process's, and would hide what
    this one needs.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(_tell, members).result()


def _tell(members: int) -> Told:
    return uvloop.run(tell_everybody(members))


async def tell_everybody(members: int) -> Told:
    """Sends one message to a collective, TO_ALL_MEMBERS, over one adapter."""
    async with fresh_room(directory_of(members), answering=False) as room:
        done = asyncio.Event()

        def told(message: Message) -> None:
            if message.type == CONTROL:
                if message.subtype != "ACK":
                    raise RuntimeError(f"the run is not valid: {message}")
                done.set()

        room.engine.add_notification(told)
        before = _resident_mb()
        seen = [before]
        watching = asyncio.create_task(_watch(seen))
        began_ns = CLOCK.steady_ns()
        await room.arrivals.send(
            [
                Message(
                    type="TASK",
                    subtype="REQUEST",
                    sender=APPLICATION,
                    receiver=Identifier("collective", "everybody"),
                    content=CONTENT,
                )
            ]
        )
        await done.wait()
        ended_ns = CLOCK.steady_ns()
        watching.cancel()
        if room.output.count != members:
            raise RuntimeError(f"{room.output.count} of {members} were told")
        return Told(
            first_seconds=(room.output.first_ns - began_ns) / 1e9,
            all_seconds=(ended_ns - began_ns) / 1e9,
            grown_mb=max(seen) - before,
        )


async def _watch(seen: list[float]) -> None:
    """Notes the memory of the process, often, until cancelled."""
    while True:
        seen.append(_resident_mb())
        await CLOCK.sleep(_LOOK_EVERY_MS)


def _resident_mb() -> float:
    if not _STATM.exists():
        return 0.0
    return int(_STATM.read_text().split()[1]) * _PAGE_BYTES / 1e6
