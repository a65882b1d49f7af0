"""`rapport context provide`: tells what is true, once or at a rate. [CX-3]"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from rapport.cli.arguments import moment
from rapport.cli.context.options import (
    BrokersOption,
    JsonOption,
    KeysOption,
    brokers_of,
    keys_of,
    record_as_json,
    run_until_stopped,
    values_line,
    values_of,
)
from rapport.cli.output import stderr, write_json
from rapport.context.clients.provider import ContextProvider
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import InvalidInput, Unavailable
from rapport.core.times import format_time, parse_duration
from rapport.kernel.clock import SystemClock
from rapport.kernel.signing import SigningKey

_LEAST_PERIOD_MS = 10


def provide(
    entity: Annotated[str, Parameter(help="Whom it is about: TYPE/ID, such as room/r3.")],
    scope: Annotated[str, Parameter(help="What group of values it is, such as status.")],
    values: Annotated[list[str], Parameter(help="NAME=VALUE, one or more.")],
    *,
    valid: Annotated[str, Parameter(help="How long it is true: 30s, 10min.")],
    every: Annotated[str | None, Parameter(help="Tell it again and again, this often.")] = None,
    start: Annotated[
        str, Parameter(name="--from", help="When it begins to be true; else now.")
    ] = "",
    provider: Annotated[str, Parameter(help="Who tells it; else the owner of the key.")] = "",
    sign: Annotated[
        Path | None,
        Parameter(
            help="A key made by `rapport access make-key`: nobody else can write in its name."
        ),
    ] = None,
    broker: BrokersOption = None,
    keys: KeysOption = None,
    json: JsonOption = False,
) -> None:
    """Tell a broker what is true; it is told to whoever asks until it is no longer valid.

    rapport context provide room/r3 status open=true --valid 30s --every 10s
    """
    subject, valid_ms = EntityRef.parse(entity), parse_duration(valid)
    every_ms = parse_duration(every) if every else 0
    if every and every_ms < _LEAST_PERIOD_MS:
        raise InvalidInput(
            f"{every!r} is too often",
            code="cli.wrong_use",
            hint=f"at most --every {_LEAST_PERIOD_MS}ms; without it, it is told once",
        )
    if every and start:
        raise InvalidInput(
            "what is told again and again begins each time it is told",
            code="cli.wrong_use",
            hint="leave out --from, or tell it once, without --every",
        )
    if every_ms > valid_ms:
        note = f"it will be unknown in between: told every {every}, valid for {valid}"
        stderr().print(note, highlight=False)
    given, ring = values_of(values), keys_of(keys)
    begin = moment(start)

    async def work() -> None:
        name = provider or ("" if ring else "local")
        signing = SigningKey.load(sign) if sign is not None else None
        async with await ContextProvider.open(
            brokers_of(broker), name=name, keys=ring, signing=signing
        ) as one:
            if not every_ms:
                record = await one.update(
                    subject, scope, given, valid_for_ms=valid_ms, valid_from=begin
                )
                _say(record, json)
                return
            await _repeat(one, subject, scope, given, every_ms, valid_ms, json)

    run_until_stopped(work())


async def _repeat(
    provider: ContextProvider,
    entity: EntityRef,
    scope: str,
    values: dict[str, Any],
    every_ms: int,
    valid_ms: int,
    as_json: bool,
) -> None:
    clock, told = SystemClock(), ""
    while True:
        began_ns = clock.steady_ns()
        try:
            record = await provider.update(entity, scope, values, valid_for_ms=valid_ms)
            _say(record, as_json)
            told = ""
        except Unavailable as error:
            if error.message != told:
                told = error.message
                stderr().print(f"{told}; trying again", highlight=False, soft_wrap=True)
        took_ms = (clock.steady_ns() - began_ns) / 1e6
        await clock.sleep(max(every_ms - took_ms, 0))


def _say(record: ContextRecord, as_json: bool) -> None:
    if as_json:
        write_json(record_as_json(record))
        return
    until = format_time(record.valid_until)
    line = f"{record.entity} {record.scope}: {values_line(record)}  (kept; valid until {until})"
    stderr().print(line, highlight=False, markup=False, soft_wrap=True)
