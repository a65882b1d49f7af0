"""`rapport context join`, `leave`, `monitor`, `status`: looking after brokers. [CX-3, CX-4]"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

from cyclopts import Parameter

from rapport.cli.context.options import JsonOption, KeysOption, keys_of
from rapport.cli.output import stderr, write_json, write_table
from rapport.context.clients.controller import ContextController
from rapport.transport.addresses import parse_address
from rapport.transport.base import Address

T = TypeVar("T")
BrokerArgument = Annotated[str, Parameter(help="The broker that is told: HOST:PORT.")]


def join(
    broker: BrokerArgument,
    others: Annotated[list[str], Parameter(help="Brokers of the network it joins.")],
    *,
    exactly: Annotated[
        bool, Parameter(negative="", help="All of these, near or far, and no others.")
    ] = False,
    keys: KeysOption = None,
) -> None:
    """Have a broker choose neighbours among others: the nearest, and one at random."""
    known = [parse_address(text) for text in others]
    address = parse_address(broker)

    async def command(controller: ContextController) -> None:
        await (controller.connect if exactly else controller.join)(address, known)

    _with_controller(address, keys, command)
    stderr().print(f"{broker} has joined", highlight=False)


def leave(broker: BrokerArgument, *, keys: KeysOption = None) -> None:
    """Have a broker say goodbye to its neighbours; it goes on to serve its own clients."""
    address = parse_address(broker)
    _with_controller(address, keys, lambda controller: controller.leave(address))
    stderr().print(f"{broker} has left", highlight=False)


def monitor(broker: BrokerArgument, *, keys: KeysOption = None) -> None:
    """Have a broker begin to ping its neighbours, so that those that die are noticed."""
    address = parse_address(broker)
    _with_controller(address, keys, lambda controller: controller.monitor(address))
    stderr().print(f"{broker} watches its neighbours", highlight=False)


def status(
    broker: BrokerArgument = "127.0.0.1:7411", *, keys: KeysOption = None, json: JsonOption = False
) -> None:
    """Show what a broker holds and who its neighbours are."""
    address = parse_address(broker)
    found = _with_controller(address, keys, lambda controller: controller.status(address))
    if json:
        write_json(found)
        return
    rows = [
        ("records", str(found.records)),
        ("replicas", str(found.replicas)),
        ("searches under way", str(found.searches)),
        ("subscriptions", str(found.watches)),
        ("updates not yet on disk", str(found.queued)),
        ("load", f"{found.load:.2f}"),
    ]
    rows += [(f"neighbour {one.address}", _far(one.round_trip_ms)) for one in found.neighbours]
    rows += [(name.replace("_", " "), str(count)) for name, count in found.counters.items()]
    write_table(f"broker {found.address}", ("what", "now"), rows)


def _far(round_trip_ms: float | None) -> str:
    return "not measured yet" if round_trip_ms is None else f"{round_trip_ms:.2f} ms"


def _with_controller(
    broker: Address, keys: KeysOption, work: Callable[[ContextController], Awaitable[T]]
) -> T:
    async def run() -> T:
        async with await ContextController.open([broker], keys=keys_of(keys)) as controller:
            return await work(controller)

    return asyncio.run(run())
