"""Protocol v0: the ten messages of Appendix A, and their text form. [CX-2]

Fields stand between vertical bars, the payload is read by its size. Reading is generous where a
foreign client may differ (bars with a space on each side as the appendix prints them, a line end or
a NUL behind, several spellings of the flag), and strict otherwise.

Foreign clients know no escapes, so as few as possible are written. A separator becomes a percent
sign and two digits; a percent sign stays itself unless it would be read as such an escape, then it
becomes `%25`. So every text has one spelling and every spelling one text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import msgspec

from rapport.context.protocol import Question, check_question, check_record
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import InvalidInput, TooLarge
from rapport.core.event import MAX_NAME
from rapport.transport.base import Address

MONITORING, PING, UPDATE, REQUEST, RESPONSE, ACK, NACK, LEAVING, JOINING, PING_RESPONSE = range(10)
OPERATIONS = {
    MONITORING: "StartNeighborsMonitoring",
    PING: "Ping",
    UPDATE: "Context Update/Advertisement",
    REQUEST: "Context Request",
    LEAVING: "BrokerLeaving",
    JOINING: "BrokerJoining",
}
"""Operations of a broker, as ACK and NACK name them: the list of types in the appendix."""
UNKNOWN_OPERATION = "Unknown"
BROKER = "Ctx_Broker"
"""The word in a ping response."""


class V0StartMonitoring(msgspec.Struct, frozen=True):
    """0, controller to broker: monitor your neighbours."""

    sent: int


class V0Ping(msgspec.Struct, frozen=True):
    """1, any sender to a broker: requests a ping response."""

    sent: int


class V0Update(msgspec.Struct, frozen=True):
    """2, provider to broker: an update. Both kinds add or replace."""

    sent: int
    record: ContextRecord
    advertises: bool = False


class V0Request(msgspec.Struct, frozen=True):
    """3, consumer to broker without a path, broker to broker with one: the addresses that it came
    through, the consumer's first, without the sender's.
    """

    sent: int
    question: Question
    path: tuple[Address, ...] = ()


class V0Response(msgspec.Struct, frozen=True):
    """4, back along the path. `marks` are the places on the path (from 0) behind which an asterisk
    stands: the broker that receives it with that place last keeps a replica.
    """

    sent: int
    record: ContextRecord
    path: tuple[Address, ...] = ()
    marks: tuple[int, ...] = ()


class V0Acknowledgement(msgspec.Struct, frozen=True):
    """5: the operation was received (101) or processed (102)."""

    sent: int
    status: int
    operation: str
    requester: str


class V0Refusal(msgspec.Struct, frozen=True):
    """6: it failed. Between brokers with what is left of the request's path."""

    sent: int
    status: int
    operation: str
    requester: str
    path: tuple[Address, ...] = ()


class V0LeaveMessage(msgspec.Struct, frozen=True):
    """7, controller to broker: leave; with an asterisk broker to neighbour: I leave."""

    sent: int
    is_brokers: bool = False


class V0JoinMessage(msgspec.Struct, frozen=True):
    """8, controller to broker: join these (`HOST` or `HOST:PORT`); with an asterisk broker to
    broker: let us be neighbours.
    """

    sent: int
    brokers: tuple[str, ...] = ()
    is_brokers: bool = False


class V0PingResponse(msgspec.Struct, frozen=True):
    """9: the broker at this host is there."""

    sent: int
    broker: str


V0Message = (
    V0StartMonitoring
    | V0Ping
    | V0Update
    | V0Request
    | V0Response
    | V0Acknowledgement
    | V0Refusal
    | V0LeaveMessage
    | V0JoinMessage
    | V0PingResponse
)


_CODES = {"|": "7C", ";": "3B", "=": "3D"}


def _pair(separators: str) -> tuple[Callable[[str], str], Callable[[str], str]]:
    """Functions that escape and unescape these characters; texts without any of them, which most
    are, cost next to nothing.
    """
    codes = "|".join(_CODES[one] for one in separators)
    to_write = re.compile(f"[{separators}]|%(?=(?:25)*(?:{codes}))")
    to_read = re.compile(f"%(?:({codes})|25(?=(?:25)*(?:{codes})))")
    spellings = {"%": "%25"} | {one: "%" + _CODES[one] for one in separators}
    meanings = {None: "%"} | {_CODES[one]: one for one in separators}

    def escape(text: str) -> str:
        for special in spellings:
            if special in text:
                return to_write.sub(lambda found: spellings[found[0]], text)
        return text

    def unescape(text: str) -> str:
        return to_read.sub(lambda found: meanings[found[1]], text) if "%" in text else text

    return escape, unescape


