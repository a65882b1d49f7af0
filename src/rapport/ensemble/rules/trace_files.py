"""Traces as files: JSON lines, first the system, then one event a line. [EN-3]"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from rapport.core.errors import InvalidInput
from rapport.ensemble.trace import System, Trace, TraceEvent

Read = TypeVar("Read")

MAX_LINE: Final = 4 * 1024 * 1024
_encoder = msgspec.json.Encoder()
_system = msgspec.json.Decoder(System)
_event = msgspec.json.Decoder(TraceEvent)


def write_trace(trace: Trace, path: Path) -> None:
    """Writes a trace, about a million events in two seconds; a file that is there is replaced."""
    with path.open("wb") as file:
        file.write(_encoder.encode(trace.system) + b"\n")
        file.writelines(_encoder.encode(event) + b"\n" for event in trace.events)


def read_trace(path: Path) -> Trace:
    """The trace in a file; raises InvalidInput with the line that cannot be read."""
    try:
        with path.open("rb") as file:
            return read_lines(file)
    except OSError as error:
        raise InvalidInput(
            f"the trace {path} cannot be read: {error.strerror}", code="ensemble.bad_trace"
        ) from None


def read_lines(lines: Iterable[bytes]) -> Trace:
    """The trace in the lines of a file."""
    numbered = enumerate(lines, 1)
    first = next(numbered, None)
    if first is None:
        raise _bad(1, "there is nothing in it")
    system = _read(_system, *first)
    return Trace(system, list(_events(numbered)))


def _events(numbered: Iterator[tuple[int, bytes]]) -> Iterator[TraceEvent]:
    last_ms = float("-inf")
    for number, line in numbered:
        event = _read(_event, number, line)
        if event.time_ms < last_ms:
            raise _bad(number, f"{event.time_ms:g} ms comes after {last_ms:g} ms")
        last_ms = event.time_ms
        yield event


def _read(decoder: msgspec.json.Decoder[Read], number: int, line: bytes) -> Read:
    if len(line) > MAX_LINE:
        raise _bad(number, f"it has {len(line)} bytes, at most {MAX_LINE} are read")
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise _bad(number, str(error)) from None


def _bad(number: int, why: str) -> InvalidInput:
    return InvalidInput(
        f"line {number} is not of a trace: {why}",
        code="ensemble.bad_trace",
        hint="traces are JSON lines, the system first and then events in order of time",
    )
