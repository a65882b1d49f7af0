"""`rapport context broker`, `join`, `leave`, `monitor` and `status`: brokers of a context network.
[CX-3, CX-4, CX-8, CX-9]

SIGTERM and Ctrl-C leave the network in order; SIGKILL loses nothing that was acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter

from rapport.cli.arguments import JsonOption, run_until_stopped
from rapport.cli.context import KeysOption, keys_of
from rapport.cli.output import print_note, write_json, write_table
from rapport.context.broker_server import ContextBroker
from rapport.context.clients.controller import ContextController
from rapport.context.connections import check_sealed
from rapport.kernel.clock import Chance, Clock, SystemClock
from rapport.kernel.telemetry import configure_logs
from rapport.transport.addresses import format_address, parse_address
from rapport.transport.base import Address
from rapport.transport.keys import KeyFileWatch

if TYPE_CHECKING:
    from rapport.context.v0_endpoint import V0Endpoint

_LOOK_AT_KEYS_MS = 2_000


def broker(
    *,
    listen: Annotated[
        str, Parameter(help="Where clients and other brokers reach it; port 0 takes a free one.")
    ] = "127.0.0.1:7411",
    join: Annotated[
        list[str] | None, Parameter(negative="", help="A broker of the network; repeat it.")
    ] = None,
    keys: KeysOption = None,
    directory: Annotated[
        Path | None, Parameter(help="Keep updates here; without it, in memory only.")
    ] = None,
    v0: Annotated[
        str | None, Parameter(help="Also speak the plain protocol v0 here; it proves nobody.")
    ] = None,
    log_json: Annotated[bool, Parameter(negative="", help="Logs as JSON lines.")] = False,
) -> None:
    """Run a context broker, alone or in a network.

    rapport context broker --listen 127.0.0.1:7411 --join 127.0.0.1:7421
    """
    configure_logs(json=log_json)
    others = [parse_address(text) for one in join or [] for text in one.split(",")]
    address = parse_address(listen)
    plain = parse_address(v0) if v0 else None
    check_sealed([address, *others], has_keys=keys is not None)
    watch = KeyFileWatch(keys) if keys is not None else None
    run_until_stopped(_serve(address, others, watch, directory, plain))


async def _serve(
    listen: Address,
    others: list[Address],
    keys: KeyFileWatch | None,
    directory: Path | None,
    v0: Address | None,
) -> None:
    clock = SystemClock()
    async with AsyncExitStack() as closing:
        channels = None
        if directory is not None:
            from rapport.channel.backends.local import open_embedded

            channels = open_embedded(directory, clock)
            closing.push_async_callback(channels.close)
        one = await ContextBroker.open(
            listen,
            clock=clock,
            chance=Chance.from_machine(),
            keys=keys.keys if keys is not None else None,
            channels=channels,
        )
        closing.push_async_callback(one.close)
        if v0 is not None:
            closing.push_async_callback((await _open_v0(v0, one, clock)).close)
        if others:
            one.keep_joining(others)
        _announce(one, directory)
        await _look_at_keys(keys, clock)


async def _open_v0(v0: Address, one: ContextBroker, clock: Clock) -> V0Endpoint:
    from rapport.context.v0_endpoint import V0Endpoint

    endpoint = await V0Endpoint.open(
        v0, one, clock=clock, chance=Chance.from_machine(), allows=one.rights.allows, audit=one.note
    )
    where = format_address(endpoint.address)
    print_note(f"protocol v0 is spoken at {where}, with this machine only")
    return endpoint


def _announce(one: ContextBroker, directory: Path | None) -> None:
    kept = f"updates are kept in {directory}" if directory else "updates are kept in memory only"
    where = format_address(one.address)
    print_note(f"context broker is up: {where}  ({kept}; stop with Ctrl-C)")


async def _look_at_keys(keys: KeyFileWatch | None, clock: Clock) -> None:
    """Takes up keys that were added or retired, until cancelled."""
    while True:
        await clock.sleep(_LOOK_AT_KEYS_MS)
        if keys is not None and keys.refresh():
            print_note("took up the changed keys")


T = TypeVar("T")
BrokerArgument = Annotated[str, Parameter(help="The broker: HOST:PORT.")]


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
    print_note(f"{broker} has joined")


def leave(broker: BrokerArgument, *, keys: KeysOption = None) -> None:
    """Have a broker say goodbye to its neighbours; it goes on to serve its own clients."""
    address = parse_address(broker)
    _with_controller(address, keys, lambda controller: controller.leave(address))
    print_note(f"{broker} has left")


def monitor(broker: BrokerArgument, *, keys: KeysOption = None) -> None:
    """Have a broker begin to ping its neighbours, so that those that die are noticed."""
    address = parse_address(broker)
    _with_controller(address, keys, lambda controller: controller.monitor(address))
    print_note(f"{broker} watches its neighbours")


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
