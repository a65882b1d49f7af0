"""What somebody wants changed, from JSON or from a file of declarations. [ME-6, ME-7, ME-10]"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from rapport.core.errors import InvalidInput, Problem, suggest
from rapport.mediation.changing.fields_change import AnyChange, DeclareFields
from rapport.mediation.changing.limits import MOST_BYTES
from rapport.mediation.changing.refusing import ChangeRefused
from rapport.mediation.declare import read_interpretation
from rapport.mediation.declaring.completing import complete
from rapport.mediation.declaring.files import (
    Declarations,
    fields_tables,
    read_declarations,
    read_file,
)
from rapport.mediation.declaring.tree import Kind
from rapport.mediation.in_force import InForce, has_errors, with_own_root
from rapport.mediation.interpretation import FormatChoice
from rapport.mediation.model.changes import Augment, Change, Declare, ReplaceType
from rapport.mediation.model.conversions import Conversion
from rapport.mediation.model.interpretation import ROOT, Interpretation
from rapport.mediation.model.types import ComplexType

How = Literal["declare", "augment", "replace"]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to be made together: all or none."""

    changes: tuple[AnyChange, ...]
    formats: dict[str, FormatChoice] = {}
    expects: dict[str, str] = {}
    """Stamps by name that must be in force still, "" for one that must not be there."""


_READ_WANTED = msgspec.json.Decoder(Wanted)
_READ_CHANGE = msgspec.json.Decoder(AnyChange)
_READ_CHANGES = msgspec.json.Decoder(tuple[AnyChange, ...])


def wanted_in_json(body: bytes) -> Wanted:
    """One change, a list of changes, or a `Wanted`; raises InvalidInput for anything else.

    A member that has no meaning is refused: left out silently, it would change what data mean.
    """
    if len(body) > 2 * MOST_BYTES:
        raise ChangeRefused([_too_long(len(body))])
    try:
        raw = msgspec.json.decode(body)
        if isinstance(raw, dict) and "changes" in raw:
            found: Any = _READ_WANTED.decode(body)
            wanted: Wanted = found
        elif isinstance(raw, list):
            found = _READ_CHANGES.decode(body)
            wanted = Wanted(changes=found)
        else:
            found = _READ_CHANGE.decode(body)
            wanted = Wanted(changes=(found,))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        hint = 'such as {"type": "remove", "name": "us"}; the schema tells every member'
        message = f"this is no change of interpretations: {error}"
        raise InvalidInput(message[:500], code="change.not_a_change", hint=hint) from None
    unknown = next(_unknown_members(raw, msgspec.to_builtins(found), "$"), None)
    if unknown is not None:
        raise InvalidInput(
            f"{unknown[0][:200]} has no meaning", code="change.unknown_member", hint=unknown[1]
        )
    return wanted


def wanted_in_file(
    name: str, text: bytes, kind: Kind, in_force: InForce, *, how: How = "declare", old: str = ""
) -> Wanted:
    """What a file of declarations asks for; raises ChangeRefused with every problem at its place.

    `declare` declares each anew (what it has for root is added to root), in either form; `augment`
    adds to each, `replace` puts the one complex type it has for root in the place of root's type
    `old`, by its conversions named `forth` and `back`.
    """
    typed = in_force.typed
    read = read_declarations(name, text, kind, fields_too=how == "declare")
    if has_errors(read.problems):
        raise ChangeRefused(read.problems)
    if how == "declare":
        held = {each: one.interpretation for each, one in typed.held.items()}
        own = read.interpretations.get(ROOT)
        read = complete(read, with_own_root(typed.root, own), held)
        if has_errors(read.problems):
            raise ChangeRefused(read.problems)
    fields = _fields(name, text, kind) if how == "declare" else ()
    if not read.declared and not fields:
        message = "the file declares no interpretation"
        raise ChangeRefused([Problem(file=name, code="change.empty", message=message)])
    if how == "replace":
        return Wanted(changes=_replacement(name, read, old))
    changes = tuple(_change(each, how) for each in _parents_first(read.interpretations))
    return Wanted(changes=(*changes, *fields), formats=read.formats)


def _fields(name: str, text: bytes, kind: Kind) -> tuple[DeclareFields, ...]:
    """Those of the fields form; raises ChangeRefused with every fault at its place."""
    file = read_file(name, text, kind).file
    found, problems = [], []
    for each, section in fields_tables(file).items() if file is not None else ():
        problems += read_interpretation(each, section)[1]
        found.append(DeclareFields(each, section.values))
    if problems:
        raise ChangeRefused(problems)
    return tuple(found)


def _change(declared: Interpretation, how: How) -> Change:
    if how == "declare" and declared.name != ROOT:
        return Declare(declared)
    parts = (declared.types, declared.mappings, declared.rules, declared.conversions)
    return Augment(declared.name, *parts)


def _replacement(file: str, read: Declarations, old: str) -> tuple[Change, ...]:
    declared = read.interpretations.get(ROOT)
    types = [each for each in declared.types if isinstance(each, ComplexType)] if declared else []
    conversions = {each.name: each for each in declared.conversions} if declared else {}
    if declared is None or len(types) != 1 or set(conversions) != {"forth", "back"}:
        message = "a replacement is one complex type of root and conversions `forth` and `back`"
        hint = "[interpretations.root.types.NEW] ..., [interpretations.root.conversions.forth] ..."
        problem = Problem(file=file, code="change.no_replacement", message=message, hint=hint)
        raise ChangeRefused([problem])
    units = tuple(each for each in declared.types if each not in types)
    change = ReplaceType(old, types[0], *_both_ways(conversions))
    return (Augment(ROOT, types=units), change) if units else (change,)


def _both_ways(conversions: Mapping[str, Conversion]) -> tuple[Conversion, Conversion]:
    return conversions["forth"], conversions["back"]


def _parents_first(declared: Mapping[str, Interpretation]) -> Iterator[Interpretation]:
    """Root first; those whose parents go in circles last, for the checks to tell."""
    waiting = dict(declared)
    if ROOT in waiting:
        yield waiting.pop(ROOT)
    while waiting:
        ready = [each for each in waiting.values() if each.parent not in waiting]
        for each in ready or list(waiting.values()):
            yield waiting.pop(each.name)


def _unknown_members(raw: Any, known: Any, path: str) -> Iterator[tuple[str, str]]:
    """Paths of members that were not understood, each with a hint."""
    if isinstance(raw, dict) and isinstance(known, dict):
        for key, value in raw.items():
            if key not in known:
                yield f"{path}.{key}", suggest(key, known)
            else:
                yield from _unknown_members(value, known[key], f"{path}.{key}")
    elif isinstance(raw, list) and isinstance(known, (list, tuple)):
        for number, (one, other) in enumerate(zip(raw, known, strict=False)):
            yield from _unknown_members(one, other, f"{path}[{number}]")


def _too_long(size: int) -> Problem:
    message = f"the change has {size} bytes; {MOST_BYTES} are allowed"
    return Problem(code="change.too_large", message=message, hint="split it into several")
