"""`rapport context`: provide, request and follow the present state of entities, and their history.
[CX-3, CX-8]

Commands that look after brokers and keys are in `context_brokers.py` and `context_keys.py`, which
are loaded when used.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import App, Parameter

from rapport.cli.arguments import (
    JsonOption,
    SiteOption,
    check_count,
    moment,
    run_until_stopped,
    site_directory,
)
from rapport.cli.hints import wrong_use
from rapport.cli.local_site import read_channels
from rapport.cli.output import print_note, visible, write_json, write_table
from rapport.context.clients.consumer import ContextConsumer, LocatedRecord
from rapport.context.clients.provider import ContextProvider
from rapport.context.persistence import PastUpdate
from rapport.context.persistence import history as past_of
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import InvalidInput, Unavailable, UnknownName
from rapport.core.times import format_time, parse_duration
from rapport.kernel.clock import SystemClock
from rapport.kernel.signing_keys import SigningKey
from rapport.transport.addresses import format_address, parse_address
from rapport.transport.base import Address
from rapport.transport.keys import DatagramKeys

if TYPE_CHECKING:
    from rapport.channel.backends.readonly import ReadOnlyChannels

app = App(name="context", help="Present state of things: provide, request; run and join brokers.")
for _name, _path, _help in (
    ("broker", "context_brokers:broker", "Run a broker, alone or in a network."),
    ("join", "context_brokers:join", "Have a broker join others."),
    ("leave", "context_brokers:leave", "Have a broker leave the network."),
    ("monitor", "context_brokers:monitor", "Have a broker watch its neighbours."),
    ("status", "context_brokers:status", "Show what a broker holds and knows."),
    ("keys", "context_keys:app", "Make, list and retire keys."),
):
    app.command(f"rapport.cli.{_path}", name=_name, help=_help)

BrokersOption = Annotated[
    list[str] | None,
    Parameter(
        name="--broker",
        env_var="RAPPORT_CONTEXT_BROKER",
        negative="",
        help="A broker's address; repeated, the best is chosen. [default: 127.0.0.1:7411]",
    ),
]
KeysOption = Annotated[
    Path | None,
    Parameter(
        name="--keys",
        env_var="RAPPORT_CONTEXT_KEYS",
        help="The file of keys; needed off this machine.",
    ),
]

_DEFAULT_BROKER = "127.0.0.1:7411"


def brokers_of(given: Sequence[str] | None) -> list[Address]:
    """The addresses; several may stand in one text, separated by commas."""
    texts = [text for one in given or [_DEFAULT_BROKER] for text in one.split(",") if text.strip()]
    return [parse_address(text) for text in texts]


def keys_of(file: Path | None) -> DatagramKeys | None:
    """The keys of a file; none without one."""
    from rapport.transport.keys import load_keys

    return load_keys(file) if file is not None else None


def values_of(pairs: Sequence[str]) -> dict[str, Any]:
    """Values as they are typed: `open=true n=3 name=Ana`; what is JSON is read as such.

    >>> values_of(["open=true", "n=3", "name=Ana", "at=[1,2]", "code='007'"])
    {'open': True, 'n': 3, 'name': 'Ana', 'at': [1, 2], 'code': '007'}
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not (name and equals):
            raise wrong_use(
                f"{pair[:80]!r} is no value",
                "write NAME=VALUE, for example open=true or temperature=21.5",
            )
        values[name] = _value(text)
    return values


def _value(text: str) -> Any:
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1]
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return text


