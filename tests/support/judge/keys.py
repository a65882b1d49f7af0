"""What a condition is made of, without places, so that the same thing said twice is the same thing:
terms, comparisons with constants in root's units, `for` and `no`. [PO-4, PO-7]
"""

from __future__ import annotations

import msgspec

from rapport.core.errors import InvalidInput
from rapport.policy import measures
from rapport.policy.language import tree as written
from rapport.policy.language.tree import Operator, PolicyTree
from rapport.policy.ontology import Ontology
from rapport.units.quantities import converter


class TermKey(msgspec.Struct, frozen=True):
    """A relationship between two aliases, whether negated or not."""

    first: str
    function: str
    second: str
    parameter: str
    window: int | None = None
    """Of a correlation: how far its two events may lie apart."""


class Constant(msgspec.Struct, frozen=True, tag=True):
    """In root's unit."""

    value: str | float


class ValueOf(msgspec.Struct, frozen=True, tag=True):
    """`temperature of S`."""

    alias: str
    attribute: str


class CallOf(msgspec.Struct, frozen=True, tag=True):
    """`distance(A, B)`."""

    function: str
    aliases: tuple[str, ...]


Operand = Constant | ValueOf | CallOf


class ComparisonKey(msgspec.Struct, frozen=True):
    """Two operands compared, whether negated or not."""

    left: Operand
    operator: Operator
    right: Operand
    window: int | None = None


RelationKey = TermKey | ComparisonKey


class Stated(msgspec.Struct, frozen=True):
    """A relationship or comparison within a `for`."""

    key: RelationKey
    negated: bool


class AllOf(msgspec.Struct, frozen=True):
    """AND within a `for`."""

    parts: tuple[State, ...]


class AnyOf(msgspec.Struct, frozen=True):
    """OR within a `for`."""

    parts: tuple[State, ...]


State = Stated | AllOf | AnyOf


class LastingKey(msgspec.Struct, frozen=True):
    """`C for D`."""

    state: State
    duration: int


class SilentKey(msgspec.Struct, frozen=True):
    """`no X of S for D`; the attribute is empty for `no event of S`."""

    attribute: str
    alias: str
    duration: int


Key = TermKey | ComparisonKey | LastingKey | SilentKey


class Keys:
    """Reads the parts of one policy."""

    def __init__(self, tree: PolicyTree, ontology: Ontology) -> None:
        self._ontology = ontology
        self._concepts = concepts_of(tree, ontology)

    def of(self, part: written.Atomic) -> Key:
        """The part without its place and without its negation."""
        match part:
            case written.Term():
                parameter = part.parameter.replace(" ", "")
                return TermKey(part.first, part.function.lower(), part.second, parameter)
            case written.Comparison():
                return self._comparison(part)
            case written.DurationCondition():
                return LastingKey(self._state(part.inner), part.duration_ms)
            case written.SilenceCondition():
                return SilentKey(part.attribute, part.alias, part.duration_ms)

    def _comparison(self, part: written.Comparison) -> ComparisonKey:
        left, right = self._operand(part.left, part.right), self._operand(part.right, part.left)
        return ComparisonKey(left, part.operator, right)

    def _operand(self, operand: written.Measured, other: written.Measured) -> Operand:
        match operand:
            case written.Quantity():
                return Constant(self._in_root(operand, self._unit(other)))
            case written.AttributeOf():
                return ValueOf(operand.alias, operand.attribute)
            case written.Call():
                return CallOf(operand.function, operand.aliases)

    def _in_root(self, constant: written.Quantity, unit: str) -> str | float:
        if isinstance(constant.value, str) or constant.unit == unit:
            return constant.value
        return converter(constant.unit, unit).apply(float(constant.value))

    def _unit(self, operand: written.Measured) -> str:
        """The unit of a measured operand in root, empty where it has none."""
        match operand:
            case written.AttributeOf():
                units = self._ontology.units.get(self._concepts[operand.alias], {})
                return units.get(operand.attribute, "")
            case written.Call():
                function = self._ontology.functions[operand.function]
                measure = measures.get(function.measure).unit if function.measure else ""
                return function.unit or measure
            case written.Quantity():
                return ""

    def _state(self, inner: written.Expression) -> State:
        match inner:
            case written.And(parts):
                return AllOf(tuple(self._state(part) for part in parts))
            case written.Or(parts):
                return AnyOf(tuple(self._state(part) for part in parts))
            case written.Term() | written.Comparison():
                key = self.of(inner)
                assert isinstance(key, RelationKey)
                return Stated(key, inner.negated)
            case _:
                raise InvalidInput("not a state", code="policy.not_a_state")


def concepts_of(tree: PolicyTree, ontology: Ontology) -> dict[str, str]:
    """The concept of each alias; `employee` may be a kind of person."""
    kinds = ontology.kinds
    return {
        one.alias: kinds[one.concept].concept if one.concept in kinds else one.concept
        for one in tree.concepts
    }


def stated_in(state: State) -> list[Stated]:
    """The relationships and comparisons of a state, in the order written."""
    if isinstance(state, Stated):
        return [state]
    return [one for part in state.parts for one in stated_in(part)]
