"""Values of fields in XML: read with a good error, written so that they come back. [CH-12]"""

from __future__ import annotations

import base64
import binascii

from rapport.channel.xmessages.names import SCHEMA_INSTANCE, XMESSAGES
from rapport.channel.xmessages.writing import escaped, is_carried, quoted
from rapport.core.errors import InvalidInput
from rapport.core.xml import XmlNode

_NIL = f"{{{SCHEMA_INSTANCE}}}nil"


def fields_of(node: XmlNode, known: tuple[str, ...], *, many: str = "") -> dict[str, XmlNode]:
    """The fields of a structure by name, without those that are nil.

    Raises InvalidInput for a field that is unknown, that stands twice (unless it is `many`), or for
    text between fields.
    """
    found: dict[str, XmlNode] = {}
    for child in node.children:
        if child.namespace != XMESSAGES or child.name not in known:
            raise bad_field(
                f"{node.name} has no field {child.name!r} of namespace {child.namespace!r}",
                f"fields of {XMESSAGES}: {', '.join(known)}",
            )
        if child.name in found and child.name != many:
            raise bad_field(f"{node.name} has the field {child.name!r} twice")
        if child.attributes.get(_NIL, "false").strip() not in ("true", "1"):
            found[child.name] = child
    if node.text.strip():
        raise bad_field(f"{node.name} has text between its fields")
    return found


def text_of(node: XmlNode | None) -> str:
    """The text of a field; empty when it is absent. Raises InvalidInput when it holds elements."""
    if node is None:
        return ""
    if node.children:
        raise bad_field(
            f"{node.name} holds an element where a text is wanted",
            "escape XML (&lt;...) with contentType application/xml, or send it as a message",
        )
    text = node.text
    encoding = node.attributes.get("encoding", "")
    if encoding not in ("", "base64"):
        raise bad_field(f"{node.name} has the unknown encoding {encoding[:40]!r}", "use base64")
    return from_base64(text, node.name) if encoding else text


def number_of(node: XmlNode | None, default: int) -> int:
    """The whole number of a field; the default when it is absent or empty."""
    text = text_of(node).strip()
    if node is None or not text:
        return default
    try:
        if len(text) > 20:
            raise ValueError("too long")
        return int(text)
    except ValueError:
        raise bad_field(f"{node.name} cannot be {text[:40]!r}", "a whole number") from None


def flag_of(node: XmlNode | None) -> bool:
    """The truth value of a field; False when it is absent or empty."""
    text = text_of(node).strip()
    if text in ("true", "1"):
        return True
    if text in ("false", "0", ""):
        return False
    assert node is not None
    raise bad_field(f"{node.name} cannot be {text[:40]!r}", "true or false")


def from_base64(text: str, name: str) -> str:
    """The text whose UTF-8 bytes stand there in base64."""
    try:
        raw = base64.b64decode("".join(text.split()).encode("ascii"), validate=True)
        return raw.decode()
    except (binascii.Error, UnicodeError):
        raise bad_field(f"{name} is not base64 of UTF-8") from None


def to_base64(text: str) -> str:
    """Base64 of the UTF-8 bytes of a text."""
    return base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


def write_field(name: str, text: str, attributes: str = "") -> str:
    """An element of our schema with a text; in base64 when XML cannot carry it."""
    if is_carried(text):
        return f"<x:{name}{attributes}>{escaped(text)}</x:{name}>"
    return f'<x:{name}{attributes} encoding="base64">{to_base64(text)}</x:{name}>'


def write_header(name: str, value: str) -> str:
    """One header; name and value in base64 when XML cannot carry one of them."""
    if is_carried(name) and is_carried(value):
        return f"<x:header name={quoted(name)}>{escaped(value)}</x:header>"
    key = quoted(to_base64(name))
    return f'<x:header name={key} encoding="base64">{to_base64(value)}</x:header>'


def read_header(node: XmlNode) -> tuple[str, str]:
    """Name and value of a header."""
    value, name = text_of(node), node.attributes.get("name")
    if name is None:
        raise bad_field("a header has no name", '<header name="room">5</header>')
    if node.attributes.get("encoding"):
        name = from_base64(name, "the name of a header")
    return name, value


def bad_field(message: str, hint: str = "") -> InvalidInput:
    """The error for a field that cannot be read."""
    return InvalidInput(message, code="soap.bad_field", hint=hint)
