"""Checks a policy with a situation against the ontology and makes its plan; the same for
the guard of a policy with conditions. [SI-1 to SI-9]

Every fault comes with the nearest known name. A condition with a fault has no plan, and the others
are checked nevertheless.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal, cast

import msgspec

from rapport.core.errors import InvalidInput
from rapport.core.times import zone_named
from rapport.policy import relations
from rapport.policy.compiler.check import (
    ComparisonCheck,
    ComparisonFault,
    TermCheck,
    check_definition,
    check_silence,
)
from rapport.policy.compiler.measured_values import (
    ReportedFault,
    ValueChecker,
    ValueType,
    check_comparable,
    constant_for,
    shared_unit,
)
from rapport.policy.compiler.normal_form import term_atom
from rapport.policy.compiler.planner import deliveries_of
from rapport.policy.compiler.scope import Scope
from rapport.policy.language import situation_tree as written
from rapport.policy.language.diagnostics import Diagnostics, did_you_mean
from rapport.policy.language.situation_printer import print_situation_condition
from rapport.policy.language.situation_tree import SituationTree, Value, named_aliases
from rapport.policy.language.tree import (
    AttributeOf,
    ConceptDef,
    Operator,
    PolicyTree,
    Quantity,
    SilenceCondition,
    SourceSpan,
    Term,
)
from rapport.policy.ontology import Ontology
from rapport.policy.plan import Constraint, Plan
from rapport.policy.situation_plan import (
    AggregateValue,
    AllOf,
    AnyPart,
    BoundAlias,
    ComparedValues,
    Condition,
    CountedInstances,
    CountedTerm,
    DayRange,
    FixedValue,
    Negation,
    PresentValue,
    RelatedInstances,
    SilentStream,
    SituationPlan,
    Sustained,
    TableDays,
    TimeWindow,
    YearDay,
    counted_aliases,
    inner_nodes,
)
from rapport.policy.situation_plan import Value as PlanValue

DEFAULT_ZONE = "UTC"


def plan_situation(
    tree: SituationTree, ontology: Ontology, faults: Diagnostics
) -> SituationPlan | None:
    """The plan of a policy with a situation; None with every fault added."""
    planner = ConditionPlanner(tree.concepts, ontology, faults)
    aliases = [planner.bound(concept) for concept in tree.concepts]
    distinct = _distinct(tree, planner.scope, faults)
    situation = planner.planned(tree.situation)
    cleared_by = None if tree.cleared_by is None else planner.planned(tree.cleared_by)
    if faults.has_errors():
        return None
    assert situation is not None, "without a fault there is a plan"
    return SituationPlan(
        policy=tree.name,
        aliases=tuple(aliases),
        situation=situation,
        cleared_by=cleared_by,
        distinct=distinct,
        once_per_ms=tree.once_per_ms,
        actions=tuple(action.phrase for action in tree.actions),
        deliveries=deliveries_of(tree.actions),
        cleared_actions=tuple(action.phrase for action in tree.cleared_actions),
        cleared_deliveries=deliveries_of(tree.cleared_actions),
    )


def plan_guard(tree: PolicyTree, plan: Plan, ontology: Ontology, faults: Diagnostics) -> Plan:
    """The plan with the guard of its policy; adds faults."""
    if tree.guard is None:
        return plan
    bound = plan.always_bound()
    named = set()
    for alias, place in named_aliases(tree.guard):
        named.add(alias)
        if alias not in bound:
            message = f"no detection says which {alias!r} it is about"
            hint = f"add a condition that {alias} takes part in, or write here: "
            hint += f"some ... {alias} with (...)"
            faults.add("policy.unbound_alias", message, place, hint=hint)
    planner = ConditionPlanner(tree.concepts, ontology, faults)
    found = planner.planned(tree.guard)
    if found is None:
        return plan
    counted = {one.concept for one in counted_aliases([found])}
    aliases = [planner.unconstrained(one) for one in tree.concepts]
    read = [
        one
        for one in aliases
        if one.alias in named or (one.concept in counted and one.alias in plan.ever_bound())
    ]
    return msgspec.structs.replace(plan, guard=found, guard_aliases=tuple(read))


def counted_terms(
    tree: SituationTree, ontology: Ontology
) -> list[tuple[written.Aggregate, CountedTerm]]:
    """The counts of terms outside of quantifiers, as written and as planned; of a tree without
    fault.
    """
    planner = ConditionPlanner(tree.concepts, ontology, Diagnostics(tree.name, ""))
    waiting: list[written.Condition | Value] = [tree.situation]
    waiting += [] if tree.cleared_by is None else [tree.cleared_by]
    found: list[tuple[written.Aggregate, CountedTerm]] = []
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, written.Aggregate) and not isinstance(node.of, AttributeOf):
            found.append((node, planner.counted(node)))
        elif not isinstance(node, written.Quantified):
            waiting = [*written.inner_parts(node), *waiting]
    return found


def _distinct(
    tree: SituationTree, scope: Scope, faults: Diagnostics
) -> tuple[tuple[str, str], ...]:
    """All pairs of aliases of one concept, but those that may be the same."""
    same = {frozenset(pair) for pair in tree.may_be_same}
    concepts = scope.concepts
    found = []
    aliases = [each.alias for each in tree.concepts if each.alias in concepts]
    for number, first in enumerate(aliases):
        for second in aliases[number + 1 :]:
            alike = concepts[first] == concepts[second]
            if alike and frozenset((first, second)) not in same:
                found.append((first, second))
    places = {each.alias: each.alias_place for each in tree.concepts}
    for first, second in tree.may_be_same:
        if {first, second} <= concepts.keys() and concepts[first] != concepts[second]:
            message = f"{first!r} is a {concepts[first]} and {second!r} a {concepts[second]}"
            faults.add(
                "policy.bad_same",
                f"{message}, so they are never the same",
                places[second],
                hint=f"leave out: {first} and {second} may be the same",
            )
    return tuple(found)


class ConditionPlanner:
    """Checks and plans the conditions of one policy, with the aliases in scope."""

    def __init__(
        self, definitions: Collection[ConceptDef], ontology: Ontology, faults: Diagnostics
    ) -> None:
        self.definitions, self.ontology, self.faults = tuple(definitions), ontology, faults
        self.scope = Scope(self.definitions, ontology)
        names = ComparisonCheck(self.scope, self.definitions, faults)
        self.relationships = TermCheck(self.scope, self.definitions, faults)
        self.values = ValueChecker(self.scope, names, self.counted)

    def bound(self, concept: ConceptDef) -> BoundAlias:
        """The alias with its constraints; adds faults."""
        constraints: tuple[Constraint, ...] = check_definition(
            concept, self.scope, self.faults, section="situation"
        )
        return msgspec.structs.replace(self.unconstrained(concept), constraints=constraints)

    def unconstrained(self, concept: ConceptDef) -> BoundAlias:
        """The alias without its constraints."""
        general = self.scope.concepts.get(concept.alias, concept.concept)
        names = self.scope.event_attributes(concept.alias)
        streams = tuple(f"{general}.{name}" for name in names)
        return BoundAlias(concept.alias, general, streams=streams)

    def planned(self, condition: written.Condition) -> Condition | None:
        """The condition of the plan; None with its faults added."""
        match condition:
            case written.AndOf(parts):
                found = self._parts(parts)
                return None if found is None else AllOf(found)
            case written.OrOf(parts):
                found = self._parts(parts)
                return None if found is None else AnyPart(found)
            case written.Not(part):
                inner = self.planned(part)
                return None if inner is None else Negation(inner)
            case written.Lasting(part, duration_ms):
                inner = self.planned(part)
                return None if inner is None else Sustained(inner, duration_ms)
            case written.Quantified():
                return self._quantified(condition)
            case written.Silence():
                return self._silence(condition)
            case written.TimeOfDay():
                return self._time(condition)
            case written.RelationshipAtom():
                return self._relationship(condition)
            case _:
                return self._compared(condition)

    def _parts(self, parts: Iterable[written.Condition]) -> tuple[Condition, ...] | None:
        found = [self.planned(part) for part in parts]
        kept = tuple(part for part in found if part is not None)
        return kept if len(kept) == len(found) else None

    # --- comparisons ---

    def _compared(
        self, condition: written.ValueComparison | written.Between | written.OneOf
    ) -> Condition | None:
        if not self._concepts_known():
            return None
        try:
            match condition:
                case written.ValueComparison(left, operator, right):
                    return self._comparison(left, operator, right, condition.place)
                case written.Between():
                    return self._between(condition)
                case written.OneOf():
                    return self._one_of(condition)
        except ComparisonFault as fault:
            place = fault.place or condition.place
            self.faults.add(fault.code, str(fault), place, hint=fault.hint)
        except ReportedFault:
            pass
        return None

    def _concepts_known(self) -> bool:
        """False if the definition of an alias has a fault already."""
        return all(each.alias in self.scope.concepts for each in self.definitions)

    def _between(self, condition: written.Between) -> Condition:
        low, high = condition.low, condition.high
        if isinstance(low, Quantity) and isinstance(high, Quantity):
            bare = not low.unit and not isinstance(low.value, str)
            if bare and not isinstance(high.value, str):
                low = msgspec.structs.replace(low, unit=high.unit)
        place = condition.place
        parts = (
            self._comparison(condition.value, ">=", low, place),
            self._comparison(condition.value, "<=", high, place),
        )
        constant_ends = all(isinstance(part.right, FixedValue) for part in parts)
        if constant_ends and _is_empty(parts):
            message = f"nothing lies between {_ends(condition)}"
            hint = "the lower end stands first"
            raise ComparisonFault("policy.bad_between", message, hint, place)
        return AllOf(parts, is_atom=True)

    def _one_of(self, condition: written.OneOf) -> Condition:
        parts = tuple(
            self._comparison(condition.value, "=", choice, choice.place)
            for choice in condition.choices
        )
        return parts[0] if len(parts) == 1 else AnyPart(parts, is_atom=True)

    def _comparison(
        self, left: Value, operator: Operator, right: Value, place: SourceSpan
    ) -> ComparedValues:
        sorts = self.values.type_of(left), self.values.type_of(right)
        kinds = {sort.type for sort in sorts}
        if kinds == {"number"}:
            weight = check_comparable(*sorts, place)
            unit = shared_unit(*sorts)
            return ComparedValues(
                self.values.planned(left, unit, weight),
                operator,
                self.values.planned(right, unit, weight),
            )
        return self._other_types((left, right), operator, sorts, place)

    def _other_types(
        self,
        sides: tuple[Value, Value],
        operator: Operator,
        sorts: tuple[ValueType, ValueType],
        place: SourceSpan,
    ) -> ComparedValues:
        """Compares text with text, true or false with true or false; raises ComparisonFault."""
        constant = next((sort for sort in sorts if sort.is_constant), None)
        measured = sorts[1] if sorts[0].is_constant else sorts[0]
        if constant is None and sorts[0].type != sorts[1].type:
            shown = [f"{each.shown} is {_A_TYPE[each.type]}" for each in sorts]
            hint = "compare a number with a number, text with text"
            raise ComparisonFault("policy.wrong_type", ", but ".join(shown), hint, place)
        if measured.type != "number" and operator not in ("=", "!="):
            message = f"{measured.shown} is {_A_TYPE[measured.type]} and has no order"
            raise ComparisonFault("policy.bad_operator", message, "use 'is' or 'is not'", place)

        def made(value: Value) -> PlanValue:
            if isinstance(value, Quantity):
                return FixedValue(constant_for(value, measured))
            return self.values.planned(value, shared_unit(*sorts))

        first, second = sides
        return ComparedValues(made(first), operator, made(second))

    def counted(self, value: written.Aggregate) -> CountedTerm:
        """Plans `count of (TERM)`; raises ComparisonFault."""
        assert not isinstance(value.of, AttributeOf)
        term = self.planned(value.of)
        if term is None:
            raise ReportedFault
        nodes = list(_nodes_within(term))
        if any(isinstance(each, _NOT_COUNTED) for each in nodes):
            message = "a count is of what single readings decide"
            hint = "leave 'for', 'no ... for', 'some', 'no' and aggregates out of its parentheses"
            raise ComparisonFault("policy.bad_counted_term", message, hint, value.place)
        heard = [each for each in nodes if isinstance(each, PresentValue) and each.stream]
        aliases = list(dict.fromkeys(each.alias for each in heard))
        if len(aliases) == 1:
            return CountedTerm(aliases[0], term, value.window_ms)
        if not aliases:
            message = "nothing in this count comes as events, so there is nothing to count"
            hint = "count what readings decide, such as: count of (temperature of S above 30 degC)"
        else:
            message = f"a count is of the readings of one instance, but {' and '.join(aliases)} "
            message += "both have readings here"
            hint = "count each on its own"
        raise ComparisonFault("policy.bad_counted_term", message, hint, value.place)

    # --- other atoms ---

    def _relationship(self, condition: written.RelationshipAtom) -> RelatedInstances | None:
        before = self.faults.count
        term = self.relationships.checked(
            Term(
                condition.first,
                condition.function,
                condition.second,
                False,
                condition.parameter.replace(" ", ""),
                condition.place,
                condition.function_place,
                condition.first_place,
                condition.second_place,
            )
        )
        if self.faults.count > before or not self._concepts_known():
            return None
        declared = self.scope.relationship(term)
        kind = relations.get(declared.function).parameter_kind
        text = term_atom(term).parameter
        first, second = (
            PresentValue(end.alias, end.concept, end.attribute, end.stream)
            for end in self.scope.ends_of_term(term)
        )
        parameter = relations.parse_parameter(text, kind) if text else None
        return RelatedInstances(declared.function, first, second, parameter)

    def _silence(self, condition: written.Silence) -> SilentStream | None:
        before = self.faults.count
        silent = SilenceCondition(
            condition.attribute,
            condition.alias,
            condition.duration_ms,
            condition.place,
            condition.alias_place,
        )
        check_silence(silent, self.scope, self.faults)
        if self.faults.count > before or condition.alias not in self.scope.concepts:
            return None
        ends = self.scope.ends(silent)
        streams = tuple(end.stream for end in ends if end.stream is not None)
        return SilentStream(condition.alias, streams, condition.duration_ms)

    def _time(self, condition: written.TimeOfDay) -> TimeWindow | None:
        before = self.faults.count
        zone = condition.zone or self.ontology.zone or DEFAULT_ZONE
        try:
            zone_named(zone)
        except InvalidInput as error:
            self.faults.add("policy.unknown_zone", error.message, condition.place, hint=error.hint)
        days = tuple(self._day(day) for day in condition.days)
        if self.faults.count > before:
            return None
        whole = condition.first_minute is None or condition.end_minute is None
        first, end = (0, 1440) if whole else (condition.first_minute, condition.end_minute)
        return TimeWindow(zone, cast("int", first), cast("int", end), days)

    def _day(self, day: written.Day) -> DayRange | YearDay | TableDays:
        match day:
            case written.Weekdays(first, last):
                return DayRange(first, last)
            case written.CalendarDay(number, month):
                return YearDay(month, number)
            case written.DayTable(table, place):
                if table not in self.ontology.day_tables:
                    message = f"there is no table of days named {table!r}"
                    hint = did_you_mean(table, self.ontology.day_tables)
                    hint = hint or f'declare [tables.{table}] csv = "{table}.csv", key = "date"'
                    self.faults.add("policy.unknown_days", message, place, hint=hint)
                return TableDays(table)

    def _quantified(self, condition: written.Quantified) -> CountedInstances | None:
        own = written.quantified_concept(condition)
        inner = ConditionPlanner((*self.definitions, own), self.ontology, self.faults)
        bound = inner.bound(own)
        found = inner.planned(condition.condition)
        if found is None:
            return None
        least = condition.quantifier in ("some", "at least")
        quantifier: Literal["at least", "at most"] = "at least" if least else "at most"
        return CountedInstances(bound, quantifier, condition.number, found)


_A_TYPE = {"number": "a number", "text": "text", "boolean": "true or false"}
_NOT_COUNTED = (Sustained, SilentStream, CountedInstances, AggregateValue, CountedTerm)


def _nodes_within(term: Condition) -> Iterable[Condition | PlanValue]:
    waiting: list[Condition | PlanValue] = [term]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(inner_nodes(node))


def _is_empty(parts: tuple[ComparedValues, ComparedValues]) -> bool:
    low, high = (part.right.value if isinstance(part.right, FixedValue) else None for part in parts)
    return isinstance(low, float) and isinstance(high, float) and low > high


def _ends(condition: written.Between) -> str:
    return print_situation_condition(condition).rpartition("between ")[2]
