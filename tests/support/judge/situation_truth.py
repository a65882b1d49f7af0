"""Whether the conditions of a situation are true, false or unknown at an instant, and which
readings show it. [SI-2, SI-4, SI-6, SI-8]

`X for D` looks at every instant at which X can change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from rapport.core.detection import Cause, identity_order
from rapport.core.errors import InvalidInput
from rapport.policy import relations
from rapport.policy.language.situation_tree import (
    Aggregate,
    AndOf,
    Between,
    Condition,
    Lasting,
    Not,
    OneOf,
    OrOf,
    Quantified,
    RelationshipAtom,
    Silence,
    TimeOfDay,
    Value,
    ValueComparison,
)
from rapport.policy.language.tree import AttributeOf, Property, Quantity
from rapport.policy.ontology import resolve_kind
from rapport.policy.plan import Constraint
from rapport.units.quantities import converter
from support.judge import clock_times
from support.judge.areas import holds
from support.judge.holding import Reading
from support.judge.situation_reads import (
    AttributeRead,
    aggregates_in,
    aliases_named,
    concept_named,
    concepts_quantified,
    parts_of,
    present_reads,
    related,
    scope_inside,
    values_in,
)
from support.judge.situation_units import ValueSort, common_sort, sort_of
from support.judge.situation_values import Binding, BoundInstance, Number, NumberRange, Values
from support.judge.situation_world import KnownRecord

Truth = bool | None
"""None: unknown."""
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    ">": lambda left, right: left > right,
    "<=": lambda left, right: left <= right,
    ">=": lambda left, right: left >= right,
}


class Truths:
    """The truth of conditions over one world, for any binding and instant."""

    def __init__(self, world: KnownRecord) -> None:
        self.world = world
        self.values = Values(world, self._is_true_at)
        self._timelines: dict[object, tuple[list[int], list[Truth]]] = {}
        self._fitting: dict[object, bool] = {}
        self._instants: dict[int, frozenset[int]] = {}
        self._named: dict[int, set[str]] = {}
        self._reads: dict[int, set[AttributeRead]] = {}
        self._sorts: dict[int, ValueSort] = {}
        """By the identity of a condition of the tree, like `_instants`."""

    def truth(
        self, condition: Condition, binding: Binding, t: int, at: Reading | None = None
    ) -> Truth:
        """At t; with the value of the reading `at` instead of its attribute's present value."""
        match condition:
            case AndOf(parts):
                return kleene_and(self.truth(part, binding, t, at) for part in parts)
            case OrOf(parts):
                return negated(
                    kleene_and(negated(self.truth(part, binding, t, at)) for part in parts)
                )
            case Not(part):
                return negated(self.truth(part, binding, t, at))
            case Lasting():
                return self._lasting(condition, binding, t, at)
            case _:
                return self._atom(condition, binding, t, at)

    def _aliases(self, condition: Condition) -> set[str]:
        if id(condition) not in self._named:
            self._named[id(condition)] = aliases_named(condition)
        return self._named[id(condition)]

    # Rule 2: atoms.

    def _atom(self, atom: Condition, binding: Binding, t: int, at: Reading | None) -> Truth:
        if t < self.world.start:
            return None
        named = (binding[alias] for alias in self._aliases(atom))
        if not all(self.world.is_known(one.concept, one.identity, t) for one in named):
            return None
        match atom:
            case Quantified():
                return self._quantified(atom, binding, t, at)
            case Silence():
                return self._silent(atom, binding[atom.alias], t)
            case TimeOfDay():
                days = self.world.tables_at(t).days
                return clock_times.shows(atom, t, atom.zone or self.world.zone, days)
            case RelationshipAtom():
                return self._related(atom, binding, t, at)
            case ValueComparison() | Between() | OneOf():
                return self._compared(atom, binding, t, at)
            case _:
                raise AssertionError(atom)

    def _silent(self, atom: Silence, bound: BoundInstance, t: int) -> bool:
        concept, identity = bound
        names = [atom.attribute] if atom.attribute else self.world.event_attributes(concept)
        times = [
            reading.time
            for name in names
            for reading in self.world.of(concept, name, identity)
            if reading.time <= t
        ]
        since = max(times) if times else self.world.known_since(concept, identity, t)
        return t >= since + atom.duration_ms

    def _related(
        self, atom: RelationshipAtom, binding: Binding, t: int, at: Reading | None
    ) -> Truth:
        sides = related(atom, _concepts(binding), self.world.ontology)
        relation = relations.get(sides.function)
        first, second = (
            self.values.present(side.alias, side.attribute, binding, t, at) for side in sides[1:]
        )
        if first is None or second is None:
            return None
        parameter = None
        if relation.parameter_kind != "none":
            parameter = relations.parse_parameter(atom.parameter, relation.parameter_kind)
        return holds(sides.function, first.value, second.value, parameter)

    def _compared(
        self,
        atom: ValueComparison | Between | OneOf,
        binding: Binding,
        t: int,
        at: Reading | None,
    ) -> Truth:
        sides = _sides(atom)
        if self._is_plain(sides, binding):
            plain = [self.values.plain(side, binding, t, at) for side in sides]
            if any(value is None for value in plain):
                return None
            return _plain_holds(atom, [_alike(value, plain) for value in plain])
        if id(atom) not in self._sorts:
            concepts = _concepts(binding)
            sorts = [sort_of(side, concepts, self.world.ontology) for side in sides]
            self._sorts[id(atom)] = common_sort(sorts)
        sort = self._sorts[id(atom)]
        numbers = [self.values.number(side, sort, binding, t, at) for side in sides]
        known = [number for number in numbers if number is not None]
        return _numbers_hold(atom, known) if len(known) == len(numbers) else None

    def _is_plain(self, sides: list[Value], binding: Binding) -> bool:
        """Whether texts or truth values are compared."""
        for side in sides:
            if isinstance(side, Quantity) and isinstance(side.value, str):
                return True
            if isinstance(side, AttributeOf):
                concept = binding[side.alias].concept
                types = self.world.ontology.concepts[concept]
                if side.attribute == "id" or types[side.attribute] != "number":
                    return True
        return False

    # Rule 2: `for`.

    def _lasting(self, condition: Lasting, binding: Binding, t: int, at: Reading | None) -> Truth:
        times, truths = self._timeline(condition.part, binding)
        first = bisect_right(times, t - condition.duration_ms) - 1
        met = [self.truth(condition.part, binding, t, at)]
        if first < 0:
            met.append(None)  # before the start
        for time, truth in zip(times[max(first, 0) :], truths[max(first, 0) :], strict=True):
            if time < t:
                met.append(truth)
        if False in met:
            return False
        return None if None in met else True

    def _timeline(self, condition: Condition, binding: Binding) -> tuple[list[int], list[Truth]]:
        """Every instant at which the truth may have changed, and the truth from it on."""
        quantified = concepts_quantified(condition, self.world.ontology)
        named = self._aliases(condition)
        of_it = {
            (alias, bound)
            for alias, bound in binding.items()
            if alias in named or bound.concept in quantified
        }
        key = (id(condition), frozenset(of_it))
        if key not in self._timelines:
            instants = self.world.within(self.instants(condition))
            truths = [self.truth(condition, binding, t) for t in instants]
            self._timelines[key] = instants, truths
        return self._timelines[key]

    # Rule 2: quantifiers.

    def _quantified(self, atom: Quantified, binding: Binding, t: int, at: Reading | None) -> Truth:
        if self._misses_outside(atom, binding, t, at):
            return None
        number = len(self._counting(atom, binding, t, at))
        match atom.quantifier:
            case "some":
                return number >= 1
            case "no":
                return number == 0
            case "at least":
                return number >= atom.number
            case "at most":
                return number <= atom.number

    def _misses_outside(
        self, atom: Quantified, binding: Binding, t: int, at: Reading | None
    ) -> bool:
        """Whether a present value or an aggregate of an alias bound outside is unknown."""
        if id(atom) not in self._reads:
            concepts = scope_inside(atom, _concepts(binding), self.world.ontology)
            self._reads[id(atom)] = present_reads(atom.condition, concepts, self.world.ontology)
        for alias, _concept, attribute in _of_outside(self._reads[id(atom)], binding):
            if self.values.present(alias, attribute, binding, t, at) is None:
                return True
        for value in aggregates_in(atom.condition):
            is_outside = isinstance(value.of, AttributeOf) and value.of.alias in binding
            if is_outside and self.values.aggregate(value, binding, t) is None:
                return True
        return False

    def _counting(
        self, atom: Quantified, binding: Binding, t: int, at: Reading | None
    ) -> list[str]:
        """The instances that count, in the order of ids."""
        concept = concept_named(atom.concept, self.world.ontology)
        taken = {bound.identity for bound in binding.values() if bound.concept == concept}
        wanted = self.world.identities(concept) - taken
        return [
            identity
            for identity in sorted(wanted, key=identity_order)
            if self.may_be(atom.concept, atom.properties, identity, t)
            and self.truth(atom.condition, _with(binding, atom.alias, concept, identity), t, at)
            is True
        ]

    def may_be(self, concept: str, properties: tuple[Property, ...], identity: str, t: int) -> bool:
        """Whether an identity is known at t and satisfies the properties; nothing missing does."""
        key = (concept, properties, identity, t)
        if key not in self._fitting:
            self._fitting[key] = self._may_be(*key)
        return self._fitting[key]

    def _may_be(
        self, concept: str, properties: tuple[Property, ...], identity: str, t: int
    ) -> bool:
        kind = resolve_kind(self.world.ontology, concept)
        assert kind is not None, concept
        if not self.world.is_known(kind.concept, identity, t):
            return False
        units = self.world.ontology.units.get(kind.concept, {})
        own = [_in_canonical_unit(one, units.get(one.attribute, "")) for one in properties]
        for wanted in (*kind.constraints, *own):
            found = self.world.table_value(kind.concept, wanted.attribute, identity, t)
            if wanted.attribute == "id":
                found = (identity,)
            if found is None:
                return False
            value, constant = found[0], _alike(wanted.value, [found[0]])
            if not _COMPARE[wanted.operator](value, constant):
                return False
        return True

    # Rule 3: counts of terms.

    def _is_true_at(self, term: Condition, binding: Binding, reading: Reading) -> bool:
        return self.truth(term, binding, reading.time, reading) is True

    # Rule 6: causes.

    def causes(
        self, condition: Condition, binding: Binding, t: int, *, wanted: bool = True
    ) -> set[Cause]:
        """Those of all atoms whose truth, with the NOTs before it, is true."""
        match condition:
            case Not(part):
                return self.causes(part, binding, t, wanted=not wanted)
            case Lasting() if self.truth(condition, binding, t) is False:
                return set()
            case AndOf() | OrOf() | Lasting():
                parts = parts_of(condition)
                return set().union(
                    *(self.causes(part, binding, t, wanted=wanted) for part in parts)
                )
        if self.truth(condition, binding, t) is not wanted:
            return set()
        if isinstance(condition, Quantified):
            return self._causes_of_quantified(condition, binding, t)
        return {reading.cause for reading in self._readings_shown(condition, binding, t)}

    def _causes_of_quantified(self, atom: Quantified, binding: Binding, t: int) -> set[Cause]:
        if atom.quantifier in ("no", "at most"):
            return set()
        concept = concept_named(atom.concept, self.world.ontology)
        first = self._counting(atom, binding, t, None)[: atom.number]
        return set().union(
            *(
                self.causes(atom.condition, _with(binding, atom.alias, concept, identity), t)
                for identity in first
            )
        )

    def _readings_shown(self, atom: Condition, binding: Binding, t: int) -> list[Reading]:
        """The present readings that an atom compares, and the newest of each aggregate."""
        found: list[Reading] = []
        for alias, _concept, attribute in present_reads(
            atom, _concepts(binding), self.world.ontology
        ):
            present = self.values.present(alias, attribute, binding, t)
            if present is not None and present.reading is not None:
                found.append(present.reading)
        for value in values_in(atom):
            if isinstance(value, Aggregate):
                found += self.values.readings_of(value, binding, t)[-1:]
        return found

    # When it can change.

    def instants(self, condition: Condition) -> frozenset[int]:
        """Every instant at which the truth of a condition can change, for any binding."""
        if id(condition) not in self._instants:
            self._instants[id(condition)] = frozenset(self._find_instants(condition))
        return self._instants[id(condition)]

    def _find_instants(self, condition: Condition) -> set[int]:
        found = self.world.changes()
        for part in parts_of(condition):
            found |= self.instants(part)
        spans: set[int] = set()
        match condition:
            case Lasting() | Silence():
                spans.add(condition.duration_ms)
            case TimeOfDay():
                zone = condition.zone or self.world.zone
                found |= clock_times.edges(condition, self.world.start, self.world.end, zone)
        for value in values_in(condition):
            if isinstance(value, Aggregate):
                spans.add(value.window_ms)
        return found | {t + span for t in found for span in spans}


