"""Values and places of the elements of the XML form. [ME-10]"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rapport.core.xml import XmlNode, XmlReader, XmlVisitor, read_xml


def in_order(node: XmlNode) -> Iterator[XmlNode]:
    """In the order in which elements begin."""
    waiting = [node]
    while waiting:
        here = waiting.pop()
        yield here
        waiting += reversed(here.children)


def element_places(raw: bytes) -> list[tuple[int, int]]:
    """Where each element begins, as `parse_xml` reads the document."""
    visitor = _PlaceVisitor()
    read_xml(raw, visitor)
    return visitor.places


class _PlaceVisitor(XmlVisitor):
    """Collects where elements begin."""

    def __init__(self) -> None:
        self.places: list[tuple[int, int]] = []

    def start(
        self, name: str, namespace: str, attributes: dict[str, str], reader: XmlReader
    ) -> None:
        """See XmlVisitor."""
        self.places.append(reader.place)


def value_of(node: XmlNode) -> Any:
    """An element as a value: nothing in it means true, `<item>`s a list, `<entry from to>`s pairs,
    anything else a table.
    """
    text = node.text.strip()
    if not node.attributes and not node.children:
        return scalar(text) if text else True
    if node.children and all(child.name == "item" for child in node.children):
        return [value_of(child) for child in node.children]
    found: dict[str, Any] = {name: scalar(value) for name, value in node.attributes.items()}
    for child in node.children:
        if child.name == "entry":
            pair = [scalar(child.attributes.get(key, "")) for key in ("from", "to")]
            found.setdefault("entries", []).append(pair)
        else:
            found[child.name] = value_of(child)
    return found


def scalar(text: str) -> Any:
    """A number, true, false, null or a text in double quotes as JSON has them; else the text."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return text
    return text if isinstance(value, (dict, list)) else value


def split(text: str) -> list[str]:
    """Names between commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def function_name(written: str) -> str:
    """`package.module.function` as `package.module:function`."""
    if ":" in written or "." not in written:
        return written
    module, _, function = written.rpartition(".")
    return f"{module}:{function}"
