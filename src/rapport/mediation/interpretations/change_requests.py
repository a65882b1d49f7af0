"""Requests to change interpretations: parsing, limits, and reasons to refuse them. [ME-6, ME-7,
ME-10]

Limits are checked first, so that no request keeps a node busy for long or runs a function that its
files do not name. A declaration in the fields form is the table of a file and is read by the same
reader, so tables can be moved between files and requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from rapport.core.errors import InterpretationError, InvalidInput, Problem, suggest
from rapport.core.json_objects import is_deeper
from rapport.kernel.toml import Section, TomlFile
from rapport.mediation.conversion.conversions import Conversion, functions_of
from rapport.mediation.declarations.fields_tables import TableColumns, read_interpretation
from rapport.mediation.declarations.files import (
    Declarations,
    fields_tables,
    read_declarations,
    read_file,
)
from rapport.mediation.declarations.inference import complete_declarations
from rapport.mediation.declarations.placed_values import MAX_FILE_DEPTH, FileKind
from rapport.mediation.declarations.typed_tables import is_interpretation_name, is_typed_table
from rapport.mediation.fields_compiler import check_binding
from rapport.mediation.formats.catalogue import get_format
from rapport.mediation.interpretations.model import (
    CANONICAL,
    FieldsInterpretation,
    FormatChoice,
    Interpretation,
    Rule,
    SourceLocation,
)
from rapport.mediation.interpretations.repository import (
    ActiveInterpretations,
    has_errors,
    merged_canonical_model,
)
from rapport.mediation.interpretations.type_changes import (
    Augment,
    Change,
    Declare,
    Remove,
    ReplaceType,
    parents_first,
)
from rapport.mediation.source_bindings import SourceBinding, source_problems
from rapport.mediation.types import ComplexType, Type


class DeclareFields(msgspec.Struct, frozen=True, tag="fields"):
    """Declares or redeclares an interpretation in the fields form; `said` is its table."""

    name: str
    said: dict[str, Any]


AnyChange = Change | DeclareFields
"""A change in either form, as stored in the log."""


def read_fields_declaration(
    change: DeclareFields, tables: TableColumns | None = None
) -> tuple[FieldsInterpretation | None, list[Problem]]:
    """The declared interpretation, or every fault of its table."""
    if is_typed_table(change.said):
        message = f"{change.name[:60]!r} has keys of the typed form"
        hint = 'declare it as such: {"type": "declare", "interpretation": ...}'
        return None, [Problem(code="interpretation.other_form", message=message, hint=hint)]
    if is_deeper(change.said, MAX_FILE_DEPTH):
        message = f"tables and lists are nested more than {MAX_FILE_DEPTH} levels deep"
        return None, [Problem(code="interpretation.too_deep", message=message)]
    found, problems = read_interpretation(change.name, _section(change), tables)
    named = [_named(change.name, each) for each in problems]
    return (
        None if found is None else msgspec.structs.replace(found, place=SourceLocation())
    ), named


def other_form_problem(name: str, found: str) -> Problem:
    """A name cannot change its form while it is in force."""
    return Problem(
        code="interpretation.other_form",
        message=f"{name[:60]!r} is an interpretation of the {found} form",
        hint="remove it first, or choose another name",
    )


def same_meaning(
    one: Mapping[str, FieldsInterpretation], other: Mapping[str, FieldsInterpretation]
) -> bool:
    """Whether both are equal apart from their locations."""
    if one.keys() != other.keys():
        return False
    return all(one[name].meaning() == other[name].meaning() for name in one)


def _section(change: DeclareFields) -> Section:
    return Section(TomlFile("", "", {}), ("interpretations", change.name), change.said)


def _named(name: str, problem: Problem) -> Problem:
    message = f"{name[:60]}: {problem.message}"
    return msgspec.structs.replace(problem, message=message, file="", line=0, column=0)


MOST_CHANGES = 200
"""Maximum changes per request."""
MOST_BYTES = 512 * 1024
"""Maximum size of a request's changes as JSON."""
MOST_TYPES = 2_000
MOST_ATTRIBUTES = 20_000
MOST_RULES = 2_000
MOST_CONVERSIONS = 2_000
_TAKEN = ("changes", "check", "spoken", "again", "reload", "files")
"""Names used by HTTP paths next to interpretations, and the key `files`."""


