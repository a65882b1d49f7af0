"""From a condition to one Python function, made once and called per event. [CH-4]

Three-valued logic costs nothing at run time: for every part there is code that says whether it is
true, and, where a NOT needs it, code that says whether it is false. Parts of a top-level AND become
statements, those without the payload first, so that most events are refused undecoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rapport.channel.query import values
from rapport.channel.query.checking import kind_of
from rapport.channel.query.tree import (
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
    Value,
    field_kind,
)
from rapport.core.event import StoredEvent

Matches = Callable[[StoredEvent], bool]

_PYTHON = {"=": "==", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_TURNED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def compile_condition(condition: Condition) -> Matches:
    """A function that is true exactly for the events for which the condition is true."""
    source, names = condition_source(condition)
    made: dict[str, Any] = {}
    exec(compile(source, "<condition>", "exec"), names, made)  # our own text, see condition_source
    matches: Matches = made["matches"]
    return matches


def condition_source(condition: Condition) -> tuple[str, dict[str, Any]]:
    """The function's text and the names it uses.

    Nothing a person wrote stands in the text: literals and names of members are passed as values.
    """
    writer = _Writer()
    parts = condition.parts if isinstance(condition, And) else (condition,)
    early = [writer.true(part) for part in parts if not _uses_payload(part)]
    late = [writer.true(part) for part in parts if _uses_payload(part)]
    lines = ["def matches(stored):", "    event = stored.event"]
    lines += [f"    if not {code}: return False" for code in early]
    if late:
        lines.append("    data = decode_payload(event.data)")
        lines += [f"    {name} = {code}" for name, code in writer.fields.items()]
        lines += [f"    if not {code}: return False" for code in late]
    lines.append("    return True")
    return "\n".join(lines), writer.names


def _uses_payload(node: object) -> bool:
    if isinstance(node, Field):
        return node.path[0] == "data"
    if isinstance(node, tuple):
        return any(_uses_payload(part) for part in node)
    fields = getattr(node, "__struct_fields__", ())
    return any(_uses_payload(getattr(node, name)) for name in fields)


class _Writer:
    """Writes expressions; collects the names they use and what of the payload to fetch first."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {
            "decode_payload": values.decode_payload,
            "member": values.member,
            "element": values.element,
            "calculate": values.calculate,
            "negative": values.negative,
            "compare": values.compare,
            "NUMBERS": values.NUMBERS,
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
                return f"({self.value(node)} is True)"

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
                return f"({self.value(node)} is False)"

    def _all(self, codes: list[str]) -> str:
        return f"({' and '.join(codes)})" if codes else "True"

    def _any(self, codes: list[str]) -> str:
        return f"({' or '.join(codes)})" if codes else "False"

    def _compared(self, node: Compare, wanted: str) -> str:
        """A literal's kind is known, so its comparison is written out; others are called."""
        if isinstance(node.left, Literal) and not isinstance(node.right, Literal):
            turned: Any = _TURNED[node.operator]
            return self._compared(Compare(turned, node.right, node.left), wanted)
        if not isinstance(node.right, Literal) or isinstance(node.left, Literal):
            left, right = self.value(node.left), self.value(node.right)
            return f"(compare({node.operator!r}, {left}, {right}) is {wanted})"
        left = self.value(node.left)
        true = self._with_literal(node.operator, node.left, left, node.right)
        return true if wanted == "True" else f"({left} is not None and not {true})"

    def _with_literal(self, operator: str, operand: Value, left: str, literal: Literal) -> str:
        if kind_of(literal) == "boolean" and operator not in ("=", "<>"):
            return "False"
        check = _kind_check(operand, left, kind_of(literal))
        return f"({check}{left} {_PYTHON[operator]} {self._name(literal.value)})"

    def _chosen(self, operand: Value, choices: tuple[Literal, ...]) -> str:
        code = self.value(operand)
        ways = []
        for kind in ("text", "number", "boolean"):
            chosen = frozenset(choice.value for choice in choices if kind_of(choice) == kind)
            if chosen:
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
                return f"negative({self.value(operand)})"
            case Arithmetic(sign, left, right):
                code = f"calculate({sign!r}, {self.value(left)}, {self.value(right)})"
                return self._once(node, code) if _uses_payload(node) else code
            case _:
                raise AssertionError(f"{node!r} is no value")

    def _field(self, field: Field) -> str:
        root = field.path[0]
        if root in ("position", "received"):
            return f"stored.{root}"
        if root == "headers":
            return f"event.headers.get({self._name(field.path[1])})"
        if root != "data":
            return f"event.{root}"
        code = "data"
        for step in field.path[1:]:
            fetch = "element" if isinstance(step, int) else "member"
            code = f"{fetch}({code}, {self._name(step)})"
        return self._once(field, code)

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


def _bounds(operand: Value, low: Value, high: Value) -> And:
    return And((Compare(">=", operand, low), Compare("<=", operand, high)))


def _kind_check(operand: Value, code: str, kind: str) -> str:
    """Code that keeps other kinds out, where the operand could be of another."""
    if isinstance(operand, Field) and field_kind(operand) != "any" and operand.path[0] != "headers":
        return ""
    if kind == "number":
        return f"type({code}) in NUMBERS and "
    return f"type({code}) is {'str' if kind == 'text' else 'bool'} and "
