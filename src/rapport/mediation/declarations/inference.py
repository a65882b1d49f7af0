"""Completes declarations by inference: types from units, rules from units and signatures. [ME-4,
ME-5, ME-10, ME-11]

`units = { "station.temperature" = "degF" }` becomes a type of the interpretation, derived from the
canonical one, with mappings in both directions. The paper (4.3.2): "by analyzing the units given by
developers and those that the notification service uses, we can generate the appropriate
transformation rules". A rule is inferred only where a mapping needs one and none applies. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rapport.core.errors import InterpretationError, Problem
from rapport.kernel.config_fields import suggest
from rapport.mediation.concepts import unit_type
from rapport.mediation.conversion.conversions import (
    Conversion,
    Identity,
    UnitChange,
    converts,
    inverse_of,
)
from rapport.mediation.declarations.files import Declarations
from rapport.mediation.declarations.typed_tables import (
    REST,
    DeclaredInterpretation,
    UnitDeclaration,
)
from rapport.mediation.interpretations.model import (
    CANONICAL,
    DIRECTIONS,
    EXPLORE,
    DropAttribute,
    Interpretation,
    Rule,
    TypeMapping,
)
from rapport.mediation.interpretations.type_changes import exact_pattern
from rapport.mediation.mapping_results import ShapeChecker
from rapport.mediation.memory import remembers
from rapport.mediation.patterns import PathPosition, Pattern, PatternItem, TypePath, shown_path
from rapport.mediation.plausibility import plausible_unit
from rapport.mediation.rule_resolution import MAX_PATHS, BoundRule, RuleResolver, Scope
from rapport.mediation.types import (
    Attribute,
    ComplexType,
    PrimitiveType,
    Type,
    TypeRef,
    Types,
    check_types,
    element_of,
    innermost,
)
from rapport.units.catalogue import BY_NAME

AppliedUnits = tuple[Interpretation, list[tuple[str, Problem]]]


def apply_units(
    given: Interpretation, types: Types, unit_declarations: Sequence[UnitDeclaration]
) -> AppliedUnits:
    """Adds the types and mappings that the unit declarations imply; problems come with their
    attribute.
    """
    unit_types = _UnitTypes(given.name, types)
    for declaration in unit_declarations:
        unit_types.add(declaration)
    known = {each.name for each in given.types}
    added = [each for each in unit_types.made() if each.name not in known]
    mappings = [
        mapping
        for name in unit_types.changed
        for mapping in (
            TypeMapping(derived_name(given.name, name), name, "in"),
            TypeMapping(name, derived_name(given.name, name), "out"),
        )
        if mapping not in given.mappings
    ]
    return msgspec.structs.replace(
        given, types=(*given.types, *added), mappings=(*given.mappings, *mappings)
    ), unit_types.problems


def derived_name(interpretation: str, type_name: str) -> str:
    """The name of the type that unit declarations imply.

    >>> derived_name("us", "station")
    'us station'
    """
    return f"{interpretation} {type_name}"


class _UnitTypes:
    """Collects unit declarations by canonical type."""

    def __init__(self, name: str, types: Types) -> None:
        self._name, self._types = name, types
        self.problems: list[tuple[str, Problem]] = []
        self.changed: dict[str, dict[str, TypeRef]] = {}
        self._inner: dict[str, Type] = {}

    def add(self, declaration: UnitDeclaration) -> None:
        """Adds one declaration, or reports why it is not possible."""
        concept, _, attribute = declaration.attribute.rpartition(".")
        if not self._types.is_complex(concept):
            known = self._types.complex_names
            self._fault(
                declaration,
                "type.unknown",
                f"the canonical model has no type {concept!r}",
                known,
                concept,
            )
            return
        attributes = self._types.attributes(concept)
        if attribute not in attributes:
            message = f"{concept} has no attribute {attribute!r}"
            self._fault(declaration, "mapping.no_place", message, attributes, attribute)
        elif declaration.unit not in BY_NAME:
            message = f"there is no unit named {declaration.unit[:40]!r}"
            self._fault(declaration, "unit.unknown", message, BY_NAME, declaration.unit)
        else:
            changed = self._in_unit(declaration, attributes[attribute].type)
            if changed is not None:
                self.changed.setdefault(concept, {})[attribute] = changed

    def made(self) -> list[Type]:
        """Unit types first, then nested types, then the types themselves."""
        types: list[Type] = [self._inner[name] for name in sorted(self._inner)]
        types.sort(key=lambda each: isinstance(each, ComplexType))
        for concept, units in self.changed.items():
            attributes = tuple(
                Attribute(each.name, units.get(each.name, each.type), each.optional)
                for each in self._types.attributes(concept).values()
            )
            types.append(ComplexType(derived_name(self._name, concept), attributes))
        return types

    def _in_unit(self, declaration: UnitDeclaration, reference: TypeRef) -> TypeRef | None:
        inner = innermost(reference)
        if self._types.is_complex(inner):
            changed = self._complex_in_unit(declaration, inner)
        else:
            changed = self._number_in_unit(declaration, inner)
        return reference.replace(inner, changed) if changed is not None else None

    def _number_in_unit(self, declaration: UnitDeclaration, inner: str) -> str | None:
        if inner not in BY_NAME:
            message = f"{declaration.attribute} is {inner} in the canonical model, without a unit"
            hint = "declare the canonical unit first, in the units of the concept"
            self.problems.append(
                (declaration.attribute, Problem(code="unit.no_target", message=message, hint=hint))
            )
            return None
        if BY_NAME[declaration.unit].dimension != BY_NAME[inner].dimension:
            message = f"{declaration.attribute} is in {inner}, never in {declaration.unit}"
            same = [u for u in BY_NAME if BY_NAME[u].dimension == BY_NAME[inner].dimension]
            self._fault(declaration, "unit.mismatch", message, same[:12], "")
            return None
        return self._add(unit_type(declaration.unit))

    def _complex_in_unit(self, declaration: UnitDeclaration, inner: str) -> str | None:
        """Changes every number of that dimension, such as both coordinates of a point in
        feet.
        """
        dimension = BY_NAME[declaration.unit].dimension
        given = self._types.attributes(inner).values()
        fitting = [
            each.name
            for each in given
            if each.type in BY_NAME and BY_NAME[each.type].dimension == dimension
        ]
        if not fitting:
            message = f"{inner} of {declaration.attribute} has no {dimension}"
            self._fault(declaration, "unit.mismatch", message, (), "")
            return None
        unit = self._add(unit_type(declaration.unit))
        attributes = tuple(
            Attribute(each.name, unit if each.name in fitting else each.type, each.optional)
            for each in given
        )
        return self._add(ComplexType(f"{inner} in {unit}", attributes))

    def _add(self, made: PrimitiveType | ComplexType) -> str:
        if made.name not in self._types or made != self._types.named(made.name):
            self._inner[made.name] = made
        return made.name

    def _fault(
        self, declaration: UnitDeclaration, code: str, message: str, known: Iterable[str], name: str
    ) -> None:
        problem = Problem(code=code, message=message, hint=suggest(name, known))
        self.problems.append((declaration.attribute, problem))


_replace = msgspec.structs.replace
_REST = DropAttribute(REST)
_PLAIN_NUMBERS = ("number", "integer")


class InferenceResult(msgspec.Struct, frozen=True):
    """The completed interpretation; each problem with its `Type.attribute`."""

    interpretation: Interpretation
    problems: tuple[tuple[str, Problem], ...] = ()


def infer(
    interpretation: Interpretation,
    root: Interpretation,
    parents: Sequence[Interpretation] = (),
    units: Sequence[UnitDeclaration] = (),
) -> InferenceResult:
    """Adds types and mappings for `units`, rules for units, missing signatures of conversions,
    and the drops of `drop = ["*"]`. `parents`: between the canonical model and it, outermost
    first, completed. Faulty types are left to the later checks.
    """
    problems: list[tuple[str, Problem]] = []
    if units:
        found = Types(() if check_types(root.types) else root.types)
        interpretation, problems = apply_units(interpretation, found, units)
    try:
        scope = Scope((root, *parents, _with_usable_signatures(interpretation)))
    except InterpretationError:
        return InferenceResult(interpretation, tuple(problems))
    if any(_REST in mapping.shape for mapping in interpretation.mappings):
        dropping = tuple(_with_drops(each, scope) for each in interpretation.mappings)
        interpretation = _replace(interpretation, mappings=dropping)
        scope = Scope((root, *parents, _with_usable_signatures(interpretation)))
    searched = _RuleSearch(scope, interpretation)
    for mapping in interpretation.mappings:
        searched.infer_rules(mapping)
    return InferenceResult(searched.result(), (*problems, *searched.problems.items()))


class _Location(msgspec.Struct, frozen=True):
    """A path in the event and its name in the result."""

    mapping: TypeMapping
    path: TypePath
    there: str

    @property
    def here(self) -> str:
        """The path for messages."""
        return shown_path(self.path)

    @property
    def own(self) -> str:
        """The path on the side of the interpretation."""
        return self.here if self.mapping.direction == "in" else self.there

    def seen_as(self, face: TypeRef) -> _Location:
        """The location for a value of exactly this type."""
        *before, last = self.path
        return _replace(self, path=(*before, PathPosition(last.attribute, (*last.faces, face))))


class _RuleSearch:
    """Walks the paths that mappings have an expected type for."""

    def __init__(self, scope: Scope, given: Interpretation) -> None:
        self._scope, self._types, self._given = scope, scope.types, given
        self._resolvers = {each: RuleResolver(scope, each) for each in DIRECTIONS}
        self._open = {each.name for each in given.conversions if not _is_signed(each)}
        self._signatures: dict[str, set[tuple[TypeRef, TypeRef]]] = {}
        self._rules: dict[Rule, None] = {}
        self._made: dict[str, Conversion] = {}
        self._paths_left = MAX_PATHS
        self.problems: dict[str, Problem] = {}

    def infer_rules(self, mapping: TypeMapping) -> None:
        if not (self._types.is_complex(mapping.source) and self._types.is_complex(mapping.target)):
            return
        at = _Location(mapping, (PathPosition("", (mapping.source,)),), mapping.target)
        if not self._is_decided(at, mapping.target):
            self._attributes(at, mapping.target, mapping)

    def result(self) -> Interpretation:
        """The interpretation with inferred rules, conversions and signatures."""
        own = {each.name for each in self._given.conversions}
        made = [each for each in self._made.values() if each.name not in own]
        rules = [each for each in self._rules if each not in self._given.rules]
        return _replace(
            self._given,
            rules=(*self._given.rules, *rules),
            conversions=(*map(self._signed, self._given.conversions), *made),
        )

    def _signed(self, conversion: Conversion) -> Conversion:
        """Completes an open signature on which all uses agree."""
        found = self._signatures.get(conversion.name, set())
        if conversion.name not in self._open or not found:
            return conversion
        taken, given = {each[0] for each in found}, {each[1] for each in found}
        if len(taken) > 1 or len(given) > 1:
            signatures = ", ".join(sorted(f"{one} -> {other}" for one, other in found))
            message = f"conversion {conversion.name} would be {signatures}"
            hint = "say from and to, or declare one conversion for each"
            problem = Problem(code="conversion.signature", message=message, hint=hint)
            self.problems[conversion.name] = problem
            return conversion
        arguments = conversion.arguments or tuple(taken)
        return _replace(conversion, arguments=arguments, results=conversion.results or tuple(given))

    def _attributes(self, at: _Location, target: str, mapping: TypeMapping | None) -> None:
        """`target` is expected here; `mapping` renames attributes."""
        shaping = ShapeChecker(mapping, self._scope, "", [])
        promised = self._types.attributes(target)
        seen_as = mapping.source if mapping else at.path[-1].type
        for name, attribute in self._types.attributes(seen_as).items():
            declared: TypeRef | None = attribute.type
            goal = shaping.goal_of(name)
            if mapping is not None and name == mapping.each:
                declared = element_of(attribute.type)
                goal = ShapeChecker(_replace(mapping, each=""), self._scope, "", []).goal_of(name)
            if goal in promised and declared is not None:
                faces = (attribute.type,) if declared != attribute.type else ()
                below = _replace(
                    at, path=(*at.path, PathPosition(name, faces)), there=f"{at.there}.{goal}"
                )
                self._value(below, declared, promised[goal].type)

    def _value(self, at: _Location, declared: TypeRef, wanted: TypeRef) -> None:
        self._paths_left -= 1
        if self._paths_left < 0:
            return
        dynamic = self._types.dynamic(declared) if element_of(declared) is None else (declared,)
        for each in dynamic:
            here = at.seen_as(each)
            if not self._is_decided(here, wanted):
                self._exact(here, each, wanted, each == declared)

    def _exact(self, at: _Location, found: TypeRef, wanted: TypeRef, is_declared: bool) -> None:
        """Handles a path without a rule whose value is exactly a `found`."""
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

    def _by_signature(self, at: _Location, found: TypeRef, wanted: TypeRef) -> bool:
        """Uses the only conversion with exactly this signature."""
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

    def _by_unit(self, at: _Location, found: TypeRef, wanted: TypeRef) -> bool:
        one, other = BY_NAME.get(found), BY_NAME.get(wanted)
        if one is None or other is None or one.dimension != other.dimension:
            return False
        name = f"{found} to {wanted}"
        self._made[name] = converts(name, found, wanted, UnitChange(one.symbol, other.symbol))
        self._add_rule(at, name)
        return True

    def _by_inverse(self, at: _Location, found: TypeRef, wanted: TypeRef) -> bool:
        """Uses the inverse of the only conversion from `wanted` to `found`. Conversions
        with memory have no inverse.
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

    def _without_unit(self, at: _Location, found: TypeRef, wanted: TypeRef) -> None:
        """Reports a number without a unit on one side and with a unit on the other."""
        here = found in _PLAIN_NUMBERS
        unit = wanted if here else found
        if here == (wanted in _PLAIN_NUMBERS) or unit not in BY_NAME:
            return
        attribute = at.own.rpartition(".")[2]
        if here == (at.mapping.direction == "in"):
            code, message = "unit.undeclared", f"the unit of {at.own} is not declared"
            hint = plausible_unit(attribute)
            hint = (
                hint
                or f'the canonical unit is {unit}; if it is the same, write {attribute} = "{unit}"'
            )
        else:
            code, message = "unit.no_target", f"{at.own} is in {unit}, but it has no canonical unit"
            hint = "declare the canonical unit with the concept"
        self.problems.setdefault(at.own, Problem(code=code, message=message, hint=hint))

    def _is_decided(self, at: _Location, wanted: TypeRef) -> bool:
        """Whether a rule applies here; records the signature of an open conversion."""
        rule = self._resolvers[at.mapping.direction].winner(at.path)
        if rule is None or rule.rule.conversion == EXPLORE:
            return False
        if rule.rule.conversion in self._open:
            found = (rule.pattern.last.type, wanted)
            self._signatures.setdefault(rule.rule.conversion, set()).add(found)
        return len(at.path) == 1 or rule.owner == self._given.name or self._suits(rule, at, wanted)

    def _suits(self, rule: BoundRule, at: _Location, wanted: TypeRef) -> bool:
        """Whether the result of an inherited rule is expected here; a parent may have
        expected other units.
        """
        conversion = self._scope.conversions[rule.rule.conversion]
        is_identity = isinstance(conversion.how, Identity)
        result = at.path[-1].type if is_identity else conversion.result
        return self._types.is_subtype(result, wanted)

    def _add_rule(self, at: _Location, conversion: str) -> None:
        pattern = pattern_text(at.path, self._types)
        self._rules[Rule(pattern, conversion, at.mapping.direction)] = None


