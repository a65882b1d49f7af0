"""`rapport context request`, `subscribe`: what is true now, and whenever it changes. [CX-3]"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Annotated

from cyclopts import Parameter

from rapport.cli.context.options import (
    BrokersOption,
    JsonOption,
    KeysOption,
    brokers_of,
    keys_of,
    record_as_json,
    run_until_stopped,
    show_record,
    values_line,
)
from rapport.cli.output import visible, write_json
from rapport.context.clients.consumer import ContextConsumer, LocatedRecord
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import InvalidInput
from rapport.core.times import format_time, parse_duration
from rapport.transport.addresses import format_address

EntityArgument = Annotated[str, Parameter(help="Whom it is about: TYPE/ID, such as room/r3.")]
ScopeArgument = Annotated[str, Parameter(help="What group of values, such as status.")]


def request(
    entity: EntityArgument,
    scope: ScopeArgument,
    *,
    within: Annotated[str, Parameter(help="How long to look for it.")] = "2s",
    fresh: Annotated[
        bool,
        Parameter(
            negative="",
            help="From the broker that its provider updates, not from a copy on the way.",
        ),
    ] = False,
    broker: BrokersOption = None,
    keys: KeysOption = None,
    json: JsonOption = False,
) -> None:
    """Ask what is true now; a broker that does not have it looks for it in the network.

    rapport context request room/r3 status
    """
    subject, within_ms = EntityRef.parse(entity), _positive(within)

    async def ask() -> LocatedRecord:
        async with await ContextConsumer.open(brokers_of(broker), keys=keys_of(keys)) as consumer:
            return await consumer.request(subject, scope, within_ms=within_ms, fresh=fresh)

    located = asyncio.run(ask())
    if json:
        write_json({**record_as_json(located.record), **_way(located)})
    else:
        hops = f"{located.hops} hop{'' if located.hops == 1 else 's'} away"
        show_record(located.record, f", found {hops} in {located.took_ms:.1f} ms")


def subscribe(
    entity: EntityArgument,
    scope: ScopeArgument,
    *,
    every: Annotated[str | None, Parameter(help="Also when it is the same, this often.")] = None,
    count: Annotated[int | None, Parameter(help="End after so many.")] = None,
    broker: BrokersOption = None,
    keys: KeysOption = None,
    json: JsonOption = False,
) -> None:
    """Print what is true now and whenever it changes, until Ctrl-C.

    rapport context subscribe room/r3 status
    """
    if count is not None and count < 1:
        raise InvalidInput(
            f"cannot wait for {count} records",
            code="cli.wrong_use",
            hint="--count is 1 or more; without it, records are printed until Ctrl-C",
        )
    subject, every_ms = EntityRef.parse(entity), _positive(every) if every else 0

    async def follow() -> None:
        left = count
        async with await ContextConsumer.open(brokers_of(broker), keys=keys_of(keys)) as consumer:
            records = consumer.subscribe(subject, scope, every_ms=every_ms)
            async with aclosing(records):
                async for record in records:
                    _print(record, json)
                    left = None if left is None else left - 1
                    if left == 0:
                        return

    run_until_stopped(follow())


def _print(record: ContextRecord, as_json: bool) -> None:
    if as_json:
        write_json(record_as_json(record))
        return
    cells = (format_time(record.valid_from), record.provider, values_line(record))
    print("\t".join(visible(cell) for cell in cells), flush=True)


def _way(located: LocatedRecord) -> dict[str, object]:
    return {
        "hops": located.hops,
        "took_ms": round(located.took_ms, 3),
        "broker": format_address(located.broker) if located.broker else "",
    }


def _positive(text: str) -> int:
    duration_ms = parse_duration(text)
    if duration_ms < 1:
        raise InvalidInput(
            f"{text!r} is no time to wait",
            code="cli.wrong_use",
            hint="1ms or more, such as 500ms, 2s or 1min",
        )
    return duration_ms
