"""One broker as a process of its own, told what to do by lines on stdin. [CX-12]

Every line in is a command, every line out its answer, both JSON. The first is the `Setup`; when
stdin ends, so does the broker.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.context.subject import record_of, small_record
from rapport.context.broker.broker_settings import BrokerSettings
from rapport.context.broker_server import ContextBroker
from rapport.kernel.clock import Chance, Now, SystemClock
from rapport.transport.base import Address
from rapport.transport.keys import DatagramKey, DatagramKeys

CLOCK = SystemClock()
_STATM = Path("/proc/self/statm")


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """How the broker is made; without keys nothing is sealed."""

    keys: tuple[DatagramKey, ...] = ()
    own: str = ""
    settings: BrokerSettings = msgspec.field(default_factory=BrokerSettings)


class Connect(msgspec.Struct, frozen=True, tag="connect"):
    """Have exactly these as neighbours."""

    brokers: tuple[Address, ...]


class Fill(msgspec.Struct, frozen=True, tag="fill"):
    """Put so many records into the table; those from `large` on share one small value."""

    records: int
    large: int


class Look(msgspec.Struct, frozen=True, tag="look"):
    """Say how you are."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How a broker process stands."""

    address: Address
    neighbours: int
    records: int
    replicas: int
    resident_kb: float
    processor_s: float
    counters: dict[str, int]


Order = Connect | Fill | Look


def main() -> None:
    """Serves until stdin ends."""
    import uvloop

    uvloop.run(_serve())


async def _serve() -> None:
    reader = asyncio.StreamReader(limit=16 * 1024 * 1024)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    setup = msgspec.json.decode(await reader.readline(), type=Setup)
    broker = await ContextBroker.open(
        ("127.0.0.1", 0),
        clock=CLOCK,
        chance=Chance.from_machine(),
        settings=setup.settings,
        keys=DatagramKeys(setup.keys, own=setup.own) if setup.keys else None,
    )
    _tell(standing(broker))
    while line := await reader.readline():
        carry_out(msgspec.json.decode(line, type=Order), broker)
        _tell(standing(broker))
    await broker.close()


def carry_out(order: Order, broker: ContextBroker) -> None:
    """Does what is ordered; looking needs nothing done."""
    now = Now(CLOCK.now_ms(), CLOCK.steady_ns() / 1e6)
    match order:
        case Connect():
            broker.machine.connect(order.brokers, now)
            broker.monitor()  # sends what connecting wants sent
        case Fill():
            for number in range(order.records):
                make = record_of if number < order.large else small_record
                broker.machine.put(make(number, now.wall_ms), now)
            broker.monitor()


def standing(broker: ContextBroker) -> Standing:
    """How it stands now."""
    status = broker.status()
    return Standing(
        address=broker.address,
        neighbours=len(status.neighbours),
        records=status.records,
        replicas=status.replicas,
        resident_kb=resident_kb(),
        processor_s=processor_s(),
        counters=status.counters,
    )


def processor_s() -> float:
    """Processor time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def resident_kb(of: Path = _STATM) -> float:
    """Resident memory of this process, or of the one whose `statm` is named; 0 where the system
    does not say.
    """
    if not of.exists():
        return 0.0
    return int(of.read_text(encoding="ascii").split()[1]) * resource.getpagesize() / 1024


def _tell(what: Any) -> None:
    sys.stdout.write(msgspec.json.encode(what).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
