"""Push subscriptions: allowed addresses, records, the delivery state machine, signatures,
subscribers' WSDL. [CH-2, CH-12, CH-13, CH-15]

A subscriber names an address that the node calls from inside the network; so addresses are checked
against the site's list `[channels] push_to`, empty by default. Delivery is a pure state machine:
time and chance are arguments, `node/push.py` carries out the steps. Order and "at least once"
follow from three rules: the set of a token is sent until the receiver has accepted it; only then
the subscription moves on to the next token, durably; a batch is never stored, its token gives it
again. Bodies are signed by an HMAC with a shared secret. Imports of a WSDL are not read.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Literal
from urllib.parse import SplitResult, urlsplit

import msgspec

from rapport.channel.agents.connection import pause_ms
from rapport.channel.requests.request import Batch
from rapport.channel.xmessages.envelope import HANDLE
from rapport.core.errors import InvalidInput, NotAllowed
from rapport.core.xml import XmlNode, parse_xml
from rapport.store.base import RecordStore, all_records, decode_record

LONGEST_ADDRESS = 2_048
_PORTS = {"http": 80, "https": 443}
TABLE = "pushes"
PushForm = Literal["json", "soap", "soap12"]
"""How batches are written: as our JSON, or as a SOAP call of either version."""
FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 500, 60_000
MOST_REFUSALS = 5
"""Refusals of a batch itself (HTTP 400, 413, 422) before it is dead-lettered."""
_MINUTE_MS = 60_000
PushTrouble = Literal["unreachable", "refused", "gone"]
SIGNATURE = "X-Rapport-Signature"
TIMED_SIGNATURE = "X-Rapport-Timed-Signature"
"""Webhook header beside the signature of the body alone: covers the time as well."""
SENT_AT = "X-Rapport-Time"
"""Header: when a pushed body was sent, in milliseconds; part of the signed text."""
FRESH_MS = 300_000
"""The largest difference between the clocks of sender and receiver, transport included."""
WSDL = "http://schemas.xmlsoap.org/wsdl/"
SOAP_BINDINGS: tuple[tuple[PushForm, str], ...] = (
    ("soap", "http://schemas.xmlsoap.org/wsdl/soap/"),
    ("soap12", "http://schemas.xmlsoap.org/wsdl/soap12/"),
)
LONGEST_WSDL = 256 * 1024


def check_address(address: str, allowed: Sequence[str]) -> None:
    """Raises InvalidInput for no plain http address, NotAllowed for one not on the list."""
    parts = _split(address)
    if parts is None:
        raise InvalidInput(
            f"{address[:200]!r} is no address to push to",
            code="push.bad_address",
            hint="http:// or https://, a host, no user name, no fragment",
        )
    if not any(_covers(entry, parts) for entry in allowed):
        raise NotAllowed(
            f"the site does not let its node push to {parts.scheme}://{parts.netloc}",
            code="push.address_not_allowed",
            hint=f'add push_to = ["{parts.scheme}://{parts.netloc}"] to [channels] of the site',
        )


def is_entry(entry: str) -> bool:
    """Whether a text is a valid entry of the list: scheme and host, perhaps port (`*` = any) and
    path.

    >>> is_entry("http://127.0.0.1:*"), is_entry("https://*.example.org/hooks"), is_entry("*")
    (True, True, False)
    """
    parts = _split(entry.replace(":*", ":1", 1))
    return parts is not None and not parts.query


def _covers(entry: str, address: SplitResult) -> bool:
    any_port = ":*" in entry
    allowed = _split(entry.replace(":*", "", 1))
    if allowed is None or allowed.scheme != address.scheme:
        return False
    return (
        _is_host(allowed.hostname or "", address.hostname or "")
        and (any_port or _port(allowed) == _port(address))
        and _is_below(allowed.path, address.path)
    )


def _is_host(allowed: str, host: str) -> bool:
    if allowed.startswith("*."):
        return host.endswith(allowed[1:]) and len(host) >= len(allowed)
    return host == allowed


def _is_below(allowed: str, path: str) -> bool:
    """Whether a path is the allowed one or below it; never with `..`."""
    base = allowed.rstrip("/")
    return not base or (
        (path == base or path.startswith(f"{base}/")) and ".." not in path and "%" not in path
    )


def _port(parts: SplitResult) -> int:
    return parts.port or _PORTS[parts.scheme]


def _split(address: str) -> SplitResult | None:
    """The parts of an address that we would call; None for any other."""
    if len(address) > LONGEST_ADDRESS or not address.isascii() or not address.isprintable():
        return None
    if any(character in address for character in ' "<>\\^`{|}'):
        return None
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        return None
    is_plain = parts.scheme in _PORTS and parts.hostname and "@" not in parts.netloc
    return parts if is_plain and not parts.fragment and port != 0 else None


class PushSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription that is pushed. New fields have a default.

    All that is needed to go on after a kill: the token names the set that is sent next, and the
    same token always names the same messages.
    """

    session: str
    """Also its id: every token of the session leads to it."""
    channel: str
    identity: str
    address: str
    form: PushForm
    token: str
    """The set to be sent, or the one that was (`sent`)."""
    sent: bool
    """Whether the token's set is finished, so that the set after it is next."""
    until_ms: int
    """When the lease runs out."""
    take: bool = False
    """Messages leave the channel once the receiver has them."""
    batches: int = 0
    messages: int = 0
    """Messages received so far."""


