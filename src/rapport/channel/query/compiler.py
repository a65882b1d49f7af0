"""Compiles a condition to one Python function, called per event. [CH-4]

Three-valued logic costs nothing at run time: every part has code for "is true" and, where a NOT
needs it, code for "is false". Parts of a top-level AND become statements, those without the payload
first, so that most events are rejected undecoded. A second function handles XML payloads, whose
values take the kind of the other side of a comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

from rapport.channel.query import values
from rapport.channel.query.tree import (
    TURNED,
    And,
    Arithmetic,
    Between,
    Compare,
    Condition,
    Field,
    In,
    IsNull,
    Like,
    Literal,
    Negative,
    Not,
    Or,
    Step,
    Value,
    field_kind,
    kind_of,
    uses_payload,
)
from rapport.core.event import StoredEvent

Matches = Callable[[StoredEvent], bool]

_JSON = "data = decode_payload(event.data)"
_XML = ("text = xml_text(event.data)", "document = xml_document(text)")
_PYTHON = {"=": "==", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}


def compile_condition(condition: Condition) -> Matches:
    """A function that is true exactly for the events for which the condition is true."""
    source, names = condition_source(condition)
    names["matches_xml"] = _made_when_called(condition)
    return _made(source, names)


def condition_source(condition: Condition, *, in_xml: bool = False) -> tuple[str, dict[str, Any]]:
    """The function's text and its namespace; with `in_xml` for XML payloads.

    The text contains no user input: literals and member names are passed as values.
    """
    writer = _XmlWriter() if in_xml else _Writer()
    parts = condition.parts if isinstance(condition, And) else (condition,)
    early = [writer.true(part) for part in parts if not uses_payload(part)]
    late = [part for part in parts if uses_payload(part)]
    lines = ["def matches(stored):", "    event = stored.event", *_refusals(early)]
    if late and in_xml:
        lines += _payload_lines(writer, late, *_XML)
    elif late:
        lines.append("    if event.headers and is_xml(event.headers): return matches_xml(stored)")
        lines += _payload_lines(writer, late, _JSON)
    lines.append("    return True")
    return "\n".join(lines), writer.names


def compile_values(
    fields: Sequence[Field], *, in_xml: bool = False
) -> Callable[[StoredEvent], list[Any]]:
    """A function that gives the values of fields, None where there is none; with `in_xml` for XML
    payloads, whose values are texts.
    """
    writer = _XmlWriter() if in_xml else _Writer()
    codes = ", ".join([writer.value(field) for field in fields])
    lines = ["def values_of(stored):", "    event = stored.event"]
    if any(map(uses_payload, fields)):
        lines += _payload_lines(writer, [], *(_XML if in_xml else (_JSON,)))
    exec(_code("\n".join([*lines, f"    return [{codes}]"])), writer.names)
    values_of: Callable[[StoredEvent], list[Any]] = writer.names["values_of"]
    return values_of


def _made(source: str, names: dict[str, Any]) -> Matches:
    exec(_code(source), names)  # our own text, see condition_source
    matches: Matches = names["matches"]
    return matches


@lru_cache(maxsize=512)
def _code(source: str) -> CodeType:
    """Compiled once per form: conditions that differ in their values only have the same text."""
    return compile(source, "<condition>", "exec")


def _made_when_called(condition: Condition) -> Matches:
    """The function for payloads in XML: compiling costs more than most queries that meet none."""
    made: list[Matches] = []

    def matches_xml(stored: StoredEvent) -> bool:
        if not made:
            made.append(_made(*condition_source(condition, in_xml=True)))
        return made[0](stored)

    return matches_xml


def _payload_lines(writer: _Writer, parts: list[Condition], *before: str) -> list[str]:
    codes = [writer.true(part) for part in parts]  # first, since it collects the fields
    fetched = [f"{name} = {code}" for name, code in writer.fields.items()]
    return [f"    {line}" for line in (*before, *fetched)] + _refusals(codes)


def _refusals(codes: list[str]) -> list[str]:
    return [f"    if not {code}: return False" for code in codes]


class _Writer:
    """Writes expressions; collects their namespace and the payload paths to fetch first."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {
            "decode_payload": values.decode_payload,
            "member": values.member,
            "element": values.element,
            "calculate": values.calculate,
            "negative": values.negative,
            "compare": values.compare,
            "NUMBERS": values.NUMBERS,
            "is_xml": values.is_xml,
        }
        self.fields: dict[str, str] = {}
        self._once_names: dict[str, str] = {}

    # --- conditions -------------------------------------------------------------------------------

    def true(self, node: Condition) -> str:
        """Code that is truthy exactly when the condition is true."""
        match node:
            case And(parts):
                return self._all([self.true(part) for part in parts])
            case Or(parts):
                return self._any([self.true(part) for part in parts])
            case Not(operand):
                return self.false(operand)
            case Compare():
                return self._compared(node, "True")
            case Between(operand, low, high):
                return self.true(_bounds(operand, low, high))
            case In(operand, choices):
                return self._chosen(operand, choices)
            case Like(operand, pattern, escape):
                code = self.value(operand)
                fits = self._name(values.like_test(pattern, escape))
                return f"(type({code}) is str and {fits}({code}))"
            case IsNull(operand):
                return f"({self.value(operand)} is None)"
            case _:
                return f"({self.cast(node, 'boolean')} is True)"

    def false(self, node: Condition) -> str:
        """Code that is truthy exactly when the condition is false: not true and not unknown."""
        match node:
            case And(parts):
                return self._any([self.false(part) for part in parts])
            case Or(parts):
                return self._all([self.false(part) for part in parts])
            case Not(operand):
                return self.true(operand)
            case Compare():
                return self._compared(node, "False")
            case Between(operand, low, high):
                return self.false(_bounds(operand, low, high))
            case In(operand) | Like(operand):
                return f"({self.value(operand)} is not None and not {self.true(node)})"
            case IsNull(operand):
                return f"({self.value(operand)} is not None)"
            case _:
                return f"({self.cast(node, 'boolean')} is False)"

    def _all(self, codes: list[str]) -> str:
        return f"({' and '.join(codes)})" if codes else "True"

    def _any(self, codes: list[str]) -> str:
        return f"({' or '.join(codes)})" if codes else "False"

    def _compared(self, node: Compare, wanted: str) -> str:
        """Writes out a comparison with a literal, whose kind is known; others become calls."""
        if isinstance(node.left, Literal) and not isinstance(node.right, Literal):
            turned = Compare(TURNED[node.operator], node.right, node.left)
            return self._compared(turned, wanted)
        if not isinstance(node.right, Literal) or isinstance(node.left, Literal):
            return f"({self.compared(node.operator, node.left, node.right)} is {wanted})"
        true = self._with_literal(node.operator, node.left, node.right)
        is_known = f"{self.value(node.left)} is not None"
        return true if wanted == "True" else f"({is_known} and not {true})"

    def compared(self, operator: str, left: Value, right: Value) -> str:
        """Code of a comparison of two values of unknown kind."""
        return f"compare({operator!r}, {self.value(left)}, {self.value(right)})"

    def _with_literal(self, operator: str, operand: Value, literal: Literal) -> str:
        kind = kind_of(literal)
        if kind == "boolean" and operator not in ("=", "<>"):
            return "False"
        code = self.cast(operand, kind)
        check = _kind_check(operand, code, kind)
        return f"({check}{code} {_PYTHON[operator]} {self._name(literal.value)})"

    def _chosen(self, operand: Value, choices: tuple[Literal, ...]) -> str:
        ways = []
        for kind in ("text", "number", "boolean"):
            chosen = frozenset(choice.value for choice in choices if kind_of(choice) == kind)
            if chosen:
                code = self.cast(operand, kind)
                check = _kind_check(operand, code, kind)
                ways.append(f"({check}{code} in {self._name(chosen)})")
        return self._any(ways)

    # --- values -----------------------------------------------------------------------------------

    def value(self, node: Value | Condition) -> str:
        """Code of a value; None when it is null."""
        match node:
            case Literal(value):
                return self._name(value)
            case Field():
                return self._field(node)
            case Negative(operand):
                return f"negative({self.cast(operand, 'number')})"
            case Arithmetic(sign, left, right):
                operands = f"{self.cast(left, 'number')}, {self.cast(right, 'number')}"
                code = f"calculate({sign!r}, {operands})"
                return self._once(node, code) if uses_payload(node) else code
            case _:
                raise AssertionError(f"{node!r} is no value")

    def cast(self, node: Value | Condition, kind: str) -> str:
        """Code of a value where this kind is needed: JSON values have kinds already."""
        return self.value(node)

    def _field(self, field: Field) -> str:
        root = field.path[0]
        if root in ("position", "received"):
            return f"stored.{root}"
        if root == "headers":
            return f"event.headers.get({self._name(field.path[1])})"
        if root != "data":
            return f"event.{root}"
        return self._once(field, self.payload(field.path[1:]))

    def payload(self, steps: tuple[Step, ...]) -> str:
        """Code that fetches the value at a payload path."""
        code = "data"
        for step in steps:
            fetch = "element" if isinstance(step, int) else "member"
            code = f"{fetch}({code}, {self._name(step)})"
        return code

    def _once(self, node: Field | Arithmetic, code: str) -> str:
        """The name of a value that is fetched or calculated once per event, after the payload."""
        key = repr(node)  # not the node: 1 and 1.0 are equal, but calculate differently
        if key not in self._once_names:
            name = f"value_of_{len(self._once_names)}"
            self._once_names[key], self.fields[name] = name, code
        return self._once_names[key]

    def _name(self, value: Any) -> str:
        name = f"value{len(self.names)}"
        self.names[name] = value
        return name


