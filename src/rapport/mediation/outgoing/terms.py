"""A consumer's terms: what its attributes mean in the canonical model. Pure. [ME-9]

The plan from the canonical model to the consumer runs on terms instead of values: it starts from
the canonical value, and each step changes the term as it would change the value. Formulas and units
become arithmetic, look-ups lists, shape steps other paths; merges, site functions and lists of
events are opaque. Conditions of consumers are resolved by these terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from rapport.channel.query.query_kinds import InterpretationView
from rapport.core.errors import InterpretationError
from rapport.core.event import StoredEvent
from rapport.core.schema import PARTS, AttributeType
from rapport.core.terms import (
    ABSENT,
    ANY,
    Affine,
    Cases,
    Constant,
    Elements,
    Linear,
    Members,
    Opaque,
    Same,
    Scalar,
    Term,
    Terms,
    subterm,
)
from rapport.core.terms import Lookup as Listed
from rapport.mediation.concepts import KEY, TIME, Concepts
from rapport.mediation.conversion.conversions import (
    Chain,
    Conversion,
    Formula,
    Gather,
    Identity,
    Lookup,
    Rename,
    Scatter,
    UnitChange,
    plain_steps,
)
from rapport.mediation.interpretations.model import (
    CANONICAL,
    CreateAttribute,
    DropAttribute,
    MergeAttributes,
    RenameAttribute,
    ShapeStep,
    SplitAttribute,
)
from rapport.mediation.interpretations.registry import InterpretationRegistry
from rapport.mediation.interpretations.repository import ActiveInterpretations
from rapport.mediation.outgoing.consumer_transformer import (
    ConsumerResult,
    ConsumerTransformer,
    raw_location,
)
from rapport.mediation.plans import (
    LEAVE,
    ConvertStep,
    EachStep,
    KeepStep,
    ObjectStep,
    Step,
    VariantsStep,
)
from rapport.mediation.types import TAG, Types

Found = Scalar | msgspec.UnsetType
"""A value; UNSET: it would be rejected."""


def converted_term(
    conversion: Conversion, term: Term, types: Types, *, inside: bool = False
) -> Term:
    """The term after a conversion; Opaque unless it is arithmetic, a list or a rename. `inside`
    a chain null is converted like any value; elsewhere it stays null or was rejected.
    """
    if isinstance(term, Opaque) or term == ABSENT:
        return term
    if isinstance(term, Cases):
        return Cases(
            tuple(converted_term(conversion, case, types, inside=inside) for case in term.cases)
        )
    if isinstance(term, Listed | Constant):
        return _of_values(conversion, term, inside=inside)
    match conversion.how:
        case Identity():
            return term
        case Formula() | UnitChange() as how:
            return _calculated(how.affine(), term, conversion.name)
        case Lookup() as how:
            return _listed(how, term, conversion.name)
        case Chain(steps):
            for number, each in enumerate(steps):
                term = converted_term(each, term, types, inside=inside or number > 0)
            return term
        case Rename(names):
            return _renamed(names, term, conversion, types)
        case _:
            return Opaque(f"the conversion {conversion.name}")


def as_members(term: Term) -> Members | None:
    """The term of an object with changeable members; None if it is not an object."""
    if isinstance(term, Same):
        return Members(term.path, {}, rest=True)
    return term if isinstance(term, Members) else None


def _calculated(step: Affine, term: Term, name: str) -> Term:
    if step.multiply == 0:
        return Opaque(f"the conversion {name} forgets its value")
    match term:
        case Same(path):
            return Linear(path, (step,))
        case Linear(path, steps):
            return Linear(path, (*steps, step))
        case _:
            return Opaque(_rejects(name))


def _of_values(conversion: Conversion, term: Listed | Constant, *, inside: bool) -> Term:
    """Converts each of the known values."""
    if not _is_of_scalars(conversion):
        return Opaque(f"the conversion {conversion.name}")

    def change(value: Scalar) -> Found:
        return None if value is None and not inside else _value(conversion, value)

    if isinstance(term, Listed):
        return term.mapped(change)
    found = change(term.value)
    return Opaque(_rejects(conversion.name)) if found is msgspec.UNSET else Constant(found)


def _is_of_scalars(conversion: Conversion) -> bool:
    plain = (Identity, Formula, UnitChange, Lookup)
    return all(isinstance(step.how, plain) for step in plain_steps(conversion))


def _value(conversion: Conversion, value: Scalar) -> Found:
    match conversion.how:
        case Formula() | UnitChange() as how:
            return _number(how.affine(), value)
        case Lookup() as how:
            found = _effective_entries(how).get((isinstance(value, bool), value))
            return found[1] if found is not None else how.otherwise
        case Chain(steps):
            changed: Found = value
            for each in steps:
                changed = changed if changed is msgspec.UNSET else _value(each, changed)
            return changed
        case _:
            return value


def _number(step: Affine, value: Scalar) -> Found:
    if value is None or isinstance(value, bool | str):
        return msgspec.UNSET
    try:
        found = step.apply(float(value))
    except OverflowError:
        return msgspec.UNSET
    return found if math.isfinite(found) else msgspec.UNSET


def _listed(how: Lookup, term: Term, name: str) -> Term:
    if isinstance(term, Same) or (isinstance(term, Linear) and not term.steps):
        return Listed(term.path, tuple(_effective_entries(how).values()), how.otherwise)
    return Opaque(f"the conversion {name} lists what was calculated")


def _effective_entries(how: Lookup) -> dict[tuple[bool, Scalar], tuple[Scalar, Scalar]]:
    """The effective entries by key; numbers and booleans are different keys."""
    return {(isinstance(key, bool), key): (key, value) for key, value in how.entries}


def _renamed(
    names: tuple[tuple[str, str], ...], term: Term, conversion: Conversion, types: Types
) -> Term:
    whole, name = as_members(term), conversion.name
    if whole is None:
        return Opaque(_rejects(name))
    old, new = {each for each, _ in names}, [each for _, each in names]
    taken = any(each in whole.members and each not in old for each in new)
    if taken or len(set(new)) < len(new):
        return Opaque(f"the conversion {name} gives one name twice")
    changed: dict[str, Term] = dict.fromkeys(old, ABSENT)
    changed |= {given: subterm(whole, former) for former, given in names}
    found = Members(whole.path, {**whole.members, **changed}, whole.rest)
    if not types.is_complex(conversion.result):
        return found
    promised = types.attributes(conversion.result)
    return Members(whole.path, {each: subterm(found, each) for each in promised}, rest=False)


def _rejects(name: str) -> str:
    return f"the conversion {name} rejects what it gets"


PAYLOAD = Same(("data",))
"""An event whose payload is a canonical value."""


def terms_of(
    interpretations: InterpretationRegistry, name: str, type_name: str, *, given: Term = PAYLOAD
) -> Terms:
    """The terms of an interpretation for values of a canonical type. Raises InterpretationError
    if such values cannot be passed to it, UnknownName for an unknown name. `given`: the
    location of the canonical value in an event, see `reading_term`.
    """
    plan = interpretations.plan(name, type_name, "out")
    whole: Term = given
    types = interpretations.types_met(name)
    for stage in plan.stages:
        whole = _stepped(stage, whole, types)
    if plan.several:
        whole = Opaque(f"{type_name} becomes several events")
    return Terms(name, type_name, plan.result_type, whole)


def reading_term(attribute: str, kind: AttributeType) -> Term:
    """The location of a concept's value in readings of one attribute (see `canonical_value`)."""
    parts: list[Term] = [Same(("data", "value", number)) for number in range(len(PARTS[kind]))]
    whole = parts[0]
    if len(parts) > 1:
        whole = Members(None, dict(zip(PARTS[kind], parts, strict=True)), rest=False)
    known: dict[str, Term] = {KEY: Same(("data", "key")), TIME: Linear(("time",), ())}
    return Members(None, {**known, attribute: whole}, rest=False)