def load_pushes(records: RecordStore) -> list[PushSubscription]:
    """All subscriptions; raises Corrupt when one cannot be read."""
    return [
        decode_record(
            raw, PushSubscription, f"the push subscription {key!r}", code="push.bad_record"
        )
        for key, raw in all_records(records, TABLE)
    ]


def save_push(records: RecordStore, push: PushSubscription) -> None:
    """Durable when it returns."""
    records.put(TABLE, push.session, msgspec.msgpack.encode(push))


def forget_push(records: RecordStore, session: str) -> None:
    """Durable when it returns."""
    records.delete(TABLE, session)


class PushFailure(msgspec.Struct, frozen=True):
    """The receiver has not taken a batch: not now, not this one, or nothing any more."""

    trouble: PushTrouble
    why: str


class PushDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A running subscription. `push` is durable; the rest starts over after a restart."""

    push: PushSubscription
    failures: int = 0
    """In a row."""
    refusals: int = 0
    not_before_ms: int = 0
    trouble: str = ""
    """Why the last attempt failed; empty when it did not."""


class AwaitMessages(msgspec.Struct, frozen=True):
    """Request the set after the token's, waiting for one."""

    token: str
    wait_ms: int


class SendMessages(msgspec.Struct, frozen=True):
    """Fetch the token's messages and send them."""

    token: str


class PausePush(msgspec.Struct, frozen=True):
    """Wait before the next attempt."""

    wait_ms: int


class EndPush(msgspec.Struct, frozen=True):
    """Forget the subscription."""

    why: str


PushStep = AwaitMessages | SendMessages | PausePush | EndPush


def next_step(delivery: PushDelivery, now_ms: int, *, longest_wait_ms: int) -> PushStep:
    push = delivery.push
    left_ms = push.until_ms - now_ms
    if left_ms <= 0:
        return EndPush("its lease ran out")
    pause = delivery.not_before_ms - now_ms
    if 0 < pause <= LONGEST_PAUSE_MS:  # no pause is longer: then the clock was set back
        return PausePush(min(pause, left_ms))
    if push.sent:
        return AwaitMessages(push.token, min(left_ms, longest_wait_ms))
    return SendMessages(push.token)


def after_waiting(delivery: PushDelivery, batch: Batch) -> PushDelivery:
    """The source answered how to go on: there may be a set to send now."""
    if batch.next_token is None:
        return delivery
    return _moved(delivery, token=batch.next_token, sent=False)


def after_empty(delivery: PushDelivery, batch: Batch) -> PushDelivery:
    """The token's set held nothing to send: it was empty, or its messages are gone."""
    if batch.next_token is None:
        return _moved(delivery, token=batch.current_token, sent=True)
    return _moved(delivery, token=batch.next_token, sent=False)


def after_sent(delivery: PushDelivery, batch: Batch) -> PushDelivery:
    """The receiver has the batch (or it was dead-lettered): continue with the next."""
    push = delivery.push
    counted = msgspec.structs.replace(
        push, batches=push.batches + 1, messages=push.messages + len(batch.events)
    )
    moved = after_empty(msgspec.structs.replace(delivery, push=counted), batch)
    return msgspec.structs.replace(moved, failures=0, refusals=0, not_before_ms=0, trouble="")


def after_failure(
    delivery: PushDelivery, failed: PushFailure, now_ms: int, *, chance: float
) -> PushDelivery:
    """The receiver has not taken the batch: again, later each time. `chance` lies in [0, 1)."""
    pause = pause_ms(delivery.failures, FIRST_PAUSE_MS, LONGEST_PAUSE_MS, chance)
    return msgspec.structs.replace(
        delivery,
        failures=delivery.failures + 1,
        refusals=delivery.refusals + 1 if failed.trouble == "refused" else 0,
        not_before_ms=now_ms + pause,
        trouble=failed.why,
    )


