"""What a conversion does to a term, as it does to values. Pure. [ME-9]"""

from __future__ import annotations

import math

import msgspec

from rapport.core.terms import (
    ABSENT,
    Arithmetic,
    Cases,
    Constant,
    Linear,
    Members,
    Opaque,
    Same,
    Scalar,
    Term,
    subterm,
)
from rapport.core.terms import Lookup as Listed
from rapport.mediation.model.conversions import (
    Chain,
    Conversion,
    Formula,
    Identity,
    Lookup,
    Rename,
    UnitChange,
)
from rapport.mediation.model.types import Types

Found = Scalar | msgspec.UnsetType
"""A value, UNSET where it would be rejected."""


def converted(conversion: Conversion, term: Term, types: Types, *, inside: bool = False) -> Term:
    """The term after a conversion; Opaque for kinds that are neither arithmetic, list nor names.

    `inside` a chain a null is converted like all else; elsewhere it stays one, or was rejected.
    """
    if isinstance(term, Opaque) or term == ABSENT:
        return term
    if isinstance(term, Cases):
        return Cases(
            tuple(converted(conversion, case, types, inside=inside) for case in term.cases)
        )
    if isinstance(term, Listed | Constant):
        return _of_values(conversion, term, inside=inside)
    match conversion.how:
        case Identity():
            return term
        case Formula() | UnitChange() as how:
            return _calculated(_arithmetic(how), term, conversion.name)
        case Lookup() as how:
            return _listed(how, term, conversion.name)
        case Chain(steps):
            for number, each in enumerate(steps):
                term = converted(each, term, types, inside=inside or number > 0)
            return term
        case Rename(names):
            return _renamed(names, term, conversion, types)
        case _:
            return Opaque(f"the conversion {conversion.name}")


def as_members(term: Term) -> Members | None:
    """The term of an object, ready for changes of single members; None: it is no object."""
    if isinstance(term, Same):
        return Members(term.path, {}, rest=True)
    return term if isinstance(term, Members) else None


def _arithmetic(how: Formula | UnitChange) -> Arithmetic:
    affine = how.affine()
    return Arithmetic(affine.multiply, affine.add, affine.divide)


def _calculated(step: Arithmetic, term: Term, name: str) -> Term:
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
    """Where all values are known each is converted."""
    if not _is_of_scalars(conversion):
        return Opaque(f"the conversion {conversion.name}")

    def change(value: Scalar) -> Found:
        return None if value is None and not inside else _value(conversion, value)

    if isinstance(term, Listed):
        return term.mapped(change)
    found = change(term.value)
    return Opaque(_rejects(conversion.name)) if found is msgspec.UNSET else Constant(found)


def _is_of_scalars(conversion: Conversion) -> bool:
    how = conversion.how
    if isinstance(how, Chain):
        return all(map(_is_of_scalars, how.steps))
    return isinstance(how, Identity | Formula | UnitChange | Lookup)


def _value(conversion: Conversion, value: Scalar) -> Found:
    """The value after a conversion of scalars."""
    match conversion.how:
        case Formula() | UnitChange() as how:
            return _number(_arithmetic(how), value)
        case Lookup() as how:
            found = _last_said(how).get((isinstance(value, bool), value))
            return found[1] if found is not None else how.otherwise
        case Chain(steps):
            changed: Found = value
            for each in steps:
                changed = changed if changed is msgspec.UNSET else _value(each, changed)
            return changed
        case _:
            return value


def _number(step: Arithmetic, value: Scalar) -> Found:
    if value is None or isinstance(value, bool | str):
        return msgspec.UNSET
    try:
        found = step.apply(float(value))
    except OverflowError:
        return msgspec.UNSET
    return found if math.isfinite(found) else msgspec.UNSET


def _listed(how: Lookup, term: Term, name: str) -> Term:
    if isinstance(term, Same) or (isinstance(term, Linear) and not term.steps):
        return Listed(term.path, tuple(_last_said(how).values()), how.otherwise)
    return Opaque(f"the conversion {name} lists what was calculated")


def _last_said(how: Lookup) -> dict[tuple[bool, Scalar], tuple[Scalar, Scalar]]:
    """The entries that count, by key; numbers and truth values are different keys."""
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