class _XmlWriter(_Writer):
    """The same for XML payloads, whose values have no kind of their own."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("xml_text", "xml_document", "xml_value", "compare_two"):
            self.names[name] = getattr(values, name)
        for kind in ("text", "number", "boolean"):
            self.names[f"as_{kind}"] = getattr(values, f"as_{kind}")

    def cast(self, node: Value | Condition, kind: str) -> str:
        code = self.value(node)
        return f"as_{kind}({code})" if _is_payload(node) else code

    def compared(self, operator: str, left: Value, right: Value) -> str:
        """See _Writer; a value takes the kind of the other side."""
        if _is_payload(left) and _is_payload(right):
            return f"compare_two({operator!r}, {self.value(left)}, {self.value(right)})"
        codes = f"{self.cast(left, kind_of(right))}, {self.cast(right, kind_of(left))}"
        return f"compare({operator!r}, {codes})"

    def payload(self, steps: tuple[Step, ...]) -> str:
        if not steps:
            return "text"
        return f"xml_value(document, {self._name(values.xml_steps(steps))})"


def _is_payload(node: object) -> bool:
    return isinstance(node, Field) and node.path[0] == "data"


def _bounds(operand: Value, low: Value, high: Value) -> And:
    return And((Compare(">=", operand, low), Compare("<=", operand, high)))


def _kind_check(operand: Value, code: str, kind: str) -> str:
    """Code that keeps other kinds out, where the operand could be of another."""
    if isinstance(operand, Field) and field_kind(operand) != "any" and operand.path[0] != "headers":
        return ""
    if kind == "number":
        return f"type({code}) in NUMBERS and "
    return f"type({code}) is {'str' if kind == 'text' else 'bool'} and "
