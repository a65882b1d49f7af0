"""Fields of XML payloads by a path of local names, no schema needed. [CH-4]

`data.order.item[1].price.@currency`: the root element, its second `item` (the first without a
number), within it the first `price`, of that an attribute. Namespaces are not looked at. A value is
the text within an element, without the space around it; what kind it is, the other side of the
comparison tells: beside a number it is a number, if it reads like one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from rapport.channel.query.tree import Step
from rapport.channel.query.values import compare, decode_payload
from rapport.core.errors import InvalidInput
from rapport.core.xml import XmlNode, parse_xml

DATA_TYPE = "datacontenttype"
_XML_TYPE = re.compile(r"\s*(application|text)/([^;\s]+\+)?xml\s*(;|\Z)", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\Z")
_WHOLE = re.compile(r"[+-]?[0-9]{1,300}\Z")
_TRUTHS = {"true": True, "false": False}

XmlSteps = tuple[tuple[str, int], ...]


def is_xml(headers: Mapping[str, str]) -> bool:
    """Whether the headers call the payload XML: application/xml, text/xml, something+xml."""
    content_type = headers.get(DATA_TYPE)
    return content_type is not None and _is_xml_type(content_type)


@lru_cache(maxsize=128)
def _is_xml_type(content_type: str) -> bool:
    return _XML_TYPE.match(content_type) is not None


def xml_text(data: bytes) -> str | None:
    """The document as it came; null when the payload is no text."""
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
    """A number if it reads like one; otherwise as it is, and so of another kind."""
    if value is None or not _NUMBER.match(value.strip()):
        return value
    number = int(value) if _WHOLE.match(value.strip()) else float(value)
    return value if number in (float("inf"), float("-inf")) else number


def as_boolean(value: str | None) -> Any:
    """A truth value if it reads like one; otherwise as it is."""
    return value if value is None else _TRUTHS.get(value.strip(), value)


def as_text(value: str | None) -> Any:
    """As it is."""
    return value


def compare_two(operator: str, left: str | None, right: str | None) -> bool | None:
    """Two values of XML: as numbers when both read like numbers, otherwise as texts."""
    numbers = as_number(left), as_number(right)
    if not any(isinstance(number, str) for number in numbers):
        return compare(operator, *numbers)
    return compare(operator, left, right)
