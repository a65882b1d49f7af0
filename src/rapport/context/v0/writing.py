"""Messages of v0 to datagrams, after Appendix A. [CX-2]"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rapport.context.v0 import messages as m
from rapport.context.v0.messages import V0Message
from rapport.context.v0.payload import escape_field, write_payload
from rapport.context.v0.reading import MAX_DATAGRAM
from rapport.core.context_record import ContextRecord
from rapport.core.errors import InvalidInput, TooLarge
from rapport.transport.base import Address


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


def _write_update(message: m.Update) -> list[str]:
    size, fields = _write_record(message.record)
    return ["2", str(message.sent), size, "A" if message.advertises else "U", *fields]


def _write_request(message: m.Request) -> list[str]:
    entity, scope = message.question.entity, message.question.scope
    texts = map(escape_field, (entity.type, entity.id, scope))
    return ["3", str(message.sent), *texts, *_pairs(message.path)]


def _write_response(message: m.Response) -> list[str]:
    size, fields = _write_record(message.record)
    return ["4", str(message.sent), size, *fields, *_pairs(message.path, message.marks)]


def _write_outcome(kind: str, word: str, message: m.Acknowledgement | m.Refusal) -> list[str]:
    operation, requester = map(escape_field, (message.operation, message.requester))
    said = (f"Status:{message.status}", f"Operation {operation}", f"Requested by {requester}")
    return [kind, str(message.sent), word, *said]


def _write_nack(message: m.Refusal) -> list[str]:
    return [*_write_outcome("6", "NACK", message), *_pairs(message.path)]


def _write_leaving(message: m.Leaving) -> list[str]:
    return ["7", str(message.sent), *(["*"] if message.is_brokers else [])]


def _write_joining(message: m.Joining) -> list[str]:
    return ["8", str(message.sent), *message.brokers, *(["*"] if message.is_brokers else [])]


_WRITERS: dict[type, Callable[..., list[str]]] = {
    m.StartMonitoring: lambda message: ["0", str(message.sent)],
    m.Ping: lambda message: ["1", str(message.sent)],
    m.Update: _write_update,
    m.Request: _write_request,
    m.Response: _write_response,
    m.Acknowledgement: lambda message: _write_outcome("5", "ACK", message),
    m.Refusal: _write_nack,
    m.Leaving: _write_leaving,
    m.Joining: _write_joining,
    m.PingResponse: lambda message: [
        "9",
        str(message.sent),
        m.BROKER,
        escape_field(message.broker),
    ],
}
