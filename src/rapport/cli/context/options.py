"""What the commands of `rapport context` share: brokers, keys, values, how records are shown.
[CX-3, UX-3]
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from cyclopts import Parameter

from rapport.cli.output import stderr, write_table
from rapport.core.context_record import ContextRecord
from rapport.core.errors import InvalidInput
from rapport.core.times import format_time
from rapport.transport.addresses import parse_address
from rapport.transport.base import Address
from rapport.transport.keys import DatagramKeys

T = TypeVar("T")

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
JsonOption = Annotated[bool, Parameter(name="--json", negative="", help="As JSON.")]

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
            raise InvalidInput(
                f"{pair[:80]!r} is no value",
                code="cli.wrong_use",
                hint="write NAME=VALUE, for example open=true or temperature=21.5",
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


def show_record(record: ContextRecord, told: str) -> None:
    """A record for people: its values on stdout, the rest on stderr."""
    rows = [(name, shown_value(value)) for name, value in record.values.items()]
    write_table(f"{record.entity} {record.scope}", ("name", "value"), rows)
    until = format_time(record.valid_until)
    line = f"told by {record.provider}, valid until {until}{told}"
    stderr().print(line, highlight=False, markup=False, soft_wrap=True)


def values_line(record: ContextRecord) -> str:
    """The values in one line."""
    return " ".join(f"{name}={shown_value(value)}" for name, value in record.values.items())


def run_until_stopped(work: Coroutine[Any, Any, T]) -> T | None:
    """Runs a command that lasts; Ctrl-C and SIGTERM end it in order, and are no failure."""

    async def run() -> T | None:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            return None

    import uvloop

    return uvloop.run(run())
