"""Reads declarations in the XML of section 4.3.2 of the paper into the values that TOML would give.
[ME-10]

The paper has `types/type`, `mappings/mapping from to dir`, `rules/rule pattern function` and
`functions/function name class`. Added here: `contexts/context id parent`, since a document has one
root element and a context a name; types described by `attribute` elements; shape steps; `from` and
`to` of functions; declarative functions; `units`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from rapport.core.errors import Problem
from rapport.core.xml import XmlError, XmlNode, XmlReader, XmlVisitor, parse_xml, read_xml
from rapport.kernel.config_fields import suggest
from rapport.kernel.toml import TomlFile, problem_at
from rapport.mediation.declarations.placed_values import (
    FileContent,
    ValuePath,
)


def document_order(node: XmlNode) -> Iterator[XmlNode]:
    waiting = [node]
    while waiting:
        here = waiting.pop()
        yield here
        waiting += reversed(here.children)


def element_positions(raw: bytes) -> list[tuple[int, int]]:
    """The location of each element, in document order."""
    visitor = _PlaceVisitor()
    read_xml(raw, visitor)
    return visitor.places


class _PlaceVisitor(XmlVisitor):
    def __init__(self) -> None:
        self.places: list[tuple[int, int]] = []

    def start(
        self, name: str, namespace: str, attributes: dict[str, str], reader: XmlReader
    ) -> None:
        """See XmlVisitor."""
        self.places.append(reader.place)


def element_value(node: XmlNode) -> Any:
    """An element as a value: empty means true, `<item>` a list, `<entry from to>` pairs,
    anything else a table.
    """
    text = node.text.strip()
    if not node.attributes and not node.children:
        return scalar(text) if text else True
    if node.children and all(child.name == "item" for child in node.children):
        return [element_value(child) for child in node.children]
    found: dict[str, Any] = {name: scalar(value) for name, value in node.attributes.items()}
    for child in node.children:
        if child.name == "entry":
            pair = [scalar(child.attributes.get(key, "")) for key in ("from", "to")]
            found.setdefault("entries", []).append(pair)
        else:
            found[child.name] = element_value(child)
    return found


def scalar(text: str) -> Any:
    """A number, true, false, null or quoted text as in JSON; else the text."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return text
    return text if isinstance(value, (dict, list)) else value


