"""A broker behind a bad network of its own, `python -m support.faults.unreliable_broker`.
[CX-4, CX-5]

It is told on stdin what happens to its datagrams: `lose SHARE` of those it sends and hears, `cut
HOST:PORT...` those it hears nothing from and sends nothing to (none: heal).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

from rapport.channel.backends.local import open_embedded
from rapport.context.broker_server import ContextBroker
from rapport.kernel.clock import Chance, SystemClock
from rapport.transport.addresses import format_address, parse_address
from rapport.transport.base import Endpoint
from rapport.transport.keys import load_keys
from support.faults.bad_network import BadNetwork


async def serve(given: argparse.Namespace) -> None:
    """Runs until cancelled."""
    clock = SystemClock()
    networks: list[BadNetwork] = []

    def link(endpoint: Endpoint) -> Endpoint:
        networks.append(BadNetwork(endpoint, Chance(f"{given.listen} {given.seed}")))
        return networks[0]

    async with AsyncExitStack() as closing:
        channels = None
        if given.directory is not None:
            channels = open_embedded(given.directory, clock)
            closing.push_async_callback(channels.close)
        broker = await ContextBroker.open(
            parse_address(given.listen),
            clock=clock,
            chance=Chance.from_machine(),
            keys=load_keys(given.keys) if given.keys else None,
            channels=channels,
            link=link,
        )
        closing.push_async_callback(broker.close)
        if given.join:
            broker.keep_joining([parse_address(text) for text in given.join])
        print(
            f"context broker is up: {format_address(broker.address)}", file=sys.stderr, flush=True
        )
        await _obey(networks[0])


async def _obey(network: BadNetwork) -> None:
    """Takes lines until there are no more."""
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        network.obey(line.decode())


def main(words: Sequence[str] | None = None) -> None:
    """Reads the options of `rapport context broker` that it knows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", required=True)
    parser.add_argument("--join", action="append")
    parser.add_argument("--keys", type=Path)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    uvloop.run(serve(parser.parse_args(words)))


if __name__ == "__main__":
    main()
