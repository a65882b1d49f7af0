"""A graph as Turtle, one paragraph per thing, blank nodes where they are used. [PO-1]"""

from __future__ import annotations

import re

from rapport.policy.rdf.graph import (
    FIRST,
    PREFIXES,
    TYPE,
    XSD,
    Blank,
    Graph,
    Iri,
    Node,
    Subject,
    Text,
)

_LOCAL = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*\Z")
_UNSAFE = re.compile(r'[\x00-\x20<>"{}|^`\\]')
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def write_turtle(graph: Graph, *, base: str = "") -> str:
    """The graph; names below `base` are written with the empty prefix. Blank nodes must form no
    circle, as those of `to_graph` do not.
    """
    prefixes = {**PREFIXES, **({"": base} if base else {})}
    lines = [f"@prefix {prefix}: <{address}> ." for prefix, address in prefixes.items()]
    writer = _Writer(graph, prefixes)
    for subject in graph.subjects():
        if isinstance(subject, Iri):
            lines += ["", f"{writer.node(subject)} {writer.said_of(subject, '    ')} ."]
    return "\n".join(lines) + "\n"


class _Writer:
    """Nodes as text."""

    def __init__(self, graph: Graph, prefixes: dict[str, str]) -> None:
        self._graph, self._prefixes = graph, prefixes

    def said_of(self, subject: Subject, indent: str) -> str:
        said: dict[Iri, list[Node]] = {}
        for predicate, node in self._graph.about(subject):
            said.setdefault(predicate, []).append(node)
        parts = [
            f"{'a' if predicate == TYPE else self.node(predicate)} {self._nodes(nodes)}"
            for predicate, nodes in said.items()
        ]
        return f" ;\n{indent}".join(parts) if indent else " ; ".join(parts)

    def _nodes(self, nodes: list[Node]) -> str:
        return ", ".join(self.node(node) for node in nodes)

    def node(self, node: Node) -> str:
        match node:
            case Iri(value):
                return self._iri(value)
            case Blank():
                if any(True for _ in self._graph.all(node, FIRST)):
                    members = self._graph.members(node)
                    return f"( {' '.join(self.node(member) for member in members)} )"
                return f"[ {self.said_of(node, '')} ]"
            case Text():
                return self._text(node)

    def _iri(self, value: str) -> str:
        for prefix, address in self._prefixes.items():
            if value.startswith(address) and _LOCAL.match(value[len(address) :]):
                return f"{prefix}:{value[len(address) :]}"
        return f"<{_UNSAFE.sub(_escaped, value)}>"

    def _text(self, text: Text) -> str:
        quoted = re.sub(r'["\\\n\r\t]', lambda found: _ESCAPES[found[0]], text.value)
        if text.language:
            return f'"{quoted}"@{text.language}'
        if text.datatype == XSD + "string":
            return f'"{quoted}"'
        return f'"{quoted}"^^{self._iri(text.datatype)}'


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04X}"