def kleene_and(truths: Iterable[Truth]) -> Truth:
    met = list(truths)
    if False in met:
        return False
    return None if None in met else True


def negated(truth: Truth) -> Truth:
    return None if truth is None else not truth


def _concepts(binding: Binding) -> dict[str, str]:
    return {alias: bound.concept for alias, bound in binding.items()}


def _with(binding: Binding, alias: str, concept: str, identity: str) -> Binding:
    return {**binding, alias: BoundInstance(concept, identity)}


def _of_outside(reads: Iterable[AttributeRead], binding: Binding) -> list[AttributeRead]:
    return [read for read in reads if read.alias in binding]


def _sides(atom: ValueComparison | Between | OneOf) -> list[Value]:
    match atom:
        case ValueComparison(left, _, right):
            return [left, right]
        case Between(value, low, high):
            if isinstance(low, Quantity) and isinstance(high, Quantity) and not low.unit:
                low = msgspec.structs.replace(low, unit=high.unit)  # it stands once, after `high`
            return [value, low, high]
        case OneOf(value, choices):
            return [value, *choices]


def _alike(value: Any, others: list[Any]) -> Any:
    """A constant, written as text or number, in the type of what it is compared with."""
    if any(isinstance(other, bool) for other in others) and isinstance(value, str):
        return value.lower() in ("true", "yes")
    return value


