"""Run-time functions of compiled conditions: payloads, kinds, arithmetic, LIKE, XML paths. [CH-4]

Null is None; a value that cannot be calculated is null, never an exception.

XML payloads are addressed by local names, without a schema: `data.order.item[1].price.@currency` is
the root element, its second `item` (the first without a number), within it the first `price`, of
that an attribute. Namespaces are ignored. A value is the text of an element without surrounding
space; it takes the kind of the other side of the comparison: compared with a number it is a number,
if it reads like one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from rapport.channel.query.tree import Step
from rapport.core.errors import InvalidInput
from rapport.core.xml import XmlNode, parse_xml

NUMBERS = frozenset((int, float))
_DECODE = msgspec.json.Decoder().decode

Test = Callable[[str], bool]
DATA_TYPE = "datacontenttype"
_XML_TYPE = re.compile(r"\s*(application|text)/([^;\s]+\+)?xml\s*(;|\Z)", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\Z")
_WHOLE = re.compile(r"[+-]?[0-9]{1,300}\Z")
_TRUTHS = {"true": True, "false": False}
XmlSteps = tuple[tuple[str, int], ...]


def decode_payload(data: bytes) -> Any:
    """The payload; null when it is not JSON."""
    try:
        return _DECODE(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def member(value: Any, name: str) -> Any:
    """A member of an object; null of everything else."""
    return value.get(name) if type(value) is dict else None


def element(value: Any, index: int) -> Any:
    """An element of a list; null of everything else."""
    return value[index] if type(value) is list and index < len(value) else None


def calculate(sign: str, left: Any, right: Any) -> int | float | None:
    """Two numbers calculated; null when one is none or there is no finite result."""
    if type(left) not in NUMBERS or type(right) not in NUMBERS:
        return None
    try:
        result = _OPERATIONS[sign](left, right)
    except (ZeroDivisionError, OverflowError):
        return None
    return result if type(result) is int or math.isfinite(result) else None


def negative(value: Any) -> int | float | None:
    """Minus a number; null when it is none."""
    return -value if type(value) in NUMBERS else None


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left / right,
}
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda left, right: left == right,
    "<>": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}


def compare(operator: str, left: Any, right: Any) -> bool | None:
    """True, false or unknown (None): two values of unknown kind."""
    if left is None or right is None:
        return None
    same = type(left) is type(right) or (type(left) in NUMBERS and type(right) in NUMBERS)
    if not same or type(left) in (dict, list):
        return False
    if type(left) is bool and operator not in ("=", "<>"):
        return False
    return _COMPARISONS[operator](left, right)


class _Piece:
    """The part between two `%` of a pattern: characters, and None for each `_`."""

    def __init__(self, characters: Sequence[str | None]) -> None:
        self.length = len(characters)
        self._before = next((at for at, one in enumerate(characters) if one), self.length)
        core = characters[self._before :]
        while core and core[-1] is None:
            core = core[:-1]
        self._after = self.length - self._before - len(core)
        self._text = "".join(one or "" for one in core)
        self.is_mixed = len(self._text) < len(core)
        self.core = len(core)
        written = "".join("." if one is None else re.escape(one) for one in core)
        self._expression = re.compile(written, re.DOTALL) if self.is_mixed else None

    def stands_at(self, text: str, place: int) -> bool:
        """Whether the piece matches at an offset; the text is long enough."""
        place += self._before
        if self._expression is None:
            return text.startswith(self._text, place)
        return self._expression.match(text, place) is not None

    def end_in(self, text: str, place: int, end: int) -> int:
        """The end of the first occurrence between two offsets; -1 for none.

        Without `_` between letters the cost is that of `str.find`, linear in the text.
        """
        place, end = place + self._before, end - self._after
        if place > end:
            return -1
        if self._expression is None:
            found = text.find(self._text, place, end)
        else:
            match = self._expression.search(text, place, end)
            found = match.start() if match else -1
        return -1 if found < 0 else found + self.core + self._after


def like_test(pattern: str, escape: str) -> Test:
    """A function that tests texts against a LIKE pattern.

    The pattern is cut at its `%`; each piece is searched for as early as possible, so nothing is
    tried twice. The cost is linear in the text; only for pieces with `_` between letters it is
    multiplied by their length, which `mixed_characters` counts.
    """
    pieces = _pieces(pattern, escape)
    first, middle, last = pieces[0], pieces[1:-1], pieces[-1]
    length = sum(piece.length for piece in pieces)

    def fits(text: str) -> bool:
        if len(pieces) == 1:
            return len(text) == length and first.stands_at(text, 0)
        if len(text) < length or not first.stands_at(text, 0):
            return False
        place, end = first.length, len(text) - last.length
        if not last.stands_at(text, end):
            return False
        for piece in middle:
            place = piece.end_in(text, place, end)
            if place < 0:
                return False
        return True

    return fits


def mixed_characters(pattern: str, escape: str) -> int:
    """Characters of those pieces of a LIKE pattern that are searched for with `_`
    between letters.

    >>> mixed_characters("%a_b%", ""), mixed_characters("%__ab__%", ""), mixed_characters("a_b", "")
    (3, 0, 0)
    """
    return sum(piece.core for piece in _pieces(pattern, escape)[1:-1] if piece.is_mixed)


def _pieces(pattern: str, escape: str) -> list[_Piece]:
    pieces: list[list[str | None]] = [[]]
    escaped = False
    for sign in pattern:
        if not escaped and escape and sign == escape:
            escaped = True
            continue
        if not escaped and sign == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if sign == "_" and not escaped else sign)
        escaped = False
    return [_Piece(piece) for piece in pieces]


def is_xml(headers: Mapping[str, str]) -> bool:
    """Whether the headers call the payload XML: application/xml, text/xml, something+xml."""
    content_type = headers.get(DATA_TYPE)
    return content_type is not None and _is_xml_type(content_type)


@lru_cache(maxsize=128)
def _is_xml_type(content_type: str) -> bool:
    return _XML_TYPE.match(content_type) is not None


def xml_text(data: bytes) -> str | None:
    """The document text; null when the payload is no text."""
    text = decode_payload(data)
    return text if type(text) is str else None


def xml_document(text: str | None) -> XmlNode | None:
    """Its element; null when it is not accepted."""
    if text is None:
        return None
    try:
        return parse_xml(text)
    except InvalidInput:
        return None


def xml_steps(path: tuple[Step, ...]) -> XmlSteps | None:
    """The path below `data` as names with their numbers; None when it leads nowhere in XML."""
    steps: list[tuple[str, int]] = []
    is_numbered = True
    for step in path:
        if isinstance(step, str):
            steps.append((step, 0))
            is_numbered = step.startswith("@")
        elif is_numbered:
            return None
        else:
            steps[-1], is_numbered = (steps[-1][0], step), True
    return tuple(steps)


def xml_value(document: XmlNode | None, steps: XmlSteps | None) -> str | None:
    """The text at a path; null when there is none."""
    if document is None or not steps or steps[0] != (document.name, 0):
        return None
    node = document
    for number, (name, place) in enumerate(steps[1:], start=2):
        if name.startswith("@"):
            return _attribute(node, name[1:]) if number == len(steps) else None
        child = _child(node, name, place)
        if child is None:
            return None
        node = child
    return "".join(_texts(node)).strip()


def _child(node: XmlNode, name: str, place: int) -> XmlNode | None:
    for part in node.content:
        if isinstance(part, XmlNode) and part.name == name:
            if place == 0:
                return part
            place -= 1
    return None


def _attribute(node: XmlNode, name: str) -> str | None:
    if name in node.attributes:
        return node.attributes[name]
    for full_name, value in node.attributes.items():
        if full_name.rpartition("}")[2] == name:
            return value
    return None


def _texts(node: XmlNode) -> list[str]:
    found: list[str] = []
    for part in node.content:
        found += [part] if isinstance(part, str) else _texts(part)
    return found


def as_number(value: str | None) -> Any:
    """A number if it reads like one; otherwise unchanged, and so of another kind."""
    if value is None or not _NUMBER.match(value.strip()):
        return value
    number = int(value) if _WHOLE.match(value.strip()) else float(value)
    return value if number in (float("inf"), float("-inf")) else number


def as_boolean(value: str | None) -> Any:
    """A truth value if it reads like one; otherwise unchanged."""
    return value if value is None else _TRUTHS.get(value.strip(), value)


def as_text(value: str | None) -> Any:
    return value


def compare_two(operator: str, left: str | None, right: str | None) -> bool | None:
    """Compares two XML values: as numbers when both read like numbers, otherwise as texts."""
    numbers = as_number(left), as_number(right)
    if not any(isinstance(number, str) for number in numbers):
        return compare(operator, *numbers)
    return compare(operator, left, right)
