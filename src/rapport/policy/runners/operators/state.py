"""Snapshots: nested plain values and numpy arrays as msgpack, without pickle. [design 14]"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from rapport.core.errors import Corrupt

_ARRAY = "\0array"
_OBJECTS = "\0objects"


def pack_state(state: Any) -> bytes:
    """The bytes of a state."""
    return msgspec.msgpack.encode(_out(state))


def unpack_state(raw: bytes) -> Any:
    """The state of the bytes; raises Corrupt when they are none."""
    try:
        return _in(msgspec.msgpack.decode(raw, strict=False))
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError, ValueError, KeyError) as error:
        raise Corrupt(f"a snapshot cannot be read: {error}", code="policy.bad_snapshot") from None


def _out(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return {_OBJECTS: _out(value.ravel().tolist()), "shape": list(value.shape)}
        return {_ARRAY: value.tobytes(), "type": value.dtype.str, "shape": list(value.shape)}
    if isinstance(value, dict):
        return {key: _out(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_out(item) for item in value]
    return value


def _in(value: Any) -> Any:
    if isinstance(value, dict):
        if _ARRAY in value:
            kind = np.dtype(value["type"])
            return np.frombuffer(value[_ARRAY], kind).reshape(value["shape"]).copy()
        if _OBJECTS in value:
            found = np.empty(len(value[_OBJECTS]), object)
            for place, item in enumerate(value[_OBJECTS]):  # one by one: an item may be a list
                found[place] = _in(item)
            return found.reshape(value["shape"])
        return {key: _in(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_in(item) for item in value]
    return value