def is_refused_for_good(delivery: PushDelivery) -> bool:
    """Whether the batch is to be dead-lettered, so that the next ones get through."""
    return delivery.refusals >= MOST_REFUSALS


def renewed(delivery: PushDelivery, *, until_ms: int, address: str, form: PushForm) -> PushDelivery:
    """The subscriber extended its lease, perhaps at another address; its position stays."""
    push = msgspec.structs.replace(delivery.push, until_ms=until_ms, address=address, form=form)
    return msgspec.structs.replace(delivery, push=push, not_before_ms=0)


def lease_minutes_left(push: PushSubscription, now_ms: int) -> int:
    """Whole minutes of lease that are left, at least one while there is any."""
    return max(-(-(push.until_ms - now_ms) // _MINUTE_MS), 1)


def _moved(delivery: PushDelivery, *, token: str, sent: bool) -> PushDelivery:
    push = msgspec.structs.replace(delivery.push, token=token, sent=sent)
    return msgspec.structs.replace(delivery, push=push)


def signature(secret: str, body: bytes) -> str:
    """The value of the signature header: `sha256=` and the HMAC of the body, in hex."""
    return f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"


def signed_headers(secret: str, body: bytes, now_ms: int) -> dict[str, str]:
    """The headers of a pushed body: the signature covers the time, a full stop, and the body, so
    that a copy cannot be sent again later.
    """
    return {SENT_AT: str(now_ms), SIGNATURE: timed_signature(secret, body, now_ms)}


def timed_signature(secret: str, body: bytes, now_ms: int) -> str:
    """The signature of a body that is sent now: over the time, a full stop, and the body."""
    return signature(secret, _timed(str(now_ms), body))


def is_signed(
    secret: str, sent_at: str, given: str, body: bytes, now_ms: int, *, fresh_ms: int = FRESH_MS
) -> bool:
    """Whether a body was signed recently; `sent_at` and `given` are the two headers."""
    is_time = sent_at.isascii() and sent_at.isdigit() and len(sent_at) <= 18
    if not is_time or abs(now_ms - int(sent_at)) > fresh_ms:
        return False
    right = signature(secret, _timed(sent_at, body))
    return hmac.compare_digest(right.encode(), given.encode("utf-8", "surrogateescape"))


def _timed(sent_at: str, body: bytes) -> bytes:
    return sent_at.encode() + b"." + body


class SubscriberSink(msgspec.Struct, frozen=True):
    address: str
    form: PushForm


def is_document(text: str) -> bool:
    """Whether the field holds the WSDL itself, not its address."""
    return text.lstrip("\ufeff \t\r\n").startswith("<")


def find_sink(document: bytes | str) -> SubscriberSink:
    """The port that takes handleMessages by SOAP.

    Raises InvalidInput when the document is no WSDL or has no such port, XmlError when it is not
    even XML.
    """
    if len(document) > LONGEST_WSDL:
        raise _unusable(f"it is longer than {LONGEST_WSDL} bytes")
    root = parse_xml(document)
    if (root.namespace, root.name) != (WSDL, "definitions"):
        raise _unusable(f"its element is {root.name!r}")
    bindings = {node.attributes.get("name", ""): node for node in _all(root, "binding")}
    ports = [port for service in _all(root, "service") for port in _all(service, "port")]
    sinks = [port for port in ports if _is_sink(bindings.get(_local(port, "binding")))]
    # Bindings in imported documents are not searched; a single port is unambiguous.
    chosen = sinks or (ports if len(ports) == 1 and not bindings else [])
    for form, namespace in SOAP_BINDINGS:
        for port in chosen:
            address = port.child("address", namespace)
            if address is not None:
                return SubscriberSink(address.attributes.get("location", "").strip(), form)
    raise _unusable(f"it has no SOAP port with the operation {HANDLE}")


def _is_sink(binding: XmlNode | None) -> bool:
    if binding is None:
        return False
    return any(one.attributes.get("name") == HANDLE for one in _all(binding, "operation"))


def _all(node: XmlNode, name: str) -> list[XmlNode]:
    return [child for child in node.children if (child.namespace, child.name) == (WSDL, name)]


def _local(node: XmlNode, attribute: str) -> str:
    return node.attributes.get(attribute, "").rpartition(":")[2]


def _unusable(why: str) -> InvalidInput:
    return InvalidInput(
        f"the subscriber's WSDL cannot be used: {why}",
        code="push.bad_wsdl",
        hint="subscriberWSDL is the address or the text of a WSDL 1.1 with an XMessageSink port",
    )
