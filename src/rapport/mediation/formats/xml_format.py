"""XML: each repeated element is a document, attributes are `@name`, all values stay text. [ME-13]

```xml
<feed><observation station="A801"><temperature unit="Cel">21.5</temperature></observation></feed>
```
with `path = "feed/observation"` is `{"@station": "A801", "temperature": {"@unit": "Cel", "#text":
"21.5"}}`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from rapport.core.codec import DATA_ENCODING
from rapport.core.event import Event
from rapport.core.xml import MAX_XML_PARTS, XmlError, XmlNode, parse_xml
from rapport.mediation.formats.base import (
    Document,
    bad_option,
    check_count,
    numbered_documents,
    octets_of,
    parsed_object,
    read_options,
    text_of,
)
from rapport.mediation.rejections import RejectedValue
from rapport.units.quantities import DecimalMark

TEXT = "#text"
"""Name of an element's own text if it has attributes or children too."""
_NIL = "{http://www.w3.org/2001/XMLSchema-instance}nil"


class XmlOptions(msgspec.Struct, frozen=True):
    path: str = ""
    """Local names from the document element to the repeated one, `*` for any: `feed/entry`.
    Empty: the document element is the only document.
    """
    above: bool = False
    """Whether attributes of the enclosing elements belong to a document; its own take
    precedence.
    """
    decimal: DecimalMark = "point"
    """The decimal mark for the interpretation; values stay text."""


class XmlFormat:
    """Namespaces are ignored, since prefixes are arbitrary."""

    name = "xml"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = read_options(XmlOptions, self.name, options)
        self._path = tuple(self._options.path.split("/")) if self._options.path else ()
        if "" in self._path:
            raise bad_option(self.name, "the path has an empty step", 'such as "feed/entry"')

    def read(self, event: Event, memory: dict[str, Any]) -> list[Document]:
        ready = parsed_object(event)
        if ready is not None:
            return [Document(ready)]
        # Octets keep the declared encoding of the document; texts are decoded already.
        is_octets = DATA_ENCODING in event.headers
        return self.documents(octets_of(event) if is_octets else text_of(event))

    def documents(self, data: bytes | str) -> list[Document]:
        """The documents of an XML text; raises Rejected."""
        try:
            root = parse_xml(data)
        except XmlError as error:
            raise RejectedValue(error.code, error.message, error.hint) from None
        found = list(self._found(root))
        if not found:
            raise RejectedValue(
                "format.no_elements",
                f"nothing stands at {self._options.path!r}",
                f"the document's element is <{root.name}>",
            )
        return numbered_documents(found)

    def _found(self, root: XmlNode) -> Iterator[dict[str, Any]]:
        level: list[tuple[XmlNode, dict[str, str]]] = [(root, {})]
        for depth, step in enumerate(self._path):
            if depth:
                level = [
                    (child, around)
                    for node, above in level
                    for around in (self._with_attributes(above, node),)
                    for child in node.children
                ]
            level = [(node, above) for node, above in level if step in ("*", node.name)]
        check_count(len(level))
        self._check_repeated(sum(len(above) for _node, above in level))
        for node, above in level:
            value = _value(node)
            plain = value if isinstance(value, dict) else {TEXT: value}
            yield {**above, **plain} if self._options.above else plain

    def _with_attributes(self, above: dict[str, str], node: XmlNode) -> dict[str, str]:
        """The attributes that children inherit, in one shared table."""
        return {**above, **_attributes(node)} if self._options.above else above

    def _check_repeated(self, values: int) -> None:
        if values > MAX_XML_PARTS:
            raise RejectedValue(
                "xml.too_large",
                f"the attributes above make over {MAX_XML_PARTS:,} values in all documents",
                "send the elements in several events, or leave out above = true",
            )


def _attributes(node: XmlNode) -> dict[str, str]:
    return {
        f"@{name.rpartition('}')[2]}": text
        for name, text in node.attributes.items()
        if name != _NIL
    }


def _value(node: XmlNode) -> Any:
    """The trimmed text of an element without attributes and children; else an object."""
    if node.attributes.get(_NIL) in ("true", "1"):
        return None
    children, text = node.children, node.text.strip()
    value: dict[str, Any] = dict(_attributes(node))
    if not children and not value:
        return text
    repeated: set[str] = set()
    for child in children:
        found = _value(child)
        if child.name in repeated:
            value[child.name].append(found)
        elif child.name in value:
            value[child.name] = [value[child.name], found]
            repeated.add(child.name)
        else:
            value[child.name] = found
    if text:
        value[TEXT] = text
    return value
