"""The data of many readings read as columns, when all are written the way our own encoder writes
them. [PO-2, PO-7]

`{"key":"5","value":[1.5,2]}`: no spaces, no escapes, the key first. Then the commas, or the quotes,
of all readings together tell where everything stands. Each constant part is compared, so nothing
else can be taken for a reading, and none reaches into its neighbour. Whatever is written otherwise
is left to the decoder in `readings.py`, which gives the same values.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.event import MAX_NAME
from rapport.core.event_columns import (
    Offsets,
    all_equal,
    column_bytes,
    column_offsets,
    slice_columns,
)
from rapport.core.schema import PARTS, AttributeType

Octets = npt.NDArray[np.uint8]
Columns = tuple[pa.Array, list[pa.Array]]
"""Keys, and the parts of the values."""

_BEGIN, _MIDDLE, _END = b'{"key":"', b'","value":[', b"]}"
_TEXT_MIDDLE, _TEXT_END = b'","value":["', b'"]}'
_QUOTES, _TEXT_QUOTES, _KEY_QUOTE, _TEXT_QUOTE = 6, 8, 3, 7
"""How many there are in a reading, and which of them end the key and the text."""
_QUOTE, _COMMA, _ESCAPE, _MINUS, _DOT = (ord(sign) for sign in '",\\-.')
_ZERO = ord("0")
_IN_NUMBERS = b"0123456789.-+eE"


_REPEATED = 2**14


@lru_cache(maxsize=64)
def _many_of(text: str) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), _REPEATED)


def repeated(text: str, count: int) -> pa.Array:
    """A column of one text; of the usual size it is part of one made before."""
    if count > _REPEATED or len(text) > MAX_NAME:
        return pa.repeat(pa.scalar(text, pa.string()), count)
    return _many_of(text)[:count]


class _Spread(NamedTuple):
    """The data of all readings one after the other, and where each begins and ends."""

    buffer: pa.Buffer
    octets: Octets
    begins: Offsets
    ends: Offsets


def columns_of_data(data: pa.Array, kind: AttributeType) -> Columns | None:
    """Keys and parts of the readings in a column of octets without nulls; None when one of them is
    not of the usual form, or not a reading.
    """
    spread = _spread(data)
    if spread is None:
        return None
    if kind == "text":
        return _text_columns(spread)
    tokens = _tokens(spread, len(PARTS[kind]))
    if tokens is None:
        return None
    keys, values = tokens
    read = _truths(values) if kind == "boolean" else _numbers(values)
    if read is None:
        return None
    count = len(keys)
    return keys, [read[first : first + count] for first in range(0, len(read), count)]


def _spread(data: pa.Array) -> _Spread | None:
    """None when some character is not to be taken as it stands, or something is too short."""
    edges = column_offsets(data).astype(np.int64)
    begins, ends = edges[:-1], edges[1:]
    if not len(data) or int((ends - begins).min()) < len(_BEGIN + _MIDDLE + _END):
        return None
    octets = column_bytes(data)
    if int(octets.min()) < 0x20 or (octets == _ESCAPE).any():
        return None
    if int(octets.max()) >= 0x80 and not _is_text(octets):
        return None
    return _Spread(data.buffers()[2], octets, begins, ends)


def _is_text(octets: Octets) -> bool:
    """Whether it is UTF-8. Each reading begins and ends with a plain character, so what holds for
    all together holds for each.
    """
    try:
        octets.tobytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def _places_of(spread: _Spread, sign: int, each: int) -> Offsets | None:
    """Where a sign stands, a row for each reading; None unless it is in all of them so many times
    on the whole. Whose they are is for the caller to see.
    """
    places = np.flatnonzero(spread.octets == sign)
    if len(places) != each * len(spread.begins):
        return None
    places += spread.begins[0]
    return places.reshape(-1, each)


def _tokens(spread: _Spread, count: int) -> tuple[pa.Array, pa.Array] | None:
    """Keys, and the text of each part of a value that is not a text: the first of all readings,
    then the second. With every constant part in its place, a quote more would be one in a key, and
    a comma more one in a key or a value.
    """
    commas = _places_of(spread, _COMMA, count)
    if commas is None or np.count_nonzero(spread.octets == _QUOTE) != _QUOTES * len(commas):
        return None
    first = commas[:, 0]
    if not _is_framed(spread, first - 1, commas[:, -1] + 1, _MIDDLE, _END):
        return None
    places = [spread.begins + len(_BEGIN), first - 1, first - 1 + len(_MIDDLE)]
    for number in range(1, count):
        places += [commas[:, number], commas[:, number] + 1]
    places.append(spread.ends - len(_END))
    keys, values = slice_columns(spread.buffer, places, pa.string(), (1, count))
    return keys, values


def _text_columns(spread: _Spread) -> Columns | None:
    quotes = _places_of(spread, _QUOTE, _TEXT_QUOTES)
    if quotes is None:
        return None
    middle, last = quotes[:, _KEY_QUOTE], quotes[:, _TEXT_QUOTE]
    if not _is_framed(spread, middle, last, _TEXT_MIDDLE, _TEXT_END):
        return None
    if (last != spread.ends - len(_TEXT_END)).any():
        return None
    begins = spread.begins + len(_BEGIN)
    places = [begins, middle, middle + len(_TEXT_MIDDLE), last]
    keys, values = slice_columns(spread.buffer, places, pa.string(), (1, 1))
    return keys, [values]


def _is_framed(
    spread: _Spread, middle: Offsets, last: Offsets, between: bytes, after: bytes
) -> bool:
    """Whether every reading begins, goes on at `middle` behind a key, and ends as it should, with
    the place `last` between middle and end.
    """
    begins, ends, buffer = spread.begins, spread.ends, spread.buffer
    in_order = (begins + len(_BEGIN) < middle) & (last <= ends - len(after))
    in_order &= middle + len(between) <= ends - len(after)
    return (
        bool(in_order.all())
        and all_equal(buffer, begins, _BEGIN)
        and all_equal(buffer, middle, between)
        and all_equal(buffer, ends - len(after), after)
    )


# --- values ---------------------------------------------------------------------------------------


def _truths(tokens: pa.Array) -> pa.Array | None:
    true = pc.equal(tokens, "true")
    known = pc.or_(true, pc.equal(tokens, "false"))
    return true if pc.all(known).as_py() else None


def _numbers(tokens: pa.Array) -> pa.Array | None:
    """The numbers that the tokens are; None when JSON would not call one of them a number, or when
    it is too large for one. Arrow reads more forms than JSON has, but rounds in the same way.
    """
    octets, edges = column_bytes(tokens), column_offsets(tokens).astype(np.int64)
    edges -= edges[0]
    if octets.tobytes().translate(None, _IN_NUMBERS):
        return None
    begins, ends = edges[:-1], edges[1:]
    if (begins == ends).any() or not _are_json(octets, begins, ends):
        return None
    try:
        numbers = pc.cast(tokens, pa.float64())
    except pa.ArrowInvalid:
        return None
    values = numbers.to_numpy()
    # An integer has no sign when it is zero: -0 is 0, and -0.0 is not.
    plain = (values == 0) & (octets[begins] == _MINUS) & (ends - begins == 2)
    return None if plain.any() or not np.isfinite(values).all() else numbers


def _are_json(octets: Octets, begins: Offsets, ends: Offsets) -> bool:
    """Whether each begins with a digit (behind a minus), has no digit behind a leading zero, ends
    with a digit, and has one behind its point.
    """
    is_digit = octets - np.uint8(_ZERO) < 10
    last = ends - 1
    if not is_digit[last].all():
        return False
    # What ends with a digit has something behind a minus and behind a point.
    first = begins + (octets[begins] == _MINUS)
    zeros = first[(octets[first] == _ZERO) & (first < last)]
    points = np.flatnonzero(octets == _DOT)
    return bool(
        is_digit[first].all() and not is_digit[zeros + 1].any() and is_digit[points + 1].all()
    )