def pattern_text(path: TypePath, types: Types) -> str:
    """The pattern that matches exactly this path; implied types are left out. >>> from
    rapport.mediation.types import Attribute, ComplexType >>> wind = ComplexType("Wind",
    (Attribute("speed", "number"),)) >>> pattern_text((PathPosition("", ("Wind",)),
    PathPosition("speed", ("number",))), Types([wind])) 'Wind.speed'
    """
    head, *rest = exact_pattern(path).items
    items = [PatternItem("", head.type)]
    before = head.type
    for each in rest:
        follows = types.attributes(before)[each.attribute].type == each.type
        items.append(PatternItem(each.attribute, "" if follows else each.type))
        before = each.type
    return str(Pattern(tuple(items)))


def _with_drops(mapping: TypeMapping, scope: Scope) -> TypeMapping:
    """The mapping with a drop step for each attribute that the target lacks."""
    types = scope.types
    if not types.is_complex(mapping.source) or not types.is_complex(mapping.target):
        return mapping
    rest = tuple(each for each in mapping.shape if each != _REST)
    shaping = ShapeChecker(_replace(mapping, shape=rest), scope, "", [])
    promised = types.attributes(mapping.target)
    goals = {name: shaping.goal_of(name) for name in types.attributes(mapping.source)}
    drops = (DropAttribute(name) for name, goal in goals.items() if goal and goal not in promised)
    return _replace(mapping, shape=(*(drops if len(rest) < len(mapping.shape) else ()), *rest))


