"""Datagrams of v0 to messages, after Appendix A: fields between vertical bars, the payload by its
size. [CX-2]

Generous where a stranger's client may differ (bars with a space on each side as the appendix prints
them, a line end or a NUL behind, several spellings of the flag), strict otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from rapport.context.codec import check_question, check_record
from rapport.context.messages import Question
from rapport.context.v0 import messages as m
from rapport.context.v0.messages import V0Message
from rapport.context.v0.payload import read_payload, unescape_field
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import InvalidInput
from rapport.core.event import MAX_NAME
from rapport.transport.base import Address

MAX_DATAGRAM = 65_507
"""What UDP over IPv4 carries; v0 has no fragments."""
MAX_PAIRS = 512
_ADVERTISES = {"A": True, "1": True, "U": False, "0": False}
"""By the first character of the flag. The appendix names no values; both kinds do the same."""
_END = b"\0\r\n"
_MAX_DIGITS = 19


def read(datagram: bytes) -> V0Message:
    """The message in a datagram; raises InvalidInput (`context.bad_v0_message`), nothing else."""
    if len(datagram) > MAX_DATAGRAM:
        _refuse(f"it has {len(datagram)} bytes")
    bar = b" | " if datagram[1:4] == b" | " else b"|"
    reader = _READERS.get(datagram[:1])
    if reader is None or not datagram[1:].startswith(bar):
        _refuse("it has no type from 0 to 9")
    try:
        return reader(datagram, bar)
    except UnicodeDecodeError:
        _refuse("a text is not UTF-8")
    except InvalidInput as error:
        raise InvalidInput(error.message, code="context.bad_v0_message", hint=error.hint) from None


def operation_of(datagram: bytes) -> str | None:
    """What a datagram that could not be read wanted, as a NACK names it; none for what is itself
    an answer, which is never answered.
    """
    kind, bar, _ = datagram[:4].partition(b"|")
    number = kind.strip()
    if not (bar and number.isdigit() and len(number) == 1):
        return m.UNKNOWN_OPERATION
    return m.OPERATIONS.get(int(number))


def _refuse(why: str) -> NoReturn:
    raise InvalidInput(
        f"not a v0 message: {why}",
        code="context.bad_v0_message",
        hint="fields are separated by |, as docs/reference/context-protocol.md shows",
    )


def _fields(datagram: bytes, bar: bytes, at_least: int, at_most: int) -> list[str]:
    """The fields behind the type; empty ones count."""
    fields = datagram.rstrip(_END).decode().split(bar.decode())[1:]
    if not at_least <= len(fields) <= at_most:
        _refuse(f"it has {len(fields) + 1} fields")
    return fields


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        _refuse(f"{text[:40]!r} is not a whole number")
    return int(text)


def _is_marked(fields: Sequence[str]) -> bool:
    return fields[-1] == "*"


def _path(fields: Sequence[str]) -> tuple[tuple[Address, ...], tuple[int, ...]]:
    """Pairs of host and port, and behind which of them an asterisk stands."""
    path: list[Address] = []
    marks: list[int] = []
    at = 0
    while at < len(fields):
        if fields[at] == "*" and path and marks[-1:] != [len(path) - 1]:
            marks.append(len(path) - 1)
            at += 1
            continue
        path.append(_address(fields[at : at + 2]))
        at += 2
    return tuple(path), tuple(marks)


def _address(pair: Sequence[str]) -> Address:
    if len(pair) != 2 or not 0 < len(pair[0]) <= MAX_NAME or not 0 < _number(pair[1]) <= 65_535:
        _refuse("its path is not made of hosts and ports")
    return pair[0], int(pair[1])


def _record(fields: Sequence[str], payload: str) -> ContextRecord:
    provider, kind, name, scope = map(unescape_field, fields[:4])
    valid_from, valid_until = map(_number, fields[4:6])
    entity = EntityRef(kind, name)
    record = ContextRecord(
        provider, entity, scope, valid_from, valid_until, dict(read_payload(payload))
    )
    check_record(record)
    return record


def _until_payload(datagram: bytes, bar: bytes, before: int) -> tuple[list[str], str, str]:
    """The fields before the payload, the payload, and what stands behind it."""
    parts = datagram.split(bar, before)
    if len(parts) <= before:
        _refuse("it ends before its payload")
    size, rest = _number(parts[2].decode()), parts[before]
    behind = rest[size:].rstrip(_END)
    if size > len(rest) or not (behind == b"" or behind.startswith(bar)):
        _refuse(f"its payload does not have the {size} bytes that it says")
    fields = [part.decode() for part in parts[1:before]]
    return fields, rest[:size].decode(), behind[len(bar) :].decode()


def _read_monitoring(datagram: bytes, bar: bytes) -> m.StartMonitoring:
    return m.StartMonitoring(_number(_fields(datagram, bar, 1, 1)[0]))


def _read_ping(datagram: bytes, bar: bytes) -> m.Ping:
    return m.Ping(_number(_fields(datagram, bar, 1, 1)[0]))


def _read_update(datagram: bytes, bar: bytes) -> m.Update:
    fields, payload, behind = _until_payload(datagram, bar, 10)
    advertises = _ADVERTISES.get(fields[2][:1].upper())
    if advertises is None or behind:
        _refuse("its flag is neither A nor U" if advertises is None else "more follows its payload")
    return m.Update(_number(fields[0]), _record(fields[3:], payload), advertises)


def _read_request(datagram: bytes, bar: bytes) -> m.Request:
    fields = _fields(datagram, bar, 4, 4 + 2 * MAX_PAIRS)
    path, marks = _path(fields[4:])
    if marks:
        _refuse("a request has no asterisks")
    kind, name, scope = map(unescape_field, fields[1:4])
    question = Question(EntityRef(kind, name), scope)
    check_question(question)
    return m.Request(_number(fields[0]), question, path)


def _read_response(datagram: bytes, bar: bytes) -> m.Response:
    fields, payload, behind = _until_payload(datagram, bar, 9)
    path, marks = _path(behind.split(bar.decode()) if behind else ())
    if len(path) > MAX_PAIRS:
        _refuse(f"its path has more than {MAX_PAIRS} pairs")
    return m.Response(_number(fields[0]), _record(fields[2:], payload), path, marks)


def _read_outcome(
    datagram: bytes, bar: bytes, word: str, most_pairs: int
) -> tuple[int, int, str, str, list[str]]:
    sent, said, status, operation, requester, *rest = _fields(datagram, bar, 5, 5 + 2 * most_pairs)
    wanted = (word, "Status:", "Operation ", "Requested by ")
    if not all(map(str.startswith, (said, status, operation, requester), wanted)) or said != word:
        _refuse(f"it is no {word}")
    return (
        _number(sent),
        _number(status.removeprefix(wanted[1])),
        unescape_field(operation.removeprefix(wanted[2])),
        unescape_field(requester.removeprefix(wanted[3])),
        rest,
    )


def _read_ack(datagram: bytes, bar: bytes) -> m.Acknowledgement:
    sent, status, operation, requester, _ = _read_outcome(datagram, bar, "ACK", 0)
    return m.Acknowledgement(sent, status, operation, requester)


def _read_nack(datagram: bytes, bar: bytes) -> m.Refusal:
    sent, status, operation, requester, rest = _read_outcome(datagram, bar, "NACK", MAX_PAIRS)
    path, marks = _path(rest)
    if marks:
        _refuse("a refusal has no asterisks")
    return m.Refusal(sent, status, operation, requester, path)


def _read_leaving(datagram: bytes, bar: bytes) -> m.Leaving:
    fields = _fields(datagram, bar, 1, 2)
    if len(fields) == 2 and not _is_marked(fields):
        _refuse("behind its time only an asterisk may stand")
    return m.Leaving(_number(fields[0]), _is_marked(fields))


def _read_joining(datagram: bytes, bar: bytes) -> m.Joining:
    sent, *named = _fields(datagram, bar, 2, 2 + MAX_PAIRS)
    is_brokers = _is_marked(named)
    brokers = tuple(named[:-1] if is_brokers else named)
    if any(not 0 < len(name) <= MAX_NAME or "*" in name for name in brokers):
        _refuse("it names a broker that is none")
    return m.Joining(_number(sent), brokers, is_brokers)


def _read_ping_response(datagram: bytes, bar: bytes) -> m.PingResponse:
    sent, word, broker = _fields(datagram, bar, 3, 3)
    if word != m.BROKER:
        _refuse(f"it does not say {m.BROKER}")
    return m.PingResponse(_number(sent), unescape_field(broker))


_READERS: dict[bytes, Callable[[bytes, bytes], V0Message]] = {
    b"0": _read_monitoring,
    b"1": _read_ping,
    b"2": _read_update,
    b"3": _read_request,
    b"4": _read_response,
    b"5": _read_ack,
    b"6": _read_nack,
    b"7": _read_leaving,
    b"8": _read_joining,
    b"9": _read_ping_response,
}