def _plain_holds(atom: ValueComparison | Between | OneOf, values: list[Any]) -> bool:
    match atom:
        case ValueComparison(_, operator, _):
            return _COMPARE[operator](values[0], values[1])
        case OneOf():
            return values[0] in values[1:]
        case Between():
            raise InvalidInput("a text has no order", code="policy.bad_comparison")


def _numbers_hold(atom: ValueComparison | Between | OneOf, numbers: list[Number]) -> Truth:
    match atom:
        case ValueComparison(_, operator, _):
            return _compare(numbers[0], operator, numbers[1])
        case OneOf():
            choices = [_compare(numbers[0], "=", choice) for choice in numbers[1:]]
            return negated(kleene_and(map(negated, choices)))
        case Between():
            value, low, high = numbers
            if _compare(low, "<=", high) is False:
                return False
            return kleene_and([_compare(low, "<=", value), _compare(value, "<=", high)])


def _compare(left: Number, operator: str, right: Number) -> Truth:
    """Of a count that is a lower bound: true or false if it is so for every such number."""
    if not isinstance(left, NumberRange) and not isinstance(right, NumberRange):
        return _COMPARE[operator](left, right)
    one = left if isinstance(left, NumberRange) else NumberRange(left, left)
    other = right if isinstance(right, NumberRange) else NumberRange(right, right)
    match operator:
        case "<":
            return True if one.high < other.low else False if one.low >= other.high else None
        case "<=":
            return True if one.high <= other.low else False if one.low > other.high else None
        case ">" | ">=":
            return _compare(right, "<" if operator == ">" else "<=", left)
        case "=":
            if one.low == one.high == other.low == other.high:
                return True  # such as nothing times a count
            return False if one.high < other.low or other.high < one.low else None
        case _:
            return negated(_compare(left, "=", right))


def _in_canonical_unit(item: Property, unit: str) -> Constraint:
    value = item.value
    if not isinstance(value, str) and item.unit != unit:
        value = converter(item.unit, unit).apply(float(value))
    return Constraint(item.attribute, item.operator, value)