def _with_usable_signatures(given: Interpretation) -> Interpretation:
    """Lets conversions with open types accept anything during the search."""
    conversions = tuple(
        each if _is_signed(each) else _replace(each, arguments=("json",), results=("json",))
        for each in given.conversions
    )
    return _replace(given, conversions=conversions)


def _is_signed(conversion: Conversion) -> bool:
    return bool(conversion.arguments and conversion.results)


def complete_declarations(
    declarations: Declarations,
    root: Interpretation,
    held: Mapping[str, Interpretation] | None = None,
) -> Declarations:
    """Completes all declarations, parents first; a faulty one is left out with its problems,
    and its descendants are reported by later checks. `root`: the canonical model with all
    additions. `held`: active interpretations, which may be parents.
    """
    completing = _Completer(declarations, root, held or {})
    for name in declarations.declared:
        completing.one(name)
    problems = (*declarations.problems, *completing.problems)
    found = {
        name: completing.done[name] for name in declarations.declared if name in completing.done
    }
    faulty = declarations.faulty | completing.faulty
    return Declarations(declared=found, problems=problems, faulty=faulty)


class _Completer:
    """Completes each interpretation once."""

    def __init__(
        self, given: Declarations, root: Interpretation, held: Mapping[str, Interpretation]
    ) -> None:
        self._given, self._model, self._held = given.declared, root, held
        self.done: dict[str, DeclaredInterpretation] = {}
        self.problems: list[Problem] = []
        self.faulty: dict[str, tuple[Problem, ...]] = {}
        self._seen: set[str] = set()

    def one(self, name: str) -> None:
        """Completes an interpretation after its ancestors."""
        for above in reversed([name, *self._names_above(name)]):
            if above in self._given and above not in self._seen:
                self._seen.add(above)
                self._complete(self._given[above])

    def _complete(self, declared: DeclaredInterpretation) -> None:
        if declared.name == CANONICAL:
            self.done[CANONICAL] = declared
            return
        above = self._names_above(declared.name)
        parents = [found for name in reversed(above) if (found := self._interpretation(name))]
        unit_declarations = (
            self._unit_declarations([*reversed(above), declared.name]) if declared.units else ()
        )
        inferred = infer(declared.interpretation, self._model, parents, unit_declarations)
        problems = [*_placed(inferred, declared)]
        self.problems += problems
        errors = tuple(each for each in problems if each.severity == "error")
        if errors:
            self.faulty[declared.name] = errors
        else:
            self.done[declared.name] = _replace(declared, interpretation=inferred.interpretation)

    def _unit_declarations(self, names: list[str]) -> tuple[UnitDeclaration, ...]:
        """Includes those of ancestors, since their type is derived again."""
        found = {
            declaration.attribute: declaration
            for name in names
            if name in self._given
            for declaration in self._given[name].units
        }
        own = {each.attribute.rpartition(".")[0] for each in self._given[names[-1]].units}
        return tuple(each for each in found.values() if each.attribute.rpartition(".")[0] in own)

    def _names_above(self, name: str) -> list[str]:
        """Nearest first, without the canonical model; cycles are cut."""
        found: list[str] = []
        above = self._parent(name)
        while above and above != CANONICAL and above not in (name, *found):
            found.append(above)
            above = self._parent(above)
        return found

    def _parent(self, name: str) -> str:
        if name in self._given:
            return self._given[name].interpretation.parent
        return self._held[name].parent if name in self._held else ""

    def _interpretation(self, name: str) -> Interpretation | None:
        if name in self.done:
            return self.done[name].interpretation
        return self._held.get(name)


def _placed(inferred: InferenceResult, declared: DeclaredInterpretation) -> list[Problem]:
    """Adds the location of the subject, or of the interpretation."""
    found = []
    for about, problem in inferred.problems:
        place = declared.places.get(about, declared.place)
        message = f"{declared.name}: {problem.message}"
        found.append(
            _replace(
                problem,
                file=place.file,
                line=place.line,
                column=place.column,
                message=message,
            )
        )
    return found
