"""Rules that follow from types: units of one dimension, and conversions whose signature fits, one
way or the other. [ME-4, ME-10, ME-11]

The source (4.3.2): "by analyzing the units given by developers and those that the notification
service uses, we can generate the appropriate transformation rules". A rule is inferred only where a
mapping needs one and none decides. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rapport.core.errors import InterpretationError, Problem
from rapport.mediation.declaring.interpretation_form import UnitWish
from rapport.mediation.declaring.mapping_forms import REST
from rapport.mediation.declaring.unit_wishes import with_wishes
from rapport.mediation.model.augmenting import exact_pattern
from rapport.mediation.model.conversions import Conversion, Identity, UnitChange, converts
from rapport.mediation.model.feeding import remembers
from rapport.mediation.model.interpretation import (
    DIRECTIONS,
    EXPLORE,
    DropAttribute,
    Interpretation,
    Mapping,
    Rule,
)
from rapport.mediation.model.inverses import inverse_of
from rapport.mediation.model.patterns import Item, Pattern
from rapport.mediation.model.precedence import Path, Position, shown_path
from rapport.mediation.model.resolution import MOST_PATHS, Resolver
from rapport.mediation.model.scope import BoundRule, Scope
from rapport.mediation.model.shaping import Shaping
from rapport.mediation.model.type_checks import check_types
from rapport.mediation.model.types import TypeRef, Types, element_of
from rapport.mediation.plausibility import plausible_unit
from rapport.units.catalogue import BY_NAME

_replace = msgspec.structs.replace
_REST = DropAttribute(REST)
_PLAIN_NUMBERS = ("number", "integer")


class Inferred(msgspec.Struct, frozen=True):
    """The interpretation with what follows; each problem with the `Type.attribute` it is about."""

    interpretation: Interpretation
    problems: tuple[tuple[str, Problem], ...] = ()


def infer(
    interpretation: Interpretation,
    root: Interpretation,
    parents: Sequence[Interpretation] = (),
    units: Sequence[UnitWish] = (),
) -> Inferred:
    """Adds types and mappings that `units` alone mean, rules for units, signatures that
    conversions left open, and what `drop = ["*"]` drops. `parents` stand between root and it,
    root's child first, themselves inferred. Faulty types are left as they are: the checks before
    use name them.
    """
    problems: list[tuple[str, Problem]] = []
    if units:
        found = Types(() if check_types(root.types) else root.types)
        interpretation, problems = with_wishes(interpretation, found, units)
    try:
        scope = Scope((root, *parents, _with_usable_signatures(interpretation)))
    except InterpretationError:
        return Inferred(interpretation, tuple(problems))
    if any(_REST in mapping.shape for mapping in interpretation.mappings):
        dropping = tuple(_with_drops(each, scope) for each in interpretation.mappings)
        interpretation = _replace(interpretation, mappings=dropping)
        scope = Scope((root, *parents, _with_usable_signatures(interpretation)))
    searched = _Search(scope, interpretation)
    for mapping in interpretation.mappings:
        searched.look_at(mapping)
    return Inferred(searched.result(), (*problems, *searched.problems.items()))


class _At(msgspec.Struct, frozen=True):
    """A place: the path in the event, and how it is called in what becomes of it."""

    mapping: Mapping
    path: Path
    there: str

    @property
    def here(self) -> str:
        """As people read it."""
        return shown_path(self.path)

    @property
    def own(self) -> str:
        """The place on the side of the interpretation, not of root."""
        return self.here if self.mapping.direction == "in" else self.there

    def seen_as(self, face: TypeRef) -> _At:
        """The value at this place is exactly of this type."""
        *before, last = self.path
        return _replace(self, path=(*before, Position(last.attribute, (*last.faces, face))))


class _Search:
    """Goes along the paths that mappings promise something for."""

    def __init__(self, scope: Scope, given: Interpretation) -> None:
        self._scope, self._types, self._given = scope, scope.types, given
        self._resolvers = {each: Resolver(scope, each) for each in DIRECTIONS}
        self._open = {each.name for each in given.conversions if not _is_signed(each)}
        self._signatures: dict[str, set[tuple[TypeRef, TypeRef]]] = {}
        self._rules: dict[Rule, None] = {}
        self._made: dict[str, Conversion] = {}
        self._paths_left = MOST_PATHS
        self.problems: dict[str, Problem] = {}

    def look_at(self, mapping: Mapping) -> None:
        """Infers what one mapping needs."""
        if not (self._types.is_complex(mapping.source) and self._types.is_complex(mapping.target)):
            return
        at = _At(mapping, (Position("", (mapping.source,)),), mapping.target)
        if not self._is_decided(at, mapping.target):
            self._attributes(at, mapping.target, mapping)

    def result(self) -> Interpretation:
        """The interpretation with rules, conversions and signatures added."""
        own = {each.name for each in self._given.conversions}
        made = [each for each in self._made.values() if each.name not in own]
        rules = [each for each in self._rules if each not in self._given.rules]
        return _replace(
            self._given,
            rules=(*self._given.rules, *rules),
            conversions=(*map(self._signed, self._given.conversions), *made),
        )

    def _signed(self, conversion: Conversion) -> Conversion:
        """An open signature is the one that all places of its rules agree on."""
        found = self._signatures.get(conversion.name, set())
        if conversion.name not in self._open or not found:
            return conversion
        taken, given = {each[0] for each in found}, {each[1] for each in found}
        if len(taken) > 1 or len(given) > 1:
            said = ", ".join(sorted(f"{one} -> {other}" for one, other in found))
            message = f"conversion {conversion.name} would be {said}"
            hint = "say from and to, or declare one conversion for each"
            problem = Problem(code="conversion.signature", message=message, hint=hint)
            self.problems[conversion.name] = problem
            return conversion
        arguments = conversion.arguments or tuple(taken)
        return _replace(conversion, arguments=arguments, results=conversion.results or tuple(given))

    def _attributes(self, at: _At, target: str, mapping: Mapping | None) -> None:
        """`target` is promised here; `mapping` is what says how attributes are called there."""
        shaping = Shaping(mapping, self._scope, "", [])
        promised = self._types.attributes(target)
        seen_as = mapping.source if mapping else at.path[-1].type
        for name, attribute in self._types.attributes(seen_as).items():
            declared: TypeRef | None = attribute.type
            goal = shaping.goal_of(name)
            if mapping is not None and name == mapping.each:
                declared = element_of(attribute.type)
                goal = Shaping(_replace(mapping, each=""), self._scope, "", []).goal_of(name)
            if goal in promised and declared is not None:
                faces = (attribute.type,) if declared != attribute.type else ()
                below = _replace(
                    at, path=(*at.path, Position(name, faces)), there=f"{at.there}.{goal}"
                )
                self._value(below, declared, promised[goal].type)

    def _value(self, at: _At, declared: TypeRef, wanted: TypeRef) -> None:
        self._paths_left -= 1
        if self._paths_left < 0:
            return
        dynamic = self._types.dynamic(declared) if element_of(declared) is None else (declared,)
        for each in dynamic:
            here = at.seen_as(each)
            if not self._is_decided(here, wanted):
                self._exact(here, each, wanted, each == declared)

    def _exact(self, at: _At, found: TypeRef, wanted: TypeRef, is_declared: bool) -> None:
        """Nothing decides at this path, whose value is exactly a `found`."""
        if self._types.is_subtype(found, wanted):
            return
        ways = (self._by_signature, self._by_unit, self._by_inverse)
        if any(infer_by(at, found, wanted) for infer_by in ways):
            return
        inner, wanted_inner = element_of(found), element_of(wanted)
        if inner is not None and wanted_inner is not None:
            self._value(at, inner, wanted_inner)
        elif self._types.is_complex(found) and self._types.is_complex(wanted):
            mapping = self._scope.mapping_of(found, at.mapping.direction)
            if mapping is not None and self._types.is_subtype(mapping.target, wanted):
                self._attributes(at, mapping.target, mapping)
            elif is_declared:
                self._attributes(at, wanted, None)
        else:
            self._without_unit(at, found, wanted)

    def _by_signature(self, at: _At, found: TypeRef, wanted: TypeRef) -> bool:
        """The one conversion that takes exactly this and gives exactly that."""
        fitting = [
            each.name
            for each in self._scope.conversions.values()
            if each.arguments == (found,) and each.results == (wanted,)
        ]
        own = f"{found} to {wanted}"  # inferred in a parent
        if len(fitting) > 1 and own not in fitting:
            message = f"{at.here}: {' and '.join(sorted(fitting))} lead from {found} to {wanted}"
            hint = f"say which: a rule for {at.here}"
            problem = Problem(code="conversion.ambiguous", message=message, hint=hint)
            self.problems.setdefault(at.own, problem)
            return True
        if fitting:
            self._add_rule(at, next((each for each in fitting if each != own), own))
        return bool(fitting)

    def _by_unit(self, at: _At, found: TypeRef, wanted: TypeRef) -> bool:
        one, other = BY_NAME.get(found), BY_NAME.get(wanted)
        if one is None or other is None or one.dimension != other.dimension:
            return False
        name = f"{found} to {wanted}"
        self._made[name] = converts(name, found, wanted, UnitChange(one.symbol, other.symbol))
        self._add_rule(at, name)
        return True

    def _by_inverse(self, at: _At, found: TypeRef, wanted: TypeRef) -> bool:
        """The way back of the one conversion that leads from `wanted` to `found`. What it depends
        on may differ by then where it remembers events, so that has no way back here.
        """
        name = f"{found} to {wanted}"
        backwards = [
            inverse_of(each, name)
            for each in self._scope.conversions.values()
            if each.arguments == (wanted,) and each.results == (found,) and not remembers(each)
        ]
        if len(backwards) != 1 or backwards[0] is None:
            return False
        self._made[name] = backwards[0]
        self._add_rule(at, name)
        return True

    def _without_unit(self, at: _At, found: TypeRef, wanted: TypeRef) -> None:
        """A plain number on one side, a number with a unit on the other."""
        here = found in _PLAIN_NUMBERS
        unit = wanted if here else found
        if here == (wanted in _PLAIN_NUMBERS) or unit not in BY_NAME:
            return
        attribute = at.own.rpartition(".")[2]
        if here == (at.mapping.direction == "in"):
            code, message = "unit.undeclared", f"the unit of {at.own} is not declared"
            hint = plausible_unit(attribute)
            hint = hint or f'root has {unit}; if it is the same, write {attribute} = "{unit}"'
        else:
            code, message = "unit.no_target", f"{at.own} is in {unit}, root says no unit for it"
            hint = "say the unit of root, where the concept is declared"
        self.problems.setdefault(at.own, Problem(code=code, message=message, hint=hint))

    def _is_decided(self, at: _At, wanted: TypeRef) -> bool:
        """A rule counts here; if its conversion left its types open, they are these."""
        rule = self._resolvers[at.mapping.direction].winner(at.path)
        if rule is None or rule.rule.conversion == EXPLORE:
            return False
        if rule.rule.conversion in self._open:
            found = (rule.pattern.last.type, wanted)
            self._signatures.setdefault(rule.rule.conversion, set()).add(found)
        return len(at.path) == 1 or rule.owner == self._given.name or self._suits(rule, at, wanted)

    def _suits(self, rule: BoundRule, at: _At, wanted: TypeRef) -> bool:
        """What an inherited rule gives is promised here; a parent may have promised other units."""
        conversion = self._scope.conversions[rule.rule.conversion]
        is_identity = isinstance(conversion.how, Identity)
        result = at.path[-1].type if is_identity else conversion.result
        return self._types.is_subtype(result, wanted)

    def _add_rule(self, at: _At, conversion: str) -> None:
        pattern = written(at.path, self._types)
        self._rules[Rule(pattern, conversion, at.mapping.direction)] = None


def written(path: Path, types: Types) -> str:
    """The pattern that says this path and no other; types that follow are left out.

    >>> from rapport.mediation.model.types import Attribute, ComplexType
    >>> wind = ComplexType("Wind", (Attribute("speed", "number"),))
    >>> written((Position("", ("Wind",)), Position("speed", ("number",))), Types([wind]))
    'Wind.speed'
    """
    head, *rest = exact_pattern(path).items
    items = [Item("", head.type)]
    before = head.type
    for each in rest:
        follows = types.attributes(before)[each.attribute].type == each.type
        items.append(Item(each.attribute, "" if follows else each.type))
        before = each.type
    return str(Pattern(tuple(items)))


def _with_drops(mapping: Mapping, scope: Scope) -> Mapping:
    """The mapping with a step for each attribute that has no place in what is promised."""
    types = scope.types
    if not types.is_complex(mapping.source) or not types.is_complex(mapping.target):
        return mapping
    rest = tuple(each for each in mapping.shape if each != _REST)
    shaping = Shaping(_replace(mapping, shape=rest), scope, "", [])
    promised = types.attributes(mapping.target)
    goals = {name: shaping.goal_of(name) for name in types.attributes(mapping.source)}
    drops = (DropAttribute(name) for name, goal in goals.items() if goal and goal not in promised)
    return _replace(mapping, shape=(*(drops if len(rest) < len(mapping.shape) else ()), *rest))


def _with_usable_signatures(given: Interpretation) -> Interpretation:
    """Conversions whose types are open take anything while rules are being looked at."""
    conversions = tuple(
        each if _is_signed(each) else _replace(each, arguments=("json",), results=("json",))
        for each in given.conversions
    )
    return _replace(given, conversions=conversions)


def _is_signed(conversion: Conversion) -> bool:
    return bool(conversion.arguments and conversion.results)
