"""Writing XML: characters escaped so that every reader gets them back as they were. [CH-12]"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from rapport.channel.xmessages.names import SOAP_11, SOAP_12, XMESSAGES, XML
from rapport.core.xml import XmlNode

_UNCARRIED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_IN_TEXT = re.compile("[&<>\r]")
_IN_ATTRIBUTE = re.compile('[&<>"\t\n\r]')
_ENVELOPE = frozenset((SOAP_11, SOAP_12, XMESSAGES))
_ESCAPES = {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
    '"': "&quot;",
    "\t": "&#9;",
    "\n": "&#10;",
    "\r": "&#13;",
}


def is_carried(text: str) -> bool:
    """Whether XML 1.0 has all these characters; control characters, for one, it has not.

    >>> is_carried("é\\n"), is_carried("\\0")
    (True, False)
    """
    return _UNCARRIED.search(text) is None


def escaped(text: str) -> str:
    """A text as content of an element. The caller has asked `is_carried`.

    >>> escaped("a < b")
    'a &lt; b'
    """
    return _IN_TEXT.sub(_escape, text)


def quoted(text: str) -> str:
    """A text as value of an attribute, with its quotes.

    >>> quoted('say "a"')
    '"say &quot;a&quot;"'
    """
    return f'"{_IN_ATTRIBUTE.sub(_escape, text)}"'


def write_node(node: XmlNode) -> str:
    """An element by itself, with the namespaces it needs: what `parse_xml` reads back the same.

    Prefixes stay, for values that are qualified names; only those of the envelope around it go.
    """
    parts: list[str] = []
    around = {"": "", "xml": XML}
    unused = _ENVELOPE - set(_namespaces_in(node))
    around.update((key, bound) for key, bound in node.prefixes.items() if bound in unused)
    _write(node, around, node.prefixes, parts)
    return "".join(parts)


def _write(
    node: XmlNode, outer: Mapping[str, str], declared: Mapping[str, str], parts: list[str]
) -> None:
    """`outer`: all that is in scope around the node; `declared`: what is to be in scope besides."""
    new = sorted(key for key, bound in declared.items() if outer.get(key) != bound)
    scope = {**outer, **declared} if new else outer
    name = _qualified(node.namespace, node.name, scope, bare=True)
    parts.append(f"<{name}{''.join(_declaration(key, scope[key]) for key in new)}")
    parts += (_attribute(key, value, scope) for key, value in node.attributes.items())
    if not node.content:
        parts.append("/>")
        return
    parts.append(">")
    for part in node.content:
        if isinstance(part, str):
            parts.append(escaped(part))
        else:
            own = part.prefixes.declared if part.prefixes is not node.prefixes else {}
            _write(part, scope, own, parts)
    parts.append(f"</{name}>")


def _namespaces_in(node: XmlNode) -> Iterator[str]:
    yield node.namespace
    yield from (name[1:].rpartition("}")[0] for name in node.attributes if name.startswith("{"))
    for child in node.children:
        yield from _namespaces_in(child)


def _qualified(namespace: str, name: str, scope: Mapping[str, str], *, bare: bool) -> str:
    """The name with a prefix that is in force here; `bare` when the default one serves as well."""
    if bare and scope.get("", "") == namespace:
        return name
    return f"{min(key for key, bound in scope.items() if key and bound == namespace)}:{name}"


def _declaration(prefix: str, address: str) -> str:
    return f" xmlns{':' if prefix else ''}{prefix}={quoted(address)}"


def _attribute(name: str, value: str, scope: Mapping[str, str]) -> str:
    if name.startswith("{"):
        namespace, _, local = name[1:].rpartition("}")
        name = _qualified(namespace, local, scope, bare=False)
    return f" {name}={quoted(value)}"


def _escape(found: re.Match[str]) -> str:
    return _ESCAPES[found[0]]