def shown_value(value: Any) -> str:
    """A value as it could be typed."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def record_as_json(record: ContextRecord) -> dict[str, Any]:
    """A record for machines; times in ms UTC."""
    return {
        "entity": str(record.entity),
        "scope": record.scope,
        "provider": record.provider,
        "valid_from": record.valid_from,
        "valid_until": record.valid_until,
        "values": record.values,
    }


def show_record(record: ContextRecord, found: str) -> None:
    """A record for people: its values on stdout, the rest on stderr."""
    rows = [(name, shown_value(value)) for name, value in record.values.items()]
    write_table(f"{record.entity} {record.scope}", ("name", "value"), rows)
    until = format_time(record.valid_until)
    print_note(f"provided by {record.provider}, valid until {until}{found}")


def values_line(record: ContextRecord) -> str:
    return " ".join(f"{name}={shown_value(value)}" for name, value in record.values.items())


EntityArgument = Annotated[str, Parameter(help="The entity: TYPE/ID, such as room/r3.")]
ScopeArgument = Annotated[str, Parameter(help="The group of values, such as status.")]


@app.command
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
    """Show the present record of an entity; a broker without it searches the network.

    rapport context request room/r3 status
    """
    subject, within_ms = EntityRef.parse(entity), _positive(within)

    async def locate() -> LocatedRecord:
        async with await ContextConsumer.open(brokers_of(broker), keys=keys_of(keys)) as consumer:
            return await consumer.request(subject, scope, within_ms=within_ms, fresh=fresh)

    located = asyncio.run(locate())
    if json:
        write_json({**record_as_json(located.record), **_way(located)})
    else:
        hops = f"{located.hops} hop{'' if located.hops == 1 else 's'} away"
        show_record(located.record, f", found {hops} in {located.took_ms:.1f} ms")


@app.command
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
    """Print the present record and each change of it, until Ctrl-C.

    rapport context subscribe room/r3 status
    """
    check_count(count, "records")
    subject, every_ms = EntityRef.parse(entity), _positive(every) if every else 0

    async def follow() -> None:
        left = count
        async with await ContextConsumer.open(brokers_of(broker), keys=keys_of(keys)) as consumer:
            records = consumer.subscribe(subject, scope, every_ms=every_ms)
            async with aclosing(records):
                async for record in records:
                    _print_record(record, json)
                    left = None if left is None else left - 1
                    if left == 0:
                        return

    run_until_stopped(follow())


def _print_record(record: ContextRecord, as_json: bool) -> None:
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
        raise wrong_use(f"{text!r} is no time to wait", "1ms or more, such as 500ms, 2s or 1min")
    return duration_ms


_LEAST_PERIOD_MS = 10


@app.command
def provide(
    entity: EntityArgument,
    scope: ScopeArgument,
    values: Annotated[list[str], Parameter(help="NAME=VALUE, one or more.")],
    *,
    valid: Annotated[str, Parameter(help="How long it is true: 30s, 10min.")],
    every: Annotated[str | None, Parameter(help="Provide it again and again, this often.")] = None,
    start: Annotated[
        str, Parameter(name="--from", help="When it begins to be true; else now.")
    ] = "",
    provider: Annotated[str, Parameter(help="Its name; else the owner of the key.")] = "",
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
    """Provide a record to a broker, which answers requests with it while it is valid.

    rapport context provide room/r3 status open=true --valid 30s --every 10s
    """
    subject, valid_ms = EntityRef.parse(entity), parse_duration(valid)
    every_ms = parse_duration(every) if every else 0
    if every and every_ms < _LEAST_PERIOD_MS:
        raise wrong_use(
            f"{every!r} is too often",
            f"at most --every {_LEAST_PERIOD_MS}ms; without it, it is provided once",
        )
    if every and start:
        raise wrong_use(
            "a record that is provided again and again begins each time",
            "leave out --from, or provide it once, without --every",
        )
    if every_ms > valid_ms:
        print_note(f"it will be unknown in between: provided every {every}, valid for {valid}")
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
                _print_kept(record, json)
                return
            await _provide_repeatedly(one, subject, scope, given, every_ms, valid_ms, json)

    run_until_stopped(work())


async def _provide_repeatedly(
    provider: ContextProvider,
    entity: EntityRef,
    scope: str,
    values: dict[str, Any],
    every_ms: int,
    valid_ms: int,
    as_json: bool,
) -> None:
    clock, shown = SystemClock(), ""
    while True:
        began_ns = clock.steady_ns()
        try:
            record = await provider.update(entity, scope, values, valid_for_ms=valid_ms)
            _print_kept(record, as_json)
            shown = ""
        except Unavailable as error:
            if error.message != shown:
                shown = error.message
                print_note(f"{shown}; trying again")
        took_ms = (clock.steady_ns() - began_ns) / 1e6
        await clock.sleep(max(every_ms - took_ms, 0))


def _print_kept(record: ContextRecord, as_json: bool) -> None:
    if as_json:
        write_json(record_as_json(record))
        return
    until = format_time(record.valid_until)
    print_note(
        f"{record.entity} {record.scope}: {values_line(record)}  (stored; valid until {until})"
    )


_HISTORY_COLUMNS = ("provided", "scope", "provider", "valid from", "valid until", "values")


@app.command
def history(
    entity: EntityArgument,
    *,
    scope: Annotated[str, Parameter(help="Only this group of values.")] = "",
    since: Annotated[str, Parameter(help="A time, or 2h for two hours ago.")] = "",
    until: Annotated[str, Parameter(help="A time, or how long ago.")] = "",
    limit: Annotated[int, Parameter(help="The last so many.")] = 1_000,
    directory: Annotated[
        Path | None, Parameter(help="The directory of `rapport context broker`.")
    ] = None,
    site: SiteOption = None,
    json: JsonOption = False,
) -> None:
    """Show the records of an entity, oldest first: from a site's log, or a broker's directory.

    rapport context history room/r3 --since 2h
    """
    subject = EntityRef.parse(entity)
    begin, end = moment(since), moment(until)

    async def read(channels: ReadOnlyChannels) -> list[PastUpdate]:
        found = past_of(channels, subject, scope, since=begin, until=end)
        return await _last(found, limit)

    if directory is not None:
        rows = asyncio.run(_of_directory(directory, read))
    else:
        rows = read_channels(site_directory(site), read)
    if json:
        for one in rows:
            write_json({"told": one.told, "identity": one.identity, **record_as_json(one.record)})
        return
    write_table(f"history of {entity}", _HISTORY_COLUMNS, [_history_row(one) for one in rows])


async def _of_directory(directory: Path, read: Any) -> list[PastUpdate]:
    from rapport.channel.backends.readonly import open_readonly

    try:
        channels = open_readonly(directory, SystemClock())
    except UnknownName:
        raise InvalidInput(
            f"there is no log in {directory}",
            code="channel.no_log",
            hint="name the directory that `rapport context broker --directory` was given",
        ) from None
    try:
        found: list[PastUpdate] = await read(channels)
        return found
    finally:
        await channels.close()


async def _last(found: AsyncIterator[PastUpdate], limit: int) -> list[PastUpdate]:
    kept: deque[PastUpdate] = deque(maxlen=max(limit, 1))
    async for one in found:
        kept.append(one)
    return list(kept)


def _history_row(one: PastUpdate) -> tuple[str, ...]:
    record = one.record
    return (
        format_time(one.told),
        record.scope,
        record.provider,
        format_time(record.valid_from),
        format_time(record.valid_until),
        values_line(record),
    )
