"""Checks names, types and units of a parsed policy against the ontology. [PO-3]

Every fault comes with the nearest known name. Constants become canonical: `86 degF` is `30 degC`
where the canonical unit is degC.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from rapport.core.errors import InvalidInput, RapportError
from rapport.core.schema import AttributeType
from rapport.core.times import format_duration
from rapport.policy import measures, relations
from rapport.policy.compiler.scope import IDENTITY, AttributeRef, Scope, aliases_of, event_names
from rapport.policy.language.diagnostics import Diagnostics, did_you_mean
from rapport.policy.language.printer import print_expression, print_term, print_value
from rapport.policy.language.tree import (
    And,
    Atomic,
    AttributeOf,
    Call,
    Comparison,
    ConceptDef,
    DurationCondition,
    Expression,
    Measured,
    Or,
    PolicyTree,
    Property,
    Quantity,
    SilenceCondition,
    SourceSpan,
    Term,
    map_children,
)
from rapport.policy.ontology import (
    Ontology,
    Relationship,
    SiteFunction,
    known_kinds,
    relationships_named,
    resolve_kind,
    why_no_kind,
)
from rapport.policy.plan import Constraint
from rapport.units.quantities import converter, unit_named

ComparedType = Literal["number", "text", "boolean"]
TRUTHS = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
"""Accepted texts for booleans and their values in plans."""
_NO_UNIT = ("", "1")
_MOST_ALIASES = 2
_MOST_EVENTS = 2


class OperandType(NamedTuple):
    """Type and unit of a measured operand, and its name in messages."""

    type: ComparedType
    unit: str
    shown: str
    place: SourceSpan


class ComparisonFault(Exception):
    """A comparison that cannot be made; `place` None means the whole comparison."""

    def __init__(self, code: str, message: str, hint: str, place: SourceSpan | None = None) -> None:
        super().__init__(message)
        self.code, self.hint, self.place = code, hint, place


def operand_type(operand: Measured, scope: Scope) -> OperandType | None:
    """Type and unit of a measured operand, None for a constant; raises ComparisonFault."""
    match operand:
        case Quantity():
            return None
        case AttributeOf(attribute, alias):
            shown = f"{attribute!r} of {alias!r}"
            concept = scope.concepts[alias]
            kind = scope.attributes_of(alias).get(attribute, "text")
            unit = scope.ontology.units.get(concept, {}).get(attribute, "")
            return OperandType(comparable(kind, shown, operand.place), unit, shown, operand.place)
        case Call(function):
            shown = f"{function}({', '.join(operand.aliases)})"
            unit = function_unit(scope.ontology.functions[function], operand.place)
            return OperandType("number", unit, shown, operand.place)


def function_unit(function: SiteFunction, place: SourceSpan | None = None) -> str:
    """The unit of a site function; raises ComparisonFault if its measure is unknown."""
    if function.unit or not function.measure:
        return function.unit
    try:
        return measures.get(function.measure).unit
    except RapportError as error:
        raise ComparisonFault(error.code, error.message, error.hint, place) from error


def canonical_constant(constant: Quantity, measured: OperandType) -> Quantity:
    """The constant in the type and unit of the measured operand; raises ComparisonFault."""
    match measured.type:
        case "text":
            return _text(constant, measured)
        case "boolean":
            return _truth(constant, measured)
        case "number":
            return _number(constant, measured)


def plan_value(constant: Quantity, kind: ComparedType) -> str | float:
    """The constant of a checked comparison as stored in plans: booleans are 1.0 and 0.0."""
    return TRUTHS[str(constant.value)] if kind == "boolean" else constant.value


def comparable(kind: AttributeType, shown: str, place: SourceSpan) -> ComparedType:
    """The type if its values can be compared with constants; raises ComparisonFault otherwise."""
    if kind in ("number", "text", "boolean"):
        return kind
    message = f"{shown} is a {kind}, not a number or a text"
    hint = "use a relationship, or a function of the site such as distance(A, B)"
    raise ComparisonFault("policy.wrong_type", message, hint, place)


def _text(constant: Quantity, measured: OperandType) -> Quantity:
    if isinstance(constant.value, str):
        return constant
    number = print_value(constant.value)
    message = f"{measured.shown} is text, but {number} is a number"
    raise ComparisonFault(
        "policy.wrong_type", message, f"put it in quotes: '{number}'", constant.place
    )


def _truth(constant: Quantity, measured: OperandType) -> Quantity:
    truth = TRUTHS.get(constant.value.lower()) if isinstance(constant.value, str) else None
    if truth is None:
        message = f"{measured.shown} is either true or false"
        hint = "write true or false, without quotes"
        raise ComparisonFault("policy.wrong_type", message, hint, constant.place)
    return msgspec.structs.replace(constant, value="true" if truth else "false")


def _number(constant: Quantity, measured: OperandType) -> Quantity:
    if isinstance(constant.value, str):
        message = f"{measured.shown} is a number, but {constant.value!r} is text"
        hint = "write a number without quotes" + (f", in {measured.unit}" if measured.unit else "")
        raise ComparisonFault("policy.wrong_type", message, hint, constant.place)
    written = f"{print_value(constant.value)} {constant.unit}".rstrip()
    if not constant.unit and measured.unit not in _NO_UNIT:
        message = f"{measured.shown} is in {measured.unit}, but {written} has no unit"
        hint = f"write: {written} {measured.unit}"
        raise ComparisonFault("policy.missing_unit", message, hint, constant.place)
    if constant.unit and not measured.unit:
        message = f"{measured.shown} has no unit in this site, but {written} has one"
        hint = f"write {print_value(constant.value)}, or declare its unit under [concepts.*.units]"
        raise ComparisonFault("policy.needless_unit", message, hint, constant.place)
    if not constant.unit:
        return constant
    return _converted(constant, measured, written)


def _converted(constant: Quantity, measured: OperandType, written: str) -> Quantity:
    assert not isinstance(constant.value, str)
    try:
        value = converter(constant.unit, measured.unit).apply(float(constant.value))
    except InvalidInput as error:
        code = "policy.unknown_unit" if error.code == "unit.unknown" else "policy.wrong_units"
        message = error.message
        if code == "policy.wrong_units":
            dimension = unit_named(constant.unit).dimension
            message = f"{measured.shown} is in {measured.unit}, but {written} is a {dimension}"
        raise ComparisonFault(code, message, error.hint, constant.place) from error
    if not math.isfinite(value):
        message = f"{written} is too large a number in {measured.unit}"
        raise ComparisonFault("policy.bad_number", message, "write a smaller one", constant.place)
    return msgspec.structs.replace(constant, value=value, unit=measured.unit)


def check_property(
    definition: ConceptDef,
    item: Property,
    scope: Scope,
    faults: Diagnostics,
    *,
    section: str = "conditions",
) -> Constraint | None:
    """The property as a constraint with a canonical constant; None if a fault was added."""
    try:
        return _constraint(definition, item, scope, section)
    except ComparisonFault as fault:
        faults.add(fault.code, str(fault), fault.place or item.place, hint=fault.hint)
        return None


def _constraint(definition: ConceptDef, item: Property, scope: Scope, section: str) -> Constraint:
    concept = scope.concepts[definition.alias]
    attributes = scope.attributes_of(definition.alias)
    kind = attributes.get(item.attribute)
    if kind is None:
        message = f"the concept {concept!r} has no attribute {item.attribute!r}"
        hint = did_you_mean(item.attribute, attributes)
        raise ComparisonFault("policy.unknown_attribute", message, hint)
    unit = scope.ontology.units.get(concept, {}).get(item.attribute, "")
    if f"{concept}.{item.attribute}" in scope.streams:
        is_comparable = kind in ("number", "text", "boolean")
        fault = _comes_as_events(definition, concept, item, unit, is_comparable=is_comparable)
        fault.hint = fault.hint.replace("in the conditions", f"in the {section}")
        raise fault
    shown = repr(item.attribute)
    sort = OperandType(comparable(kind, shown, item.place), unit, shown, item.place)
    constant = canonical_constant(item.constant, sort)
    if kind != "number" and item.operator not in ("=", "!="):
        what = "text" if kind == "text" else "true or false"
        message = f"{shown} is {what} and has no order"
        raise ComparisonFault("policy.bad_operator", message, "use = or !=")
    return Constraint(item.attribute, item.operator, plan_value(constant, sort.type))


def _comes_as_events(
    definition: ConceptDef, concept: str, item: Property, unit: str, *, is_comparable: bool
) -> ComparisonFault:
    """The fault for a property of an attribute that events bring: it must be a condition."""
    message = f"{item.attribute!r} of {concept!r} comes as events, so it is no lasting property"
    hint = "use it in a relationship, in the conditions"
    if is_comparable:
        measured = AttributeOf(item.attribute, definition.alias, item.place, item.place)
        constant = item.constant
        if unit and not constant.unit and not isinstance(constant.value, str):
            constant = msgspec.structs.replace(constant, unit=unit)
        meant = Comparison(measured, item.operator, constant, False, item.place)
        hint = f"take it out here, and in the conditions write: {print_expression(meant)}"
    return ComparisonFault("policy.event_property", message, hint)


class _NameCheck:
    """The aliases of one policy."""

    def __init__(
        self, scope: Scope, definitions: Sequence[ConceptDef], faults: Diagnostics
    ) -> None:
        self.scope, self.faults = scope, faults
        self._aliases = frozenset(definition.alias for definition in definitions)

    def is_defined(self, alias: str, place: SourceSpan) -> bool:
        """True if the policy defines the alias; else adds a fault with the nearest one."""
        if alias not in self._aliases:
            hint = did_you_mean(alias, self._aliases)
            self.faults.add(
                "policy.unknown_alias", f"there is no alias {alias!r}", place, hint=hint
            )
        return alias in self._aliases

    def _fitting(self, concepts: Iterable[str]) -> str:
        """The aliases of each concept, for a hint."""
        found = {
            concept: [alias for alias, of in self.scope.concepts.items() if of == concept]
            for concept in concepts
        }
        return "; ".join(f"{name}: {', '.join(own) or 'none'}" for name, own in found.items())


class TermCheck(_NameCheck):
    """Checks the relationships of one policy."""

    def checked(self, term: Term) -> Term:
        """The term with the declared name, order of aliases and base unit; unchanged if faults were
        added."""
        known = [
            self.is_defined(term.first, term.first_place),
            self.is_defined(term.second, term.second_place),
        ]
        declared = self._declared(term)
        if not declared or not all(known):
            return term
        if term.first == term.second:
            self.faults.add(
                "policy.same_alias",
                f"{term.first!r} stands on both sides",
                term.second_place,
                hint="define a second alias of the same concept",
            )
            return term
        try:
            return self._ordered(term, declared)
        except RapportError as error:
            self.faults.add(error.code, error.message, term.function_place, hint=error.hint)
            return term

    def _declared(self, term: Term) -> list[Relationship]:
        """All relationships of that name; adds a fault if there are none."""
        declared = relationships_named(self.scope.ontology, term.function)
        if not declared:
            names = [each.name for each in self.scope.ontology.relationships.values()]
            message = f"there is no relationship named {term.function!r}"
            # Includes negations, so that the hint for a misspelt NOT keeps it.
            hint = did_you_mean(term.function, [*names, *(f"not {name}" for name in names)])
            self.faults.add("policy.unknown_relationship", message, term.function_place, hint=hint)
        return declared

    def _ordered(self, term: Term, declared: list[Relationship]) -> Term:
        """Orders the aliases as in the declaration that fits their concepts."""
        known = self.scope.concepts
        if term.first not in known or term.second not in known:
            return term  # reported with the definition
        concepts = (known[term.first], known[term.second])
        term = msgspec.structs.replace(term, function=declared[0].name)
        turned = msgspec.structs.replace(term, first=term.second, second=term.first)
        fitting = {(each.first[0], each.second[0]): each for each in declared}
        if concepts in fitting:
            return self._with_parameter(term, fitting[concepts])
        other = fitting.get(concepts[::-1])
        if other is not None and relations.get(other.function).symmetric:
            return self._with_parameter(turned, other)
        between = ", or between ".join(_two(pair) for pair in fitting)
        message = f"{term.function!r} is between {between}, not between {_two(concepts)}"
        names = (name for pair in fitting for name in pair)
        hint = f"aliases of fitting concepts are {self._fitting(names)}"
        if other is not None:
            hint = f"write: {print_term(turned)}"
        self.faults.add("policy.wrong_concepts", message, term.place, hint=hint)
        return term

    def _with_parameter(self, term: Term, relationship: Relationship) -> Term:
        kind = relations.get(relationship.function).parameter_kind
        if kind == "none":
            if term.parameter:
                message = f"{relationship.name!r} takes no parameter"
                hint = f"leave {term.parameter!r} out"
                self.faults.add(
                    "policy.needless_parameter", message, term.function_place, hint=hint
                )
            return term
        if not term.parameter:
            example = "5m of" if kind == "length" else "5"
            message = f"{relationship.name!r} needs a {kind}"
            hint = f"write: {relationship.name} {example} {term.second}"
            self.faults.add("policy.missing_parameter", message, term.function_place, hint=hint)
            return term
        try:
            value = relations.parse_parameter(term.parameter, kind)
        except InvalidInput as error:
            self.faults.add(
                "policy.bad_parameter", error.message, term.function_place, hint=error.hint
            )
            return term
        # Equal values get equal texts, so that 5m and 500cm are the same term.
        unit = "m" if kind == "length" else ""
        return msgspec.structs.replace(term, parameter=f"{value!r}{unit}".replace(".0m", "m"))


def _two(names: tuple[str, str]) -> str:
    return f"{names[0]!r} and {names[1]!r}"


class ComparisonCheck(_NameCheck):
    """Checks the comparisons of one policy."""

    def checked(self, comparison: Comparison) -> Comparison:
        """The comparison with canonical constants; unchanged if faults were added."""
        left, right = comparison.left, comparison.right
        known = [self._known(left), self._known(right)]
        if not all(known):
            return comparison
        if isinstance(left, Quantity) and isinstance(right, Quantity):
            message = "both sides are constants, so there is nothing to watch"
            hint = "write an attribute on one side, such as: temperature of S"
            self.faults.add("policy.constant_comparison", message, comparison.place, hint=hint)
            return comparison
        try:
            comparison = self._canonical(comparison)
        except ComparisonFault as fault:
            place = fault.place or comparison.place
            self.faults.add(fault.code, str(fault), place, hint=fault.hint)
            return comparison
        self._check_ends(comparison)
        return comparison

    def alias(self, alias: str, place: SourceSpan) -> bool:
        """True if the alias and its concept are defined."""
        return self.is_defined(alias, place) and alias in self.scope.concepts

    def _known(self, operand: Measured) -> bool:
        """True if every name of the operand is known; else adds faults."""
        match operand:
            case Quantity():
                return True
            case AttributeOf():
                return self._known_attribute(operand)
            case Call():
                return self.known_call(operand)

    def _known_attribute(self, operand: AttributeOf) -> bool:
        if not self.alias(operand.alias, operand.alias_place):
            return False
        attributes = self.scope.attributes_of(operand.alias)
        if operand.attribute in attributes or operand.attribute == IDENTITY:
            return True
        concept = self.scope.concepts[operand.alias]
        message = f"the concept {concept!r} has no attribute {operand.attribute!r}"
        hint = did_you_mean(operand.attribute, attributes)
        self.faults.add("policy.unknown_attribute", message, operand.place, hint=hint)
        return False

    def known_call(self, call: Call) -> bool:
        """True if function and aliases are known and fit; else adds faults."""
        known = [
            self.alias(alias, place)
            for alias, place in zip(call.aliases, call.alias_places, strict=True)
        ]
        function = self.scope.ontology.functions.get(call.function)
        if function is None:
            message = f"the site has no function named {call.function!r}"
            hint = did_you_mean(call.function, self.scope.ontology.functions)
            hint = hint or f"declare it: [functions.{call.function}] with of = [...] in site.toml"
            self.faults.add("policy.unknown_function", message, call.place, hint=hint)
            return False
        return all(known) and self._fits(call, function)

    def _fits(self, call: Call, function: SiteFunction) -> bool:
        wanted = [concept for concept, _ in function.of]
        given = [self.scope.concepts[alias] for alias in call.aliases]
        if wanted != given:
            message = f"{call.function!r} is of {_words(wanted)}, not of {_words(given)}"
            hint = f"write: {call.function}({', '.join(reversed(call.aliases))})"
            if wanted != given[::-1]:
                hint = f"aliases that fit: {self._fitting(wanted)}"
            self.faults.add("policy.wrong_arguments", message, call.place, hint=hint)
            return False
        ends = self.scope.ends_of_operand(call)
        if len(set(ends)) < len(ends):
            message = f"{call.function!r} would compare {call.aliases[0]!r} with itself"
            hint = "define a second alias of the same concept"
            self.faults.add("policy.same_alias", message, call.alias_places[-1], hint=hint)
            return False
        return True

    def _canonical(self, comparison: Comparison) -> Comparison:
        """The comparison with both sides in one type and unit; raises ComparisonFault."""
        left, right = (
            operand_type(each, self.scope) for each in (comparison.left, comparison.right)
        )
        measured = left if right is None or left is not None else right
        assert measured is not None, "not two constants"
        if left is not None and right is not None:
            _check_alike(left, right)
        if measured.type != "number" and comparison.operator not in ("=", "!="):
            what = "text" if measured.type == "text" else "true or false"
            message = f"{measured.shown} is {what} and has no order"
            raise ComparisonFault("policy.bad_operator", message, "use 'is' or 'is not'")
        changed = {
            side: canonical_constant(operand, measured)
            for side, operand in (("left", comparison.left), ("right", comparison.right))
            if isinstance(operand, Quantity)
        }
        return msgspec.structs.replace(comparison, **changed)

    def _check_ends(self, comparison: Comparison) -> None:
        """Reports a comparison that reads more attributes than a step can join."""
        ends = self.scope.ends_of_comparison(comparison)
        events = [end for end in ends if end.from_events]
        aliases = dict.fromkeys(end.alias for end in ends)
        if len(aliases) > _MOST_ALIASES:
            message = f"this compares {len(aliases)} aliases: {', '.join(aliases)}"
            hint = "a comparison is about one or two aliases; split it into several"
        elif len(events) > _MOST_EVENTS:
            message = f"this reads {len(events)} attributes that come as events: {_ends(events)}"
            hint = "a comparison reads at most two; split it, or let a table give one of them"
        elif len(aliases) == _MOST_ALIASES and len({e.alias for e in events}) < len(events):
            other = next(alias for alias in aliases if alias != events[0].alias)
            message = f"this reads {_ends(events)}, which both come as events, beside {other!r}"
            hint = f"say it in two lines: one about {events[0].alias!r} alone, one with {other!r}"
        else:
            return
        self.faults.add("policy.too_many_ends", message, comparison.place, hint=hint)


def _check_alike(left: OperandType, right: OperandType) -> None:
    """Raises ComparisonFault if two measured operands cannot be compared."""
    if left.type != right.type:
        message = f"{left.shown} is {_a(left)}, but {right.shown} is {_a(right)}"
        raise ComparisonFault(
            "policy.wrong_type", message, "compare a number with a number, text with text"
        )
    if left.unit != right.unit:
        units = [each.unit or "without a unit" for each in (left, right)]
        message = f"{left.shown} is in {units[0]}, but {right.shown} is in {units[1]}"
        message = message.replace("in without", "without")
        raise ComparisonFault("policy.wrong_units", message, _why_not_alike(left.unit, right.unit))


def _why_not_alike(first: str, second: str) -> str:
    """A hint for two different units."""
    if first and second:
        kinds = [unit_named(unit).dimension for unit in (first, second)]
        if kinds[0] != kinds[1]:
            return f"one is a {kinds[0]}, the other a {kinds[1]}; compare each with a constant"
    return "the site must give both in one unit: [concepts.*.units] and [functions.*] in site.toml"


def _a(sort: OperandType) -> str:
    return {"number": "a number", "text": "text", "boolean": "true or false"}[sort.type]


def _words(concepts: Sequence[str]) -> str:
    return " and ".join(repr(concept) for concept in concepts)


def _ends(ends: Sequence[AttributeRef]) -> str:
    return ", ".join(f"{end.attribute} of {end.alias}" for end in ends)


def check_duration(duration: DurationCondition, scope: Scope, faults: Diagnostics) -> None:
    """Reports a state with too many aliases, or one that no event can begin."""
    aliases = aliases_of(duration.inner)
    if len(aliases) > _MOST_ALIASES:
        faults.add(
            "policy.for_too_many_aliases",
            f"'for' is about one or two aliases, but this names {', '.join(aliases)}",
            duration.place,
            hint="put what is about the others on lines of their own",
        )
        return
    if not all(alias in scope.concepts for alias in aliases):
        return  # reported with the definition
    if not any(end.from_events for end in scope.ends(duration)):
        length = format_duration(duration.duration_ms)
        faults.add(
            "policy.for_without_events",
            f"only tables decide this, so no event begins its {length}",
            duration.place,
            hint="leave 'for' out, or put a condition beside it on what comes as events: "
            f"{event_names(scope.ontology)}",
        )


def check_silence(silent: SilenceCondition, scope: Scope, faults: Diagnostics) -> None:
    """Reports an attribute that is unknown or that no source gives."""
    if silent.alias not in scope.concepts:
        return  # reported already
    given = scope.event_attributes(silent.alias)
    concept, attribute = scope.concepts[silent.alias], silent.attribute
    known = scope.attributes_of(silent.alias)
    if not given:
        faults.add(
            "policy.silence_without_events",
            f"nothing about a {concept} comes as events, so it is always silent",
            silent.place,
            hint=f"add [sources.NAME] with concept = {concept!r} to the site",
        )
    elif attribute and attribute not in (*known, IDENTITY):
        message = f"the concept {concept!r} has no attribute {attribute!r}"
        hint = did_you_mean(attribute, given)
        faults.add("policy.unknown_attribute", message, silent.place, hint=hint)
    elif attribute and attribute not in given:
        faults.add(
            "policy.silence_without_events",
            f"no source gives {attribute!r} of {concept!r}, so it is always silent",
            silent.place,
            hint=f"what comes as events: {', '.join(given)}",
        )


class CheckedPolicy(NamedTuple):
    """The condition with declared names and canonical constants, and the typed constraints."""

    condition: Expression
    constraints: dict[str, tuple[Constraint, ...]]
    text_atoms: dict[str, Atomic]
    """Comparisons, durations and silences by their canonical text."""


def check_policy(tree: PolicyTree, ontology: Ontology, faults: Diagnostics) -> CheckedPolicy:
    """Checks names, types and units against the ontology; adds every fault found."""
    checker = _Checker(tree.concepts, ontology, faults)
    constraints = {
        concept.alias: check_definition(concept, checker.scope, faults) for concept in tree.concepts
    }
    condition = checker.expression(tree.condition)
    return CheckedPolicy(condition, constraints, checker.text_atoms)


def check_definition(
    concept: ConceptDef, scope: Scope, faults: Diagnostics, *, section: str = "conditions"
) -> tuple[Constraint, ...]:
    """The typed constraints of an alias; those of its kind come first."""
    ontology = scope.ontology
    kind = resolve_kind(ontology, concept.concept)
    if kind is None:
        message = f"there is no concept named {concept.concept!r}"
        hint = why_no_kind(ontology, concept.concept)
        hint = hint or did_you_mean(concept.concept, known_kinds(ontology))
        faults.add("policy.unknown_concept", message, concept.place, hint=hint)
        return ()
    found = (
        check_property(concept, item, scope, faults, section=section) for item in concept.properties
    )
    own = (constraint for constraint in found if constraint is not None)
    return tuple(dict.fromkeys((*kind.constraints, *own)))


class _Checker:
    """Walks the condition of one policy."""

    def __init__(
        self, concepts: Sequence[ConceptDef], ontology: Ontology, faults: Diagnostics
    ) -> None:
        self.scope = Scope(concepts, ontology)
        self.faults = faults
        self.terms = TermCheck(self.scope, concepts, faults)
        self.comparisons = ComparisonCheck(self.scope, concepts, faults)
        self.text_atoms: dict[str, Atomic] = {}

    def expression(self, expression: Expression) -> Expression:
        match expression:
            case Term():
                return self.terms.checked(expression)
            case Comparison() | DurationCondition() | SilenceCondition():
                return self._text_atom(expression)
            case _:
                return map_children(expression, self.expression)

    def _text_atom(
        self, atomic: Comparison | DurationCondition | SilenceCondition
    ) -> Comparison | DurationCondition | SilenceCondition:
        """Checks a comparison, duration or silence and keeps it under its text."""
        found, kept = atomic, atomic
        if isinstance(atomic, Comparison):
            found = self.comparisons.checked(atomic)
            kept = msgspec.structs.replace(found, negated=False)
        elif isinstance(atomic, DurationCondition):
            kept = found = self._duration(atomic)
        else:
            self.comparisons.alias(atomic.alias, atomic.alias_place)
            check_silence(atomic, self.scope, self.faults)
        self.text_atoms.setdefault(print_expression(kept), kept)
        return found

    def _duration(self, duration: DurationCondition) -> DurationCondition:
        before = self.faults.count
        inner = self._state(duration.inner)
        duration = msgspec.structs.replace(duration, inner=inner)
        if self.faults.count == before:
            check_duration(duration, self.scope, self.faults)
        return duration

    def _state(self, expression: Expression) -> Expression:
        """Checks the inside of a `for`; its parts are no atoms of the condition."""
        match expression:
            case Comparison():
                return self.comparisons.checked(expression)
            case And() | Or():
                return map_children(expression, self._state)
            case _:
                return self.expression(expression)
