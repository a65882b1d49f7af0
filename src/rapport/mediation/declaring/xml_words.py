"""The elements of the XML form, with the names that TOML and YAML use for the same. [ME-10]

The source (section 4.3.2) has `types/type`, `mappings/mapping from to dir`, `rules/rule pattern
function` and `functions/function name class`. Added here: `contexts/context id parent`, since a
document has one root and a context a name; types described by `attribute`s, since there is no class
to look into; changes of shape; `from` and `to` of functions; functions that are data; `units`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Element(msgspec.Struct, frozen=True):
    """What may stand in an element: attributes (by their name in TOML) and elements."""

    attributes: Mapping[str, str] = {}
    needed: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    any_child: bool = False
    """Its elements are read elsewhere, which also knows their names."""


DIRECTIONS = {"incoming": "in", "outgoing": "out"}
"""The source's words, seen from the node as everywhere."""

ELEMENTS: Mapping[str, Element] = {
    "contexts": Element(children=("context",)),
    "context": Element(
        {"id": "id", "parent": "parent", "about": "about", "format": "format"},
        ("id",),
        ("about", "types", "units", "mappings", "rules", "functions"),
    ),
    "types": Element(children=("type",)),
    "type": Element(
        {"name": "name", "extends": "extends", "kind": "kind"}, ("name",), ("attribute",)
    ),
    "attribute": Element(
        {"name": "name", "type": "type", "unit": "unit", "optional": "optional"}, ("name",)
    ),
    "units": Element(children=("unit",)),
    "unit": Element({"of": "of", "name": "name"}, ("of", "name")),
    "mappings": Element(children=("mapping",)),
    "mapping": Element(
        {"from": "from", "to": "to", "dir": "direction", "each": "each"},
        ("from", "to", "dir"),
        ("rename", "drop", "create", "merge", "split"),
    ),
    "rename": Element({"from": "from", "to": "to"}, ("from", "to")),
    "drop": Element({"name": "name"}, ("name",)),
    "create": Element({"name": "name", "type": "type", "value": "value"}, ("name", "type")),
    "merge": Element({"give": "give", "function": "convert"}, ("give", "function"), ("take",)),
    "split": Element({"take": "take", "function": "convert"}, ("take", "function"), ("give",)),
    "rules": Element(children=("rule",)),
    "rule": Element(
        {"pattern": "match", "function": "convert", "dir": "direction"}, ("pattern", "function")
    ),
    "functions": Element(children=("function",)),
    "function": Element(
        {"name": "name", "class": "call", "from": "from", "to": "to"}, ("name",), any_child=True
    ),
}