escape_field, unescape_field = _pair("|")
_escape_name, _unescape_name = _pair("|;=")
_escape_value, _unescape_value = _pair("|;")


def write_payload(values: dict[str, Any]) -> str:
    """`K=V;K=V`: texts as they are, everything else as JSON writes it.

    >>> write_payload({"free": True, "seats": 4, "note": "a|b", "humidity": "50%"})
    'free=true;seats=4;note=a%7Cb;humidity=50%'
    """
    return ";".join(
        f"{_escape_name(name)}={_escape_value(_text(value))}" for name, value in values.items()
    )


def read_payload(payload: str) -> dict[str, str]:
    """The values by name, all of them texts; raises InvalidInput for a part without `=` or name.

    >>> read_payload("free=true;note=a|b;formula=x=y;")
    {'free': 'true', 'note': 'a|b', 'formula': 'x=y'}
    """
    values: dict[str, str] = {}
    for part in payload.split(";"):
        name, equals, value = part.partition("=")
        if name and equals:
            values[_unescape_name(name)] = _unescape_value(value)
        elif part:
            raise InvalidInput(
                f"the payload has a part that is not name=value: {part[:40]!r}",
                code="context.bad_v0_message",
                hint="a payload is written K=V;K=V",
            )
    return values


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


MAX_DATAGRAM = 65_507
"""The largest UDP datagram over IPv4; v0 has no fragments."""
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
        return UNKNOWN_OPERATION
    return OPERATIONS.get(int(number))


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
        _refuse(f"its payload does not have the {size} bytes that it declares")
    fields = [part.decode() for part in parts[1:before]]
    return fields, rest[:size].decode(), behind[len(bar) :].decode()


def _read_monitoring(datagram: bytes, bar: bytes) -> V0StartMonitoring:
    return V0StartMonitoring(_number(_fields(datagram, bar, 1, 1)[0]))


def _read_ping(datagram: bytes, bar: bytes) -> V0Ping:
    return V0Ping(_number(_fields(datagram, bar, 1, 1)[0]))


def _read_update(datagram: bytes, bar: bytes) -> V0Update:
    fields, payload, behind = _until_payload(datagram, bar, 10)
    advertises = _ADVERTISES.get(fields[2][:1].upper())
    if advertises is None or behind:
        _refuse("its flag is neither A nor U" if advertises is None else "more follows its payload")
    return V0Update(_number(fields[0]), _record(fields[3:], payload), advertises)


def _read_request(datagram: bytes, bar: bytes) -> V0Request:
    fields = _fields(datagram, bar, 4, 4 + 2 * MAX_PAIRS)
    path, marks = _path(fields[4:])
    if marks:
        _refuse("a request has no asterisks")
    kind, name, scope = map(unescape_field, fields[1:4])
    question = Question(EntityRef(kind, name), scope)
    check_question(question)
    return V0Request(_number(fields[0]), question, path)


def _read_response(datagram: bytes, bar: bytes) -> V0Response:
    fields, payload, behind = _until_payload(datagram, bar, 9)
    path, marks = _path(behind.split(bar.decode()) if behind else ())
    if len(path) > MAX_PAIRS:
        _refuse(f"its path has more than {MAX_PAIRS} pairs")
    return V0Response(_number(fields[0]), _record(fields[2:], payload), path, marks)


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


def _read_ack(datagram: bytes, bar: bytes) -> V0Acknowledgement:
    sent, status, operation, requester, _ = _read_outcome(datagram, bar, "ACK", 0)
    return V0Acknowledgement(sent, status, operation, requester)


def _read_nack(datagram: bytes, bar: bytes) -> V0Refusal:
    sent, status, operation, requester, rest = _read_outcome(datagram, bar, "NACK", MAX_PAIRS)
    path, marks = _path(rest)
    if marks:
        _refuse("a refusal has no asterisks")
    return V0Refusal(sent, status, operation, requester, path)


