"""The functions of XPath 1.0 and its conversions between kinds of values. [PO-2]"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from rapport.tables.xpath.nodes import Attribute, Node, local_name, string_of
from rapport.tables.xpath.tokens import XPathFault

Value = list[Node] | str | float | bool

_NUMBER = re.compile(r"[ \t\r\n]*-?(\d+(\.\d*)?|\.\d+)[ \t\r\n]*\Z", re.ASCII)
_SPACES = re.compile(r"[ \t\r\n]+")


def to_text(value: Value) -> str:
    """As `string()` does."""
    if isinstance(value, list):
        return string_of(value[0]) if value else ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else _number_text(value)


def to_number(value: Value) -> float:
    """As `number()` does; NaN for what is none."""
    if isinstance(value, (bool, float)):
        return float(value)
    text = to_text(value)
    return float(text) if _NUMBER.match(text) else math.nan


def to_boolean(value: Value) -> bool:
    """As `boolean()` does."""
    if isinstance(value, float):
        return bool(value) and not math.isnan(value)
    return bool(value)


def call(name: str, given: Sequence[Value], node: Node, position: int, size: int) -> Value:
    """What a function of the standard gives at a node; its arguments are counted already."""
    if name == "position":
        return float(position)
    if name == "last":
        return float(size)
    if name in ("count", "sum"):
        return _count_or_sum(name, given[0])
    if name in ("name", "local-name"):
        return _name(given[0] if given else [node])
    if name in ("string", "number", "string-length", "normalize-space") and not given:
        given = [[node]]
    return _PLAIN[name](*given)


def _count_or_sum(name: str, given: Value) -> float:
    if not isinstance(given, list):
        raise XPathFault(f"{name}() takes a path")
    return float(len(given)) if name == "count" else sum(map(_number_at, given), 0.0)


def _number_at(node: Node) -> float:
    return to_number(string_of(node))


def _name(given: Value) -> str:
    """Prefixes are not kept, so both functions give the local name."""
    if not isinstance(given, list):
        raise XPathFault("name() takes a path")
    first: Any = given[0] if given else None
    if isinstance(first, Attribute):
        return local_name(first.name)
    return local_name(getattr(first, "tag", ""))


def _number_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return str(int(value)) if value == int(value) else repr(value)


def _substring(text: Value, start: Value, length: Value | None = None) -> str:
    """Characters at the rounded places, counted from 1; NaN chooses none."""
    first = _round(to_number(start))
    end = math.inf if length is None else first + _round(to_number(length))
    return "".join(c for at, c in enumerate(to_text(text), start=1) if first <= at < end)


def _translate(text: Value, old: Value, new: Value) -> str:
    kept, given = to_text(new), to_text(old)
    table: dict[int, str | None] = {}
    for at, character in enumerate(given):
        table.setdefault(ord(character), kept[at] if at < len(kept) else None)
    return to_text(text).translate(table)


def _round(value: float) -> float:
    return value if math.isnan(value) or math.isinf(value) else float(math.floor(value + 0.5))


def _whole(rounded: Callable[[float], int]) -> Callable[[Value], float]:
    def of(value: Value) -> float:
        number = to_number(value)
        return number if math.isnan(number) or math.isinf(number) else float(rounded(number))

    return of


def _before(text: Value, mark: Value) -> str:
    head, found, _rest = _parted(text, mark)
    return head if found else ""


def _after(text: Value, mark: Value) -> str:
    return _parted(text, mark)[2]


def _parted(text: Value, mark: Value) -> tuple[str, bool, str]:
    whole, sought = to_text(text), to_text(mark)
    at = whole.find(sought)
    return (whole[:at], True, whole[at + len(sought) :]) if at >= 0 else (whole, False, "")


_PLAIN: dict[str, Callable[..., Value]] = {
    "string": to_text,
    "number": to_number,
    "boolean": to_boolean,
    "not": lambda value: not to_boolean(value),
    "true": lambda: True,
    "false": lambda: False,
    "concat": lambda *parts: "".join(map(to_text, parts)),
    "starts-with": lambda text, head: to_text(text).startswith(to_text(head)),
    "contains": lambda text, part: to_text(part) in to_text(text),
    "substring-before": _before,
    "substring-after": _after,
    "substring": _substring,
    "string-length": lambda text: float(len(to_text(text))),
    "normalize-space": lambda text: _SPACES.sub(" ", to_text(text)).strip(" "),
    "translate": _translate,
    "floor": _whole(math.floor),
    "ceiling": _whole(math.ceil),
    "round": lambda value: _round(to_number(value)),
}
