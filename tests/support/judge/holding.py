"""Whether a relationship or a comparison holds of given identities and readings: true, false or
unknown, one case at a time. [PO-3, PO-7]
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from rapport.core.detection import Cause
from rapport.core.errors import InvalidInput
from rapport.policy.language.tree import ConceptDef, PolicyTree, Property
from rapport.policy.ontology import Ontology, Relationship
from rapport.policy.operators.base import PullData
from rapport.policy.plan import Constraint
from rapport.units.quantities import converter
from support.judge.areas import holds, measured
from support.judge.keys import (
    CallOf,
    ComparisonKey,
    Constant,
    Operand,
    RelationKey,
    TermKey,
    ValueOf,
    concepts_of,
)

Value = tuple[Any, ...]

_METRES = {"m": 1.0, "cm": 0.01, "mm": 0.001, "km": 1000.0, "ft": 0.3048, "in": 0.0254}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    ">": lambda left, right: left > right,
    "<=": lambda left, right: left <= right,
    ">=": lambda left, right: left >= right,
}


class Reading(msgspec.Struct, frozen=True):
    """One event of a stream: the instance `key` of its concept had `value` at `time`."""

    time: int
    id: str
    stream: str
    key: str
    value: tuple[float | str | bool, ...]
    source: str = ""
    """Empty: whichever gives the stream."""

    @property
    def cause(self) -> Cause:
        return (self.time, self.id)


class End(NamedTuple):
    """An attribute of an alias that a term reads."""

    alias: str
    attribute: str


Events = Mapping[End, Reading]
"""The reading that stands at each event-based end; an end without one is unknown."""


class Holding:
    """The tables and functions of one site, asked on behalf of one policy."""

    def __init__(self, tree: PolicyTree, ontology: Ontology, pull: PullData) -> None:
        self._ontology, self._pull = ontology, pull
        self._concepts = concepts_of(tree, ontology)
        self._wanted = {one.alias: _constraints(one, ontology) for one in tree.concepts}
        self._streams = set(ontology.streams())

    # What a term reads.

    def concept(self, alias: str) -> str:
        return self._concepts[alias]

    def stream(self, end: End) -> str | None:
        """The stream that gives the attribute; None where tables do."""
        stream = f"{self.concept(end.alias)}.{end.attribute}"
        return stream if stream in self._streams else None

    def ends(self, key: RelationKey) -> list[End]:
        """Every attribute that is read, each once, in the order written."""
        if isinstance(key, TermKey):
            relationship = self._relationship(key)
            attributes = [relationship.first[1], relationship.second[1]]
            if self._is_reversed(key):
                attributes.reverse()
            return [End(key.first, attributes[0]), End(key.second, attributes[1])]
        return list(dict.fromkeys([*self._ends_of(key.left), *self._ends_of(key.right)]))

    def event_ends(self, key: RelationKey) -> list[End]:
        """Those of them that come as events; raises InvalidInput when they are more than two."""
        ends = self.ends(key)
        found = [end for end in ends if self.stream(end) is not None]
        aliases = {end.alias for end in ends}
        if len(found) > 2 or len(aliases) > 2:
            raise InvalidInput("too many ends", code="policy.too_many_ends")
        if len(found) == 2 and len(aliases) > len({end.alias for end in found}):
            raise InvalidInput("two events beside a table", code="policy.too_many_ends")
        return found

    def _ends_of(self, operand: Operand) -> list[End]:
        match operand:
            case Constant():
                return []
            case ValueOf():
                return [End(operand.alias, operand.attribute)]
            case CallOf():
                function = self._ontology.functions[operand.function]
                pairs = zip(operand.aliases, function.of, strict=True)
                return [End(alias, attribute) for alias, (_, attribute) in pairs]

    # Who satisfies the constraints of an alias.

    def instances(self, alias: str) -> list[str]:
        """The instances of the tables that satisfy the alias's constraints."""
        ids = self._pull.instances(self.concept(alias)).ids
        return [identity for identity in ids if self.satisfies(alias, identity)]

    def satisfies(self, alias: str, identity: str) -> bool:
        """Nothing missing satisfies a constraint."""
        for wanted in self._wanted[alias]:
            value = self._in_tables(self.concept(alias), wanted.attribute, identity)
            if value is None:
                return False
            if not _COMPARE[wanted.operator](value[0], _like(value[0], wanted.value)):
                return False
        return True

    # Whether it holds.

    def truth(self, key: RelationKey, bindings: Mapping[str, str], events: Events) -> bool | None:
        """None: unknown, because an end has no reading or a comparison misses a value. What a
        relationship misses makes it false.
        """
        if any(end not in events for end in self.event_ends(key)):
            return None
        if isinstance(key, TermKey):
            return self._term_holds(key, bindings, events)
        left = self._operand(key.left, bindings, events)
        right = self._operand(key.right, bindings, events)
        if left is None or right is None:
            return None
        return bool(_COMPARE[key.operator](*_alike(left, right, key)))

    def _term_holds(self, key: TermKey, bindings: Mapping[str, str], events: Events) -> bool:
        relationship = self._relationship(key)
        first, second = (self._value(end, bindings, events) for end in self.ends(key))
        if first is None or second is None:
            return False
        if self._is_reversed(key):
            first, second = second, first
        return holds(relationship.function, first, second, _metres(key.parameter))

    def _operand(self, operand: Operand, bindings: Mapping[str, str], events: Events) -> Any:
        """A number, a text or a truth; None when it is missing."""
        if isinstance(operand, Constant):
            return operand.value
        ends = self._ends_of(operand)
        found = [self._value(end, bindings, events) for end in ends]
        values = [value for value in found if value is not None]
        if len(values) < len(ends):
            return None
        if isinstance(operand, ValueOf):
            return values[0][0]
        function = self._ontology.functions[operand.function]
        if not function.measure:
            return self._pull.pairs(function.name).get(tuple(value[0] for value in values))
        number = measured(function.measure, values)
        return None if math.isnan(number) else number

    def _value(self, end: End, bindings: Mapping[str, str], events: Events) -> Value | None:
        if self.stream(end) is not None:
            return _complete(events[end].value)
        if end.attribute == "id":
            return (bindings[end.alias],)
        return self._in_tables(self.concept(end.alias), end.attribute, bindings[end.alias])

    def _in_tables(self, concept: str, attribute: str, identity: str) -> Value | None:
        instances = self._pull.instances(concept)
        row = instances.row(identity)
        if row < 0 or attribute not in instances.columns:
            return None
        value = instances.columns[attribute][row]
        return _complete(tuple(value) if getattr(value, "ndim", 0) else (value,))

    def _relationship(self, key: TermKey) -> Relationship:
        """The one between these two concepts, in either order."""
        wanted = _plain(key.function)
        named = [one for one in self._ontology.relationships.values() if _plain(one.name) == wanted]
        concepts = self.concept(key.first), self.concept(key.second)
        fitting = [one for one in named if (one.first[0], one.second[0]) == concepts]
        return fitting[0] if fitting else named[0]

    def _is_reversed(self, key: TermKey) -> bool:
        relationship = self._relationship(key)
        concepts = self.concept(key.first), self.concept(key.second)
        return concepts != (relationship.first[0], relationship.second[0])


