"""What a change may ask for at all: sizes, names, functions. [ME-6, ME-7]

Checked before anything else, so that nothing that comes through a door can keep a node busy for
long or run what its files do not name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from rapport.core.errors import InvalidInput, Problem
from rapport.mediation.changing.fields_change import AnyChange, DeclareFields
from rapport.mediation.formats.named import format_named
from rapport.mediation.interpretation import FormatChoice
from rapport.mediation.model.changes import Augment, Declare, Remove
from rapport.mediation.model.conversions import Conversion, functions_of
from rapport.mediation.model.interpretation import Rule
from rapport.mediation.model.types import ComplexType, Type

MOST_CHANGES = 200
"""Made together."""
MOST_BYTES = 512 * 1024
"""Of all changes made together, as JSON."""
MOST_TYPES = 2_000
MOST_ATTRIBUTES = 20_000
MOST_RULES = 2_000
MOST_CONVERSIONS = 2_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*", re.ASCII)
_LONGEST_NAME = 100
_TAKEN = ("changes", "check", "spoken", "again", "reload", "files")
"""Names of doors beside those of the interpretations, and of the key that names files."""


def check_formats(formats: Mapping[str, FormatChoice], declared: Collection[str]) -> list[Problem]:
    """Formats that there are not, or of interpretations that are not declared with them."""
    problems = []
    for name, choice in formats.items():
        if name not in declared:
            message = f"a format is said of {name[:60]!r}, which is not declared with it"
            problems.append(Problem(code="change.stray_format", message=message, hint="declare it"))
            continue
        try:
            format_named(choice.name, choice.options)
        except InvalidInput as error:
            told = f"{name}: {error.message}"
            problems.append(Problem(code=error.code, message=told, hint=error.hint))
    return problems


def check_changes(changes: Sequence[AnyChange], functions: Collection[str]) -> list[Problem]:
    """Everything that forbids even trying; `functions` are those that changes may name."""
    if not changes:
        message, hint = "nothing is to be changed", "give at least one change"
        return [Problem(code="change.empty", message=message, hint=hint)]
    if len(changes) > MOST_CHANGES:
        return [_too_large(f"{len(changes)} changes at once; {MOST_CHANGES} are allowed")]
    size = len(msgspec.json.encode(changes))
    if size > MOST_BYTES:
        return [_too_large(f"the changes have {size} bytes; {MOST_BYTES} are allowed")]
    return [problem for change in changes for problem in _check(change, functions)]


def _check(change: AnyChange, functions: Collection[str]) -> Iterator[Problem]:
    if isinstance(change, Declare):
        one = change.interpretation
        yield from _name(one.name)
        yield from _sizes(one.name, one.types, one.rules, one.conversions)
        yield from _functions(one.conversions, functions)
    elif isinstance(change, DeclareFields):
        yield from _name(change.name)
    elif isinstance(change, Augment):
        yield from _sizes(change.name, change.types, change.rules, change.conversions)
        yield from _functions(change.conversions, functions)
    elif not isinstance(change, Remove):
        yield from _sizes("root", (change.new,), (), ())
        yield from _functions((change.forth, change.back), functions)


def _name(name: str) -> Iterator[Problem]:
    if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name) or name in _TAKEN:
        yield Problem(
            code="interpretation.bad_name",
            message=f"{name[:60]!r} cannot name an interpretation",
            hint="use letters, digits, . _ and -, with / between the parts; "
            f"{', '.join(_TAKEN)} are taken",
        )


def _sizes(
    name: str, types: Sequence[Type], rules: Sequence[Rule], conversions: Sequence[Conversion]
) -> Iterator[Problem]:
    attributes = sum(len(each.attributes) for each in types if isinstance(each, ComplexType))
    for what, found, most in (
        ("types", len(types), MOST_TYPES),
        ("attributes", attributes, MOST_ATTRIBUTES),
        ("rules", len(rules), MOST_RULES),
        ("conversions", len(conversions), MOST_CONVERSIONS),
    ):
        if found > most:
            yield _too_large(f"{name[:60]} has {found} {what}; {most} are allowed")


def _functions(conversions: Sequence[Conversion], allowed: Collection[str]) -> Iterator[Problem]:
    for conversion in conversions:
        for name in functions_of(conversion):
            if ":" in name and name not in allowed:
                yield unknown_function(f"conversion {conversion.name}", name)


def unknown_function(who: str, name: str) -> Problem:
    """Who may change a meaning must not thereby run any function there is."""
    return Problem(
        code="change.unknown_function",
        message=f"{who}: no file of the site uses {name[:60]!r}",
        hint="functions are brought in by the site's files, never by a change",
    )


def _too_large(message: str) -> Problem:
    return Problem(code="change.too_large", message=message, hint="split it into several")