def _stepped(step: Step, term: Term, types: Types) -> Term:
    if isinstance(step, KeepStep) or isinstance(term, Opaque) or term == ABSENT:
        return term  # absent values stay absent or are rejected
    if isinstance(term, Cases):
        return Cases(tuple(_stepped(step, case, types) for case in term.cases))
    match step:
        case ConvertStep(conversion=conversion, tag=tag):
            return _tagged(converted_term(conversion, term, types), tag)
        case ObjectStep():
            return _reshaped(step, term, types)
        case EachStep():
            return _each(step, term, types)
        case VariantsStep(cases=cases):
            return Cases(tuple(_stepped(case.step, term, types) for case in cases))


def _tagged(term: Term, tag: str) -> Term:
    """The tag is written only if the conversion returns none."""
    if tag in (LEAVE, ""):
        return term
    whole = as_members(term)
    if whole is None:
        return term
    tag_term = Opaque("its type is tag_term by the conversion")
    return Members(whole.path, {**whole.members, TAG: tag_term}, whole.rest)


def _each(step: EachStep, term: Term, types: Types) -> Term:
    if isinstance(term, Same):
        return Elements(term.path, _stepped(step.step, Same((*term.path, ANY)), types))
    if isinstance(term, Elements):
        return Elements(term.path, _stepped(step.step, term.element, types))
    return Opaque(f"{step.path} is made a list on the way")