def _constraints(definition: ConceptDef, ontology: Ontology) -> list[Constraint | Property]:
    kind = ontology.kinds.get(definition.concept)
    units = ontology.units.get(kind.concept if kind else definition.concept, {})
    own = [_in_root(one, units.get(one.attribute, "")) for one in definition.properties]
    return [*(kind.constraints if kind else ()), *own]


def _in_root(item: Property, unit: str) -> Property:
    """The property with its number in root's unit."""
    if isinstance(item.value, str) or item.unit == unit:
        return item
    value = converter(item.unit, unit).apply(float(item.value))
    return msgspec.structs.replace(item, value=value, unit=unit)


def _plain(name: str) -> str:
    """Names of relationships are the same without case, `_`, `-` and a last `of`."""
    return re.sub(r"[\s_-]+", " ", name.casefold()).removesuffix(" of")


def _complete(value: Value) -> Value | None:
    missing = any(part is None or (isinstance(part, float) and math.isnan(part)) for part in value)
    return None if missing else value


def _alike(left: Any, right: Any, key: ComparisonKey) -> tuple[Any, Any]:
    """Both in one type: a constant is written as text or number and takes that of the other."""
    if isinstance(key.left, Constant):
        return _like(right, left), right
    if isinstance(key.right, Constant):
        return left, _like(left, right)
    return left, right


def _like(value: Any, constant: str | float) -> Any:
    """The constant in the type of the value: `true` for booleans, numbers for numbers."""
    if isinstance(value, bool):
        return str(constant).lower() in ("true", "yes", "1.0")
    if isinstance(value, str):
        return str(constant)
    return float(constant)


def _metres(parameter: str) -> float | None:
    if not parameter:
        return None
    found = re.fullmatch(r"([0-9.]+)([a-z]*)", parameter.lower())
    assert found is not None, parameter
    return float(found[1]) * _METRES[found[2] or "m"]
