"""The terms of a consumer: what its words mean in root, found from the plan root -> consumer. Pure.
[ME-9]

The plan is carried out on terms instead of values: it starts from the value as root has it, every
step changes the term as it would change the value. Formulas and units become arithmetic, look-ups
lists, changes of shape other paths; merges, functions of the site and lists of events are opaque.
"""

from __future__ import annotations

from rapport.core.schema import PARTS, AttributeType
from rapport.core.terms import (
    ABSENT,
    ANY,
    Cases,
    Constant,
    Elements,
    Linear,
    Members,
    Opaque,
    Same,
    Term,
    Terms,
    subterm,
)
from rapport.mediation.concepts import KEY, TIME
from rapport.mediation.model.conversions import Conversion, Gather, Scatter
from rapport.mediation.model.interpretation import (
    CreateAttribute,
    DropAttribute,
    MergeAttributes,
    RenameAttribute,
    Shape,
    SplitAttribute,
)
from rapport.mediation.model.interpretations import Interpretations
from rapport.mediation.model.plan import LEAVE, Convert, Each, Keep, Object, Step, Variants
from rapport.mediation.model.types import TAG, Types
from rapport.mediation.outgoing.terms_conversions import as_members, converted

PAYLOAD = Same(("data",))
"""An event whose payload is a value of root as it stands."""


def terms_of(
    interpretations: Interpretations, name: str, type_name: str, *, given: Term = PAYLOAD
) -> Terms:
    """What the words of an interpretation mean for values of one of root's types.

    Raises InterpretationError when such values cannot be passed to it, UnknownName for a name that
    nobody declared.

    Args:
        given: how root's value lies in an event, see `reading_term`.
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
    """How the value of a concept lies in the readings of one attribute (`concepts.value_of`)."""
    parts: list[Term] = [Same(("data", "value", number)) for number in range(len(PARTS[kind]))]
    whole = parts[0]
    if kind in ("point", "rectangle"):
        whole = Members(None, dict(zip(PARTS[kind], parts, strict=True)), rest=False)
    known: dict[str, Term] = {KEY: Same(("data", "key")), TIME: Linear(("time",), ())}
    return Members(None, {**known, attribute: whole}, rest=False)


def _stepped(step: Step, term: Term, types: Types) -> Term:
    """The term after a step of the plan."""
    if isinstance(step, Keep) or isinstance(term, Opaque) or term == ABSENT:
        return term  # what is not there stays so, or is rejected
    if isinstance(term, Cases):
        return Cases(tuple(_stepped(step, case, types) for case in term.cases))
    match step:
        case Convert(conversion=conversion, tag=tag):
            return _tagged(converted(conversion, term, types), tag)
        case Object():
            return _reshaped(step, term, types)
        case Each():
            return _each(step, term, types)
        case Variants(cases=cases):
            return Cases(tuple(_stepped(case.step, term, types) for case in cases))


def _tagged(term: Term, tag: str) -> Term:
    """A conversion may tell its own `@type`; only when it does not, this one is written."""
    if tag in (LEAVE, ""):
        return term
    whole = as_members(term)
    if whole is None:
        return term
    told = Opaque("its type is told by the conversion")
    return Members(whole.path, {**whole.members, TAG: told}, whole.rest)


def _each(step: Each, term: Term, types: Types) -> Term:
    if isinstance(term, Same):
        return Elements(term.path, _stepped(step.step, Same((*term.path, ANY)), types))
    if isinstance(term, Elements):
        return Elements(term.path, _stepped(step.step, term.element, types))
    return Opaque(f"{step.path} is made a list on the way")


def _reshaped(step: Object, term: Term, types: Types) -> Term:
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
    shape: Shape, conversion: Conversion | None, whole: Members, types: Types
) -> dict[str, Term]:
    """The members that a change of shape sets or takes away."""
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
        return converted(conversion, sources[0], types)
    return Opaque(f"{conversion.name} merges several attributes")


def _split(conversion: Conversion, source: Term, parts: int, types: Types) -> list[Term]:
    if isinstance(conversion.how, Scatter):
        return [subterm(source, name) for name in conversion.how.names]
    if parts == 1:
        return [converted(conversion, source, types)]
    return [Opaque(f"{conversion.name} splits an attribute")] * parts