def _reshaped(step: ObjectStep, term: Term, types: Types) -> Term:
    whole = as_members(term)
    if whole is None or step.each:
        return Opaque(f"{step.path} is taken apart")
    for part in step.parts:
        changed = _stepped(part.step, subterm(whole, part.attribute), types)
        whole = _with(whole, {part.attribute: changed})
    for shape, conversion in step.shape:
        whole = _with(whole, _shape(shape, conversion, whole, types))
    if step.only is not None:
        whole = Members(whole.path, {name: subterm(whole, name) for name in step.only}, rest=False)
    if step.tag != LEAVE:
        whole = _with(whole, {TAG: Constant(step.tag) if step.tag else ABSENT})
    return whole


def _with(whole: Members, changed: dict[str, Term]) -> Members:
    return Members(whole.path, {**whole.members, **changed}, whole.rest)


def _shape(
    shape: ShapeStep, conversion: Conversion | None, whole: Members, types: Types
) -> dict[str, Term]:
    """The members that a shape step sets or removes."""
    match shape:
        case RenameAttribute(old, new):
            return {old: ABSENT, new: subterm(whole, old)}
        case DropAttribute(name):
            return {name: ABSENT}
        case CreateAttribute(name, _, value):
            return {name: Constant(value)}
        case MergeAttributes(sources, target):
            assert conversion is not None
            taken: dict[str, Term] = dict.fromkeys(sources, ABSENT)
            return {
                **taken,
                target: _merged(conversion, [subterm(whole, one) for one in sources], types),
            }
        case SplitAttribute(source, targets):
            assert conversion is not None
            parts = _split(conversion, subterm(whole, source), len(targets), types)
            return {source: ABSENT, **dict(zip(targets, parts, strict=True))}


def _merged(conversion: Conversion, sources: list[Term], types: Types) -> Term:
    if isinstance(conversion.how, Gather):
        return Members(None, dict(zip(conversion.how.names, sources, strict=True)), rest=False)
    if len(sources) == 1:
        return converted_term(conversion, sources[0], types)
    return Opaque(f"{conversion.name} merges several attributes")


def _split(conversion: Conversion, source: Term, parts: int, types: Types) -> list[Term]:
    if isinstance(conversion.how, Scatter):
        return [subterm(source, name) for name in conversion.how.names]
    if parts == 1:
        return [converted_term(conversion, source, types)]
    return [Opaque(f"{conversion.name} splits an attribute")] * parts


def consumer_terms(
    interpretations: InterpretationRegistry, name: str, concepts: Concepts
) -> dict[str, Term]:
    """The terms by event type; raises UnknownName for an unknown interpretation. Types that
    cannot be passed to it are left out. Takes some milliseconds per type; keep it as long as
    the interpretations are in force.
    """
    interpretations.named(name)
    of_events = {*_event_types(interpretations, name), *_event_types(interpretations, CANONICAL)}
    forms: dict[str, Term] = {}
    for type_name in (
        each.name for each in interpretations.canonical.types if each.name in of_events
    ):
        try:
            forms |= _forms(interpretations, name, type_name, concepts)
        except InterpretationError:
            continue  # no mapping: consumers never see this type
    return forms


def _event_types(interpretations: InterpretationRegistry, name: str) -> tuple[str, ...]:
    return interpretations.checked(name).event_types()


def _forms(
    interpretations: InterpretationRegistry, name: str, type_name: str, concepts: Concepts
) -> dict[str, Term]:
    """One entry per attribute of a concept, else one for the type."""
    if type_name not in concepts:
        return {type_name: terms_of(interpretations, name, type_name).whole}
    return {
        f"{type_name}.{attribute}": terms_of(
            interpretations, name, type_name, given=reading_term(attribute, declared.type)
        ).whole
        for attribute, declared in concepts[type_name].items()
    }


_replace = msgspec.structs.replace


def query_view(
    consumer: ConsumerTransformer,
    in_force: ActiveInterpretations,
    convert: Callable[[StoredEvent], ConsumerResult],
) -> InterpretationView:
    """The terms of the interpretation, with `convert` for conditions that terms cannot resolve.
    Results are cached, so a matching event is not converted again when it is delivered.
    """
    if consumer.is_one_way:
        return InterpretationView(consumer.stamp, {}, lambda stored: ())

    def see(stored: StoredEvent) -> list[StoredEvent]:
        """With the canonical envelope and plain data, as conditions expect them."""
        result = convert(stored)
        data = result.plain or tuple(event.data for event in result.events)
        return [_replace(stored, event=_replace(stored.event, data=each)) for each in data]

    def accepts(stored: StoredEvent) -> bool:
        """Originals and events that need a worker are accepted without conversion."""
        is_own = raw_location(stored.event, consumer.stamp) is not None
        return is_own or consumer.may_block or bool(convert(stored).events)

    forms = consumer_terms(in_force.typed, consumer.name, in_force.concepts)
    return InterpretationView(consumer.stamp, forms, see, accepts, consumer.may_block)