def check_formats(formats: Mapping[str, FormatChoice], declared: Collection[str]) -> list[Problem]:
    """Reports unknown formats and formats of interpretations that the request does not declare."""
    problems = []
    for name, choice in formats.items():
        if name not in declared:
            message = f"a format is given for {name[:60]!r}, which the request does not declare"
            problems.append(Problem(code="change.stray_format", message=message, hint="declare it"))
            continue
        try:
            get_format(choice.name, choice.options)
        except InvalidInput as error:
            message = f"{name}: {error.message}"
            problems.append(Problem(code=error.code, message=message, hint=error.hint))
    return problems


def check_changes(changes: Sequence[AnyChange], functions: Collection[str]) -> list[Problem]:
    """Reports what forbids even trying a request; `functions` are the allowed site functions."""
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
    if not is_interpretation_name(name) or name in _TAKEN:
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
                yield unknown_function_problem(f"conversion {conversion.name}", name)


def unknown_function_problem(subject: str, name: str) -> Problem:
    """The right to change an interpretation must not grant the right to run arbitrary
    functions.
    """
    return Problem(
        code="change.unknown_function",
        message=f"{subject}: no file of the site uses {name[:60]!r}",
        hint="only the files of the site may add functions",
    )


def _too_large(message: str) -> Problem:
    return Problem(code="change.too_large", message=message, hint="split it into several")


class ChangeRefused(InterpretationError):
    """A change that failed its checks and had no effect. `problems` lists every fault."""

    code = "change.refused"
    status = 422

    def __init__(self, problems: Iterable[Problem]) -> None:
        super().__init__(problems)
        errors = [each for each in self.problems if each.severity == "error"]
        if errors and all(each.code == "interpretation.in_use" for each in errors):
            self.status = 409
        if errors:
            self.code = errors[0].code


def in_use_problems(removed: Iterable[str], bindings: Iterable[SourceBinding]) -> Iterator[Problem]:
    """Reports interpretations that cannot be removed because a source uses them."""
    names = set(removed)
    for binding in bindings:
        if binding.interpretation in names:
            yield Problem(
                code="interpretation.in_use",
                message=f"{binding.interpretation} cannot be removed: "
                f"source {binding.source!r} uses it",
                hint="bind the source to another one first",
            )


def new_misfits(
    bindings: Iterable[SourceBinding], before: ActiveInterpretations, after: ActiveInterpretations
) -> Iterator[Problem]:
    """Warnings for sources that the change breaks; the change is applied nevertheless."""
    for binding in bindings:
        known = _misfits(binding, before)
        for problem in _misfits(binding, after):
            if problem not in known:
                yield msgspec.structs.replace(problem, severity="warning")


def _misfits(binding: SourceBinding, in_force: ActiveInterpretations) -> list[Problem]:
    """Without locations, so that known misfits compare equal."""
    found = source_problems(binding, in_force)
    own = in_force.fields.get(binding.interpretation)
    if own is not None and not found:
        found = check_binding(msgspec.structs.replace(own, place=SourceLocation()), binding)
    return found


FileAction = Literal["declare", "augment", "replace"]


class ChangeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to apply together: all or none."""

    changes: tuple[AnyChange, ...]
    formats: dict[str, FormatChoice] = {}
    expects: dict[str, str] = {}
    """Expected stamps by name; "" for an interpretation that must not exist."""


def request_from_json(body: bytes) -> ChangeRequest:
    """Parses a change, a list of changes, or a `ChangeRequest`; raises InvalidInput. Unknown
    members are refused: ignoring one could change the meaning of data.
    """
    if len(body) > 2 * MOST_BYTES:
        message = f"the change has {len(body)} bytes; {MOST_BYTES} are allowed"
        raise ChangeRefused([_too_large(message)])
    try:
        raw = msgspec.json.decode(body)
        if not isinstance(raw, dict) or "changes" not in raw:
            raw = {"changes": raw if isinstance(raw, list) else [raw]}
        request = msgspec.convert(raw, ChangeRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        hint = 'such as {"type": "remove", "name": "us"}; the schema lists every member'
        message = f"this is not a change of interpretations: {error}"
        raise InvalidInput(message[:500], code="change.not_a_change", hint=hint) from None
    unknown = next(_unknown_members(raw, msgspec.to_builtins(request), "$"), None)
    if unknown is not None:
        raise InvalidInput(
            f"{unknown[0][:200]} has no meaning", code="change.unknown_member", hint=unknown[1]
        )
    return request


def request_from_file(
    name: str,
    text: bytes,
    kind: FileKind,
    in_force: ActiveInterpretations,
    *,
    how: FileAction = "declare",
    old: str = "",
) -> ChangeRequest:
    """Converts a file of declarations; raises ChangeRefused with every problem and its
    location. `declare` declares each interpretation in either form (for the canonical model it
    adds types); `augment` extends each; `replace` replaces the canonical type `old` by the
    single complex type in the file, with its conversions `forth` and `back`.
    """
    typed = in_force.typed
    read = read_declarations(name, text, kind, fields_too=how == "declare")
    if has_errors(read.problems):
        raise ChangeRefused(read.problems)
    if how == "declare":
        held = {each: one.interpretation for each, one in typed.registered.items()}
        own = read.interpretations.get(CANONICAL)
        read = complete_declarations(read, merged_canonical_model(typed.canonical, own), held)
        if has_errors(read.problems):
            raise ChangeRefused(read.problems)
    fields = _fields(name, text, kind) if how == "declare" else ()
    if not read.declared and not fields:
        message = "the file declares no interpretation"
        raise ChangeRefused([Problem(file=name, code="change.empty", message=message)])
    if how == "replace":
        return ChangeRequest(changes=_replacement(name, read, old))
    changes = tuple(_change(each, how) for each, _ in parents_first(read.interpretations.values()))
    return ChangeRequest(changes=(*changes, *fields), formats=read.formats)


def _fields(name: str, text: bytes, kind: FileKind) -> tuple[DeclareFields, ...]:
    """The declarations in the fields form; raises ChangeRefused."""
    file = read_file(name, text, kind).file
    found, problems = [], []
    for each, section in fields_tables(file).items() if file is not None else ():
        problems += read_interpretation(each, section)[1]
        found.append(DeclareFields(each, section.values))
    if problems:
        raise ChangeRefused(problems)
    return tuple(found)


def _change(declared: Interpretation, how: FileAction) -> Change:
    if how == "declare" and declared.name != CANONICAL:
        return Declare(declared)
    parts = (declared.types, declared.mappings, declared.rules, declared.conversions)
    return Augment(declared.name, *parts)


def _replacement(file: str, read: Declarations, old: str) -> tuple[Change, ...]:
    declared = read.interpretations.get(CANONICAL)
    types = [each for each in declared.types if isinstance(each, ComplexType)] if declared else []
    conversions = {each.name: each for each in declared.conversions} if declared else {}
    if declared is None or len(types) != 1 or set(conversions) != {"forth", "back"}:
        message = (
            "a replacement is one canonical complex type and the conversions `forth` and `back`"
        )
        hint = "[interpretations.root.types.NEW] ..., [interpretations.root.conversions.forth] ..."
        problem = Problem(file=file, code="change.no_replacement", message=message, hint=hint)
        raise ChangeRefused([problem])
    units = tuple(each for each in declared.types if each not in types)
    change = ReplaceType(old, types[0], conversions["forth"], conversions["back"])
    return (Augment(CANONICAL, types=units), change) if units else (change,)


def _unknown_members(raw: Any, known: Any, path: str) -> Iterator[tuple[str, str]]:
    """Paths of unknown members, each with a hint."""
    if isinstance(raw, dict) and isinstance(known, dict):
        for key, value in raw.items():
            if key not in known:
                yield f"{path}.{key}", suggest(key, known)
            else:
                yield from _unknown_members(value, known[key], f"{path}.{key}")
    elif isinstance(raw, list) and isinstance(known, (list, tuple)):
        for number, (one, other) in enumerate(zip(raw, known, strict=False)):
            yield from _unknown_members(one, other, f"{path}[{number}]")
