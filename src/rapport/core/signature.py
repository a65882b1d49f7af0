"""The canonical form of an event that a signature covers, and the result of checking it. [CH-18]

A signature covers the fields of the envelope, the data and the headers that state the event's
origin. It does not cover what transport adds (position, time received, hops, publisher sequence
numbers), so it stays valid across outboxes, links and logs.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rapport.core.codec import DATA_ENCODING, DATA_TYPE
from rapport.core.event import CAUSE, INTERPRETATION, Event

SIGNATURE = "signature"
"""Header: the Ed25519 signature in base64url, without padding."""
SIGNED_BY = "signedby"
"""Header: the fingerprint of the key that signed."""
RAW_SIGNATURE, RAW_SIGNED_BY = "rawsignature", "rawsignedby"
"""Headers of a reading: the signature of its raw event."""
RAW_VERDICT = "rawverdict"
"""Header of a signed reading: the verdict on its raw event."""
SIGNATURE_HEADERS = frozenset((SIGNATURE, SIGNED_BY, RAW_VERDICT))
"""Headers that a reading must not copy from its raw event."""

COVERED_HEADERS = (
    DATA_TYPE,
    DATA_ENCODING,
    CAUSE,
    INTERPRETATION,
    "rawchannel",
    "rawposition",
    RAW_SIGNATURE,
    RAW_SIGNED_BY,
    RAW_VERDICT,
)
_FORM = b"rapport.signature.1"
_JSON_SPACE = b" \t\r\n"

VerdictState = Literal["ok", "unsigned", "unknown_key", "bad"]


class Verdict(msgspec.Struct, frozen=True):
    """The result of checking a signature; `key` is the key name, or the value of `signedby`."""

    state: VerdictState
    key: str = ""
    why: str = ""


UNSIGNED = Verdict("unsigned")


def canonical_form(event: Event) -> bytes:
    """The bytes that are signed: every part is prefixed with its length, so that no two events
    share a form. The header `signedby` is included.
    """
    parts = [_FORM, _text(event.headers.get(SIGNED_BY, ""))]
    parts += map(_text, (event.source, event.id, event.type, event.subject))
    parts += [str(event.time).encode(), event.data]
    for name in COVERED_HEADERS:
        if name in event.headers:
            parts += [_text(name), _text(event.headers[name])]
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def with_signer(event: Event, fingerprint: str) -> Event:
    """The event prepared for signing: with the header `signedby`, and without whitespace around the
    data, which JSON transport would lose.
    """
    headers = {**event.headers, SIGNED_BY: fingerprint}
    headers.pop(SIGNATURE, None)
    data = event.data.strip(_JSON_SPACE)
    return msgspec.structs.replace(event, headers=headers, data=data)


def with_signature(event: Event, signature: str) -> Event:
    return msgspec.structs.replace(event, headers={**event.headers, SIGNATURE: signature})


def without_raw_signature(reading: Event, raw: Event) -> Event:
    """Renames the producer's signature in a reading that copied its raw event's headers, because it
    covers the raw data and not the reading's.
    """
    headers = reading.headers
    if SIGNATURE_HEADERS.isdisjoint(headers):
        return reading
    dropped = SIGNATURE_HEADERS | {RAW_SIGNATURE, RAW_SIGNED_BY}
    kept = {name: value for name, value in headers.items() if name not in dropped}
    if SIGNATURE in raw.headers:
        kept[RAW_SIGNATURE] = raw.headers[SIGNATURE]
        kept[RAW_SIGNED_BY] = raw.headers.get(SIGNED_BY, "")
    return msgspec.structs.replace(reading, headers=kept)


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
