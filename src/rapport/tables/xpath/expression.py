"""XPath 1.0, evaluated on a document. [PO-2]

One departure, for people who write `/plan/room` for a file whose elements are all in a namespace:
a name without a prefix matches in any namespace. A prefix means the namespace it is declared for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from xml.etree.ElementTree import Element

from rapport.tables.xpath.comparing import calculate, compare
from rapport.tables.xpath.functions import Value, call, to_boolean, to_number, to_text
from rapport.tables.xpath.nodes import (
    Attribute,
    Document,
    Node,
    Text,
    local_name,
    string_of,
    texts_in,
)
from rapport.tables.xpath.parser import (
    Axis,
    Binary,
    Call,
    Constant,
    Expression,
    Negative,
    Path,
    Step,
    parse_xpath,
)
from rapport.tables.xpath.tokens import XPathFault

Namespaces = Mapping[str, str]

_ELEMENTS = "elements"
"""A test besides those of the parser: any element, and the root."""


class _Place(NamedTuple):
    """Where an expression is evaluated."""

    node: Node
    position: int
    size: int


class XPath:
    """A compiled expression; raises XPathFault when made of something else."""

    def __init__(self, text: str, namespaces: Namespaces | None = None) -> None:
        self.text = text
        self._tree = parse_xpath(text)
        self._namespaces = namespaces or {}
        self._check(self._tree)
        self._plain = _plain_names(self._tree)

    def nodes(self, document: Document, start: Node | None = None) -> list[Node]:
        """What a path or a union selects, in document order; raises XPathFault for anything
        else."""
        place = _Place(document if start is None else start, 1, 1)
        found = _Evaluation(document, self._namespaces).value(self._tree, place)
        if not isinstance(found, list):
            raise XPathFault(f"{self.text!r} selects no elements", hint="such as /floorplan/room")
        return found

    def text_at(self, document: Document, start: Element) -> str | None:
        """The text that the expression gives for an element; None when a path selects nothing.

        Paths of names cost about a microsecond.
        """
        if self._plain is not None:
            return _by_names(start, self._plain)
        found = _Evaluation(document, self._namespaces).value(self._tree, _Place(start, 1, 1))
        return None if found == [] and isinstance(found, list) else to_text(found)

    def _check(self, tree: Expression) -> None:
        """Prefixes are declared; also within predicates."""
        for step in _steps(tree):
            prefix, colon, _name = step.test.partition(":")
            if colon and prefix not in self._namespaces:
                message = f"the prefix {prefix!r} is not declared"
                raise XPathFault(message, hint='add namespaces = { x = "http://..." }')


class _Evaluation:
    """One evaluation; recursion is bounded by the parser."""

    def __init__(self, document: Document, namespaces: Namespaces) -> None:
        self._document, self._namespaces = document, namespaces

    def value(self, tree: Expression, place: _Place) -> Value:
        if isinstance(tree, Constant):
            return tree.value
        if isinstance(tree, Path):
            return self._path(tree, place)
        if isinstance(tree, Negative):
            return -to_number(self.value(tree.inner, place))
        if isinstance(tree, Call):
            arguments = [self.value(argument, place) for argument in tree.arguments]
            return call(tree.name, arguments, place.node, place.position, place.size)
        return self._binary(tree, place)

    def _binary(self, tree: Binary, place: _Place) -> Value:
        left = self.value(tree.left, place)
        if tree.operator in ("or", "and"):
            decided = tree.operator == "or"
            if to_boolean(left) is decided:
                return decided
            return to_boolean(self.value(tree.right, place))
        right = self.value(tree.right, place)
        if tree.operator == "|":
            return self._in_order([*_nodes(left), *_nodes(right)])
        if tree.operator in ("=", "!=", "<", "<=", ">", ">="):
            return compare(tree.operator, left, right)
        return calculate(tree.operator, to_number(left), to_number(right))

    def _path(self, path: Path, place: _Place) -> list[Node]:
        if path.start is not None:
            found = _nodes(self.value(path.start, place))
            for predicate in path.filters:
                found = self._filtered(found, predicate)
        else:
            found = [self._document if path.absolute else place.node]
        mixed = False
        for step, following in zip(path.steps, (*path.steps[1:], None), strict=False):
            if step.axis == "descendant-or-self":
                mixed = True
                if following is not None and following.axis in ("child", "attribute"):
                    step = Step("descendant-or-self", _ELEMENTS)
            found = self._stepped(found, step)
            if step.axis == "parent" or (mixed and step.axis != "descendant-or-self"):
                found = self._in_order(found)
        return found

    def _stepped(self, nodes: list[Node], step: Step) -> list[Node]:
        found: list[Node] = []
        for node in nodes:
            reached = self._matching(self._along(node, step), step)
            for predicate in step.predicates:
                reached = self._filtered(reached, predicate)
            found += reached
        return found if len(nodes) == 1 else _once(found)

    def _along(self, node: Node, step: Step) -> Iterable[Node]:
        if step.axis == "self":
            return (node,)
        if step.axis == "parent":
            return self._parent(node)
        if isinstance(node, (Attribute, Text)):
            return (node,) if step.axis == "descendant-or-self" else ()
        if step.axis == "descendant-or-self":
            return self._descendants(node, step.test)
        if step.axis == "attribute":
            if isinstance(node, Document) or step.test == "text()":
                return ()
            return [Attribute(node, name) for name in node.attrib]
        if isinstance(node, Document):
            return () if step.test == "text()" else (node.root,)
        if step.test == "text()":
            return texts_in(node)
        return self._children(node) if step.test == "node()" else node

    @staticmethod
    def _descendants(node: Element | Document, test: str) -> Iterable[Node]:
        """Texts only where a step leads from them: from all others nothing is reached."""
        top = node.root if isinstance(node, Document) else node
        if isinstance(node, Document):
            yield node
        if test == _ELEMENTS:
            yield from top.iter()
            return
        for element in top.iter():
            yield element
            yield from texts_in(element)

    @staticmethod
    def _children(node: Element) -> Iterable[Node]:
        texts = {text.slot: text for text in texts_in(node)}
        if 0 in texts:
            yield texts[0]
        for slot, child in enumerate(node, start=1):
            yield child
            if slot in texts:
                yield texts[slot]

    def _parent(self, node: Node) -> Iterable[Node]:
        if isinstance(node, (Attribute, Text)):
            return (node.owner,)
        if isinstance(node, Document):
            return ()
        return (self._document.parents.get(node, self._document),)

    def _matching(self, nodes: Iterable[Node], step: Step) -> list[Node]:
        if step.test in ("node()", "text()", _ELEMENTS):
            return list(nodes)
        return [node for node in nodes if self._fits(node, step.axis, step.test)]

    def _fits(self, node: Node, axis: Axis, test: str) -> bool:
        if axis == "attribute":
            name = node.name if isinstance(node, Attribute) else ""
        elif isinstance(node, Element):
            name = node.tag
        else:
            return False
        prefix, colon, wanted = test.partition(":")
        if not colon:
            return test in ("*", name) or (axis == "child" and local_name(name) == test)
        namespace = f"{{{self._namespaces[prefix]}}}"
        return name.startswith(namespace) and wanted in ("*", local_name(name))

    def _filtered(self, nodes: list[Node], predicate: Expression) -> list[Node]:
        kept, size = [], len(nodes)
        for position, node in enumerate(nodes, start=1):
            found = self.value(predicate, _Place(node, position, size))
            is_number = isinstance(found, float) and not isinstance(found, bool)
            if found == position if is_number else to_boolean(found):
                kept.append(node)
        return kept

    def _in_order(self, nodes: list[Node]) -> list[Node]:
        return sorted(_once(nodes), key=self._document.place)


def _nodes(value: Value) -> list[Node]:
    if not isinstance(value, list):
        raise XPathFault("a path or a union is needed here", hint="it selects elements")
    return value


def _once(nodes: list[Node]) -> list[Node]:
    return list(dict.fromkeys(nodes))


def _steps(tree: Expression) -> Iterable[Step]:
    if isinstance(tree, Path):
        inner: list[Expression] = [*tree.filters, *([tree.start] if tree.start else [])]
        for step in tree.steps:
            yield step
            inner += step.predicates
    elif isinstance(tree, Call):
        inner = list(tree.arguments)
    elif isinstance(tree, Binary):
        inner = [tree.left, tree.right]
    else:
        inner = [tree.inner] if isinstance(tree, Negative) else []
    for each in inner:
        yield from _steps(each)


class _PlainStep(NamedTuple):
    """To the children of a name, perhaps to the one at a place among them, or to an attribute."""

    name: str
    is_attribute: bool
    place: int | None


def _plain_names(tree: Expression) -> tuple[_PlainStep, ...] | None:
    """The steps when all lead to a child or an attribute by a bare name: the usual field."""
    if not isinstance(tree, Path) or tree.absolute or tree.start is not None:
        return None
    found = [_plain_step(step) for step in tree.steps]
    return None if None in found else tuple(step for step in found if step is not None)


def _plain_step(step: Step) -> _PlainStep | None:
    bare = step.test.replace("_", "a").replace("-", "a").isalnum()
    if step.axis not in ("child", "attribute") or not bare:
        return None
    if not step.predicates:
        return _PlainStep(step.test, step.axis == "attribute", None)
    first = step.predicates[0]
    if len(step.predicates) > 1 or step.axis == "attribute" or not isinstance(first, Constant):
        return None
    if not isinstance(first.value, float) or first.value != int(first.value):
        return None
    return _PlainStep(step.test, False, int(first.value))


def _by_names(start: Element, steps: tuple[_PlainStep, ...]) -> str | None:
    """The first node by these names, depth first: what document order makes the first."""
    step, rest = steps[0], steps[1:]
    if step.is_attribute:
        return None if rest else start.attrib.get(step.name)
    place = 0
    for child in start:
        if child.tag == step.name or local_name(child.tag) == step.name:
            place += 1
            if step.place in (None, place):
                found = _by_names(child, rest) if rest else string_of(child)
                if found is not None:
                    return found
    return None
