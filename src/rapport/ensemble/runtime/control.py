"""What is asked of a running node beside gossip: how it is; and which kind of message bytes are.
[EN-10]

The first byte tells: 1 is gossip (`ensemble/codec.py`), 16 membership (`overlay/swim_protocol.py`),
17 control; 18 gossip that was said to all in range, from its own first byte on.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rapport.core.errors import InvalidInput

SWIM: Final = 16
CONTROL: Final = 17
TO_ALL: Final = 18
SWIM_BYTE: Final = bytes([SWIM])
TO_ALL_BYTE: Final = bytes([TO_ALL])
_CONTROL_BYTE: Final = bytes([CONTROL])
_MAX_TEXT = 512 * 1024


class AskStatus(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="S"):
    """How are you? Answered to whoever holds a key; without keys, to this machine."""

    id: int


class StatusAnswer(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="A"):
    """The status as JSON."""

    id: int
    text: str


Control = AskStatus | StatusAnswer

_decoder: msgspec.msgpack.Decoder[Control] = msgspec.msgpack.Decoder(Control)


def encode_control(message: Control) -> bytes:
    """The message as bytes, with its first byte."""
    return _CONTROL_BYTE + msgspec.msgpack.encode(message)


def decode_control(data: bytes) -> Control:
    """What follows the first byte; raises InvalidInput."""
    try:
        if len(data) > _MAX_TEXT:
            raise ValueError(f"{len(data)} bytes")
        return _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"not a control message: {error}", code="ensemble.bad_message") from None