def split_names(text: str) -> list[str]:
    """Names separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def function_name(written: str) -> str:
    """`package.module.function` as `package.module:function`."""
    if ":" in written or "." not in written:
        return written
    module, _, function = written.rpartition(".")
    return f"{module}:{function}"


class XmlElement(msgspec.Struct, frozen=True):
    """The allowed attributes (with their TOML names) and child elements."""

    attributes: Mapping[str, str] = {}
    needed: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    any_child: bool = False
    """Its children are checked by another reader."""


DIRECTIONS = {"incoming": "in", "outgoing": "out"}
"""The paper's words, from the node's point of view."""

ELEMENTS: Mapping[str, XmlElement] = {
    "contexts": XmlElement(children=("context",)),
    "context": XmlElement(
        {"id": "id", "parent": "parent", "about": "about", "format": "format"},
        ("id",),
        ("about", "types", "units", "mappings", "rules", "functions"),
    ),
    "types": XmlElement(children=("type",)),
    "type": XmlElement(
        {"name": "name", "extends": "extends", "kind": "kind"}, ("name",), ("attribute",)
    ),
    "attribute": XmlElement(
        {"name": "name", "type": "type", "unit": "unit", "optional": "optional"}, ("name",)
    ),
    "units": XmlElement(children=("unit",)),
    "unit": XmlElement({"of": "of", "name": "name"}, ("of", "name")),
    "mappings": XmlElement(children=("mapping",)),
    "mapping": XmlElement(
        {"from": "from", "to": "to", "dir": "direction", "each": "each"},
        ("from", "to", "dir"),
        ("rename", "drop", "create", "merge", "split"),
    ),
    "rename": XmlElement({"from": "from", "to": "to"}, ("from", "to")),
    "drop": XmlElement({"name": "name"}, ("name",)),
    "create": XmlElement({"name": "name", "type": "type", "value": "value"}, ("name", "type")),
    "merge": XmlElement({"give": "give", "function": "convert"}, ("give", "function"), ("take",)),
    "split": XmlElement({"take": "take", "function": "convert"}, ("take", "function"), ("give",)),
    "rules": XmlElement(children=("rule",)),
    "rule": XmlElement(
        {"pattern": "match", "function": "convert", "dir": "direction"}, ("pattern", "function")
    ),
    "functions": XmlElement(children=("function",)),
    "function": XmlElement(
        {"name": "name", "class": "call", "from": "from", "to": "to"}, ("name",), any_child=True
    ),
}


_PACKAGED = re.compile(r"\w+(\.\w+)+")


def read_xml_file(name: str, raw: bytes) -> FileContent:
    """Reads the file with every unknown element, or returns why it cannot be read."""
    try:
        root = parse_xml(raw)
    except XmlError as error:
        (problem,) = error.problems_found()
        return FileContent(None, (msgspec.structs.replace(problem, file=name),))
    reader = _XmlReader(name, raw, root)
    values = reader.read(root)
    file = TomlFile(name, reader.text, values, reader.places)
    return FileContent(file, tuple(reader.problems))


class _XmlReader:
    """Converts elements to tables and lists; collects `problems` and locations."""

    def __init__(self, name: str, raw: bytes, root: XmlNode) -> None:
        self._name = name
        self.text = raw.decode("utf-8", "replace")
        self._lines = self.text.splitlines()
        self._where = dict(
            zip((id(node) for node in document_order(root)), element_positions(raw), strict=True)
        )
        self.places: dict[ValuePath, tuple[int, int]] = {}
        self.problems: list[Problem] = []

    def read(self, root: XmlNode) -> dict[str, Any]:
        """`<context>`, or `<contexts>` with several."""
        contexts = (root,) if root.name == "context" else root.children
        found: dict[str, Any] = {}
        if root.name not in ("context", "contexts"):
            self._fault(root, f"<{root.name}> is no declaration", 'begin with <context id="...">')
            return {}
        if root.name == "contexts":
            self._check(root, ELEMENTS["contexts"])
        for node in contexts:
            name = node.attributes.get("id", "")
            if node.name == "context" and not name:
                self._check(node, ELEMENTS["context"])
            elif node.name == "context":
                self._put(found, ("interpretations",), name, node, self._context(node, name))
        return {"interpretations": found}

    def _context(self, node: XmlNode, name: str) -> dict[str, Any]:
        path = ("interpretations", name)
        values: dict[str, Any] = {"types": {}, **self._table(node, path, skip=("id",))}
        for part in node.children:
            below = (*path, _CONTENT[part.name]) if part.name in _CONTENT else path
            if part.name == "about":
                values["about"] = part.text.strip()
            elif part.name == "types":
                self._types(part, values, path)
            elif part.name == "functions":
                values["conversions"] = self._named(part, below, "function")
            elif part.name == "units":
                self._check(part, ELEMENTS["units"])
                values["units"] = {
                    each.attributes.get("of", ""): self._leaf(each, below, "of", "name")
                    for each in self._children(part, "unit")
                }
            elif part.name in ("mappings", "rules"):
                values[part.name] = self._listed(part, below, part.name.removesuffix("s"))
            self.places.setdefault(below, self._place(part))
        return values

    def _types(self, part: XmlNode, values: dict[str, Any], path: ValuePath) -> None:
        """`<type name=...>` describes a type, `<type>package.Class</type>` names a class."""
        described: dict[str, Any] = {}
        classes: list[str] = []
        self._check(part, ELEMENTS["types"])
        for node in self._children(part, "type"):
            if node.text.strip() and not node.attributes:
                self.places[(*path, "classes", f"[{len(classes)}]")] = self._place(node)
                classes.append(node.text.strip())
                continue
            name = node.attributes.get("name", "")
            self._put(described, (*path, "types"), name, node, self._type(node, path, name))
        values["types"] = described
        if classes:
            values["classes"] = classes

    def _type(self, node: XmlNode, path: ValuePath, name: str) -> dict[str, Any]:
        below = (*path, "types", name)
        found = self._table(node, below, skip=("name",))
        if "extends" in found:
            found["extends"] = split_names(found["extends"])
        attributes: dict[str, Any] = {}
        for part in self._children(node, "attribute"):
            label = part.attributes.get("name", "")
            inner = (*below, "attributes")
            self._put(attributes, inner, label, part, self._table(part, inner, skip=("name",)))
        if attributes or "kind" not in found:
            found["attributes"] = attributes
        return found

    def _named(self, part: XmlNode, path: ValuePath, child: str) -> dict[str, Any]:
        self._check(part, ELEMENTS[part.name])
        found: dict[str, Any] = {}
        for node in self._children(part, child):
            name = node.attributes.get("name", "")
            self._put(found, path, name, node, self._function(node, (*path, name)))
        return found

    def _function(self, node: XmlNode, path: ValuePath) -> dict[str, Any]:
        found = self._table(node, path, skip=("name", "class"))
        for key in ("from", "to"):
            if key in found:
                found[key] = split_names(found[key])
        if "class" in node.attributes:
            found["call"] = function_name(node.attributes["class"])
            self.places[(*path, "call")] = self._place(node)
        for kind in node.children:
            self._put(found, path, kind.name, kind, element_value(kind))
        return found

    def _listed(self, part: XmlNode, path: ValuePath, child: str) -> list[Any]:
        self._check(part, ELEMENTS[part.name])
        found: list[Any] = []
        for node in self._children(part, child):
            below = (*path, f"[{len(found)}]")
            self.places[below] = self._place(node)
            entry = self._table(node, below)
            if child == "mapping":
                self._shape(node, entry, below)
            found.append(entry)
        return found

    def _shape(self, node: XmlNode, entry: dict[str, Any], path: ValuePath) -> None:
        for key in ("from", "to"):
            if _PACKAGED.fullmatch(entry.get(key, "")):
                entry[key] = entry[key].rpartition(".")[2]
        for step in node.children:
            kind = step.name
            if kind not in ELEMENTS["mapping"].children:
                continue
            self.places.setdefault((*path, kind), self._place(step))
            found = self._table(step, (*path, kind))
            if kind == "rename":
                entry.setdefault(kind, {})[found.get("from", "")] = found.get("to", "")
            elif kind == "drop":
                entry.setdefault(kind, []).append(found.get("name", ""))
            elif kind == "create":
                name = found.pop("name", "")
                found["value"] = scalar(step.attributes.get("value", ""))
                self._put(entry.setdefault(kind, {}), (*path, kind), name, step, found)
            else:
                several = "take" if kind == "merge" else "give"
                texts = [each.text.strip() for each in self._children(step, several)]
                entry.setdefault(kind, []).append({**found, several: texts})

    def _leaf(self, node: XmlNode, path: ValuePath, key: str, value: str) -> str:
        self._table(node, path)
        self.places[(*path, node.attributes.get(key, ""))] = self._place(node)
        return node.attributes.get(value, "")

    def _table(self, node: XmlNode, path: ValuePath, skip: tuple[str, ...] = ()) -> dict[str, Any]:
        """The attributes of an element under their TOML names."""
        known = ELEMENTS[node.name]
        self._check(node, known)
        found: dict[str, Any] = {}
        for name, value in node.attributes.items():
            if name in known.attributes and name not in skip:
                key = known.attributes[name]
                self.places.setdefault((*path, key), self._place(node))
                found[key] = _typed(key, value)
        return found

    def _check(self, node: XmlNode, known: XmlElement) -> None:
        for name in node.attributes:
            if name not in known.attributes:
                message = f"<{node.name}> has no attribute {name!r}"
                self._fault(node, message, suggest(name, known.attributes))
        for name in known.needed:
            if not node.attributes.get(name) and not (name == "name" and node.text.strip()):
                message = f"<{node.name}> needs the attribute {name!r}"
                self._fault(node, message, f'write {name}="..."', "interpretation.missing_key")
        for child in node.children:
            if not known.any_child and child.name not in known.children:
                message = f"<{child.name}> has no meaning in <{node.name}>"
                self._fault(child, message, suggest(child.name, known.children))

    def _children(self, node: XmlNode, name: str) -> Iterator[XmlNode]:
        return (child for child in node.children if child.name == name)

    def _put(
        self, table: dict[str, Any], path: ValuePath, key: str, node: XmlNode, value: object
    ) -> None:
        if key in table:
            message = f"{key!r} occurs twice"
            self._fault(node, message, "remove one of them", "interpretation.duplicate")
        self.places.setdefault((*path, key), self._place(node))
        table[key] = value

    def _place(self, node: XmlNode) -> tuple[int, int]:
        return self._where[id(node)]

    def _fault(
        self, node: XmlNode, message: str, hint: str, code: str = "interpretation.unknown_key"
    ) -> None:
        place = self._place(node)
        self.problems.append(problem_at(self._name, self._lines, place, code, message, hint))


_CONTENT = {
    "types": "types",
    "mappings": "mappings",
    "rules": "rules",
    "functions": "conversions",
    "units": "units",
    "about": "about",
}


def _typed(key: str, value: str) -> Any:
    if key == "direction":
        return DIRECTIONS.get(value, value)
    return {"true": True, "false": False}.get(value, value) if key == "optional" else value
