"""Text inside separators: `K=V;K=V` and the characters that would end a field. [CX-2]

Strangers know no escapes, so as few as possible are made. A separator is written as percent and two
digits; a percent sign stays itself unless what stands there would be read as such an escape, then
it is written `%25`. So every text has one spelling and every spelling one text: what a stranger
sends, `%` and `%41` included, comes out as it went in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput

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