def _read_leaving(datagram: bytes, bar: bytes) -> V0LeaveMessage:
    fields = _fields(datagram, bar, 1, 2)
    if len(fields) == 2 and not _is_marked(fields):
        _refuse("behind its time only an asterisk may stand")
    return V0LeaveMessage(_number(fields[0]), _is_marked(fields))


def _read_joining(datagram: bytes, bar: bytes) -> V0JoinMessage:
    sent, *named = _fields(datagram, bar, 2, 2 + MAX_PAIRS)
    is_brokers = _is_marked(named)
    brokers = tuple(named[:-1] if is_brokers else named)
    if any(not 0 < len(name) <= MAX_NAME or "*" in name for name in brokers):
        _refuse("it names a broker that is none")
    return V0JoinMessage(_number(sent), brokers, is_brokers)


def _read_ping_response(datagram: bytes, bar: bytes) -> V0PingResponse:
    sent, word, broker = _fields(datagram, bar, 3, 3)
    if word != BROKER:
        _refuse(f"it does not say {BROKER}")
    return V0PingResponse(_number(sent), unescape_field(broker))


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


def write(message: V0Message) -> bytes:
    """The message as a datagram; raises InvalidInput, TooLarge when it does not fit in one."""
    try:
        datagram = "|".join(_WRITERS[type(message)](message)).encode()
    except UnicodeEncodeError:
        raise InvalidInput("a text is no Unicode", code="context.bad_v0_message") from None
    if len(datagram) > MAX_DATAGRAM:
        raise TooLarge(
            f"a v0 message of {len(datagram)} bytes does not fit in a datagram",
            code="context.too_large_for_v0",
            hint=f"v0 has no fragments: at most {MAX_DATAGRAM} bytes; v1 carries more",
        )
    return datagram


def _pairs(path: Sequence[Address], marks: Sequence[int] = ()) -> list[str]:
    fields: list[str] = []
    for place, (host, port) in enumerate(path):
        fields += [host, str(port)]
        if place in marks:
            fields.append("*")
    return fields


def _write_record(record: ContextRecord) -> tuple[str, list[str]]:
    """The size of the payload, and the fields from the provider to it."""
    payload = write_payload(record.values)
    texts = (record.provider, record.entity.type, record.entity.id, record.scope)
    times = (str(record.valid_from), str(record.valid_until))
    return str(len(payload.encode())), [*map(escape_field, texts), *times, payload]


def _write_update(message: V0Update) -> list[str]:
    size, fields = _write_record(message.record)
    return ["2", str(message.sent), size, "A" if message.advertises else "U", *fields]


def _write_request(message: V0Request) -> list[str]:
    entity, scope = message.question.entity, message.question.scope
    texts = map(escape_field, (entity.type, entity.id, scope))
    return ["3", str(message.sent), *texts, *_pairs(message.path)]


def _write_response(message: V0Response) -> list[str]:
    size, fields = _write_record(message.record)
    return ["4", str(message.sent), size, *fields, *_pairs(message.path, message.marks)]


def _write_outcome(kind: str, word: str, message: V0Acknowledgement | V0Refusal) -> list[str]:
    operation, requester = map(escape_field, (message.operation, message.requester))
    texts = (f"Status:{message.status}", f"Operation {operation}", f"Requested by {requester}")
    return [kind, str(message.sent), word, *texts]


def _write_nack(message: V0Refusal) -> list[str]:
    return [*_write_outcome("6", "NACK", message), *_pairs(message.path)]


def _write_leaving(message: V0LeaveMessage) -> list[str]:
    return ["7", str(message.sent), *(["*"] if message.is_brokers else [])]


def _write_joining(message: V0JoinMessage) -> list[str]:
    return ["8", str(message.sent), *message.brokers, *(["*"] if message.is_brokers else [])]


_WRITERS: dict[type, Callable[..., list[str]]] = {
    V0StartMonitoring: lambda message: ["0", str(message.sent)],
    V0Ping: lambda message: ["1", str(message.sent)],
    V0Update: _write_update,
    V0Request: _write_request,
    V0Response: _write_response,
    V0Acknowledgement: lambda message: _write_outcome("5", "ACK", message),
    V0Refusal: _write_nack,
    V0LeaveMessage: _write_leaving,
    V0JoinMessage: _write_joining,
    V0PingResponse: lambda message: [
        "9",
        str(message.sent),
        BROKER,
        escape_field(message.broker),
    ],
}
