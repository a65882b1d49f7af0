"""Writes a guess as an interpretation file to edit, with a reason for every line. Pure. [ME-10,
ME-11, ME-13]

A line whose comment begins with `UNSURE:` needs a check; lines that begin with `# ` have no effect
until somebody settles them. Rows with several columns of numbers get the typed form, others one
interpretation in the fields form per column. The typed form has

    types.Row       the columns in use, each with its unit
    conversions     the notation of the time, and of numbers written as text
    mappings        the attribute of the concept for each column

Tables for site.toml (a new concept, the source) are appended as comments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from rapport.core.errors import InvalidInput
from rapport.mediation.concepts import KEY, TIME, TIME_TYPE
from rapport.mediation.conversion.notations import EPOCH_MILLISECONDS, EPOCH_SECONDS
from rapport.mediation.guessing.columns import Column, ColumnPathName
from rapport.mediation.guessing.concept_match import (
    AttributeMatch,
    ConceptMatch,
)
from rapport.mediation.guessing.guess import Guess, ValueGuess
from rapport.mediation.guessing.sample import TEXT_FORMATS
from rapport.mediation.guessing.vocabulary import slug
from rapport.mediation.patterns import Pattern, PatternItem
from rapport.mediation.types import TAG
from rapport.units.quantities import unit_named

UNSURE = "UNSURE:"
"""Marks a line that needs a check."""
_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def toml_of(value: Any) -> str:
    """A value as TOML on one line.

    >>> toml_of({"name": "csv", "metadata": 8, "hora utc": ["a"]})
    '{ name = "csv", metadata = 8, "hora utc" = ["a"] }'
    """
    if isinstance(value, Mapping):
        inner = ", ".join(f"{toml_key(key)} = {toml_of(each)}" for key, each in value.items())
        return f"{{ {inner} }}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(toml_of(each) for each in value)}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(key: str) -> str:
    return key if _BARE.fullmatch(key) else toml_of(key)


def header(*path: str) -> str:
    """`[interpretations.inmet.types.Row]`."""
    return f"[{'.'.join(map(toml_key, path))}]"


def line(key: str, value: Any, because: str, doubts: tuple[str, ...] = ()) -> str:
    """An effective line with its reason; doubts mark it as unsure."""
    text = f"{UNSURE} {'; '.join(doubts)} ({because})" if doubts else f"sure: {because}"
    return f"{toml_key(key)} = {toml_of(value)}  # {_clean(text)}"


def settled_elsewhere(key: str, value: Any, because: str, doubts: tuple[str, ...]) -> str:
    """An effective line about something that another line is unsure of: only one of them says so,
    and none says that it is sure.
    """
    if not doubts:
        return line(key, value, because)
    return f"{toml_key(key)} = {toml_of(value)}  # {_clean(because)}"


def open_line(key: str, value: Any, because: str) -> str:
    """A commented line, effective once somebody settles it and removes its prefix."""
    return f"# {UNSURE} {toml_key(key)} = {toml_of(value)}  # {_clean(because)}"


def idle_line(key: str, value: Any, because: str) -> str:
    """A commented line that nothing uses."""
    return f"# {toml_key(key)} = {toml_of(value)}  # {_clean(because)}"


def comment(text: str) -> str:
    return f"# {_clean(text)}"


def _clean(text: str) -> str:
    """Removes characters that would end the comment."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


_SEE_ABOVE = ("see the top of the file",)


def fields_form(guess: Guess, name: str) -> Iterator[str]:
    """The lines of all interpretations; `name`: of the source."""
    names = interpretation_names(guess, name)
    for value in guess.values:
        yield header("interpretations", names[value.column.path])
        yield f"about = {toml_of(value.column.name)}"
        yield format_line(guess)
        yield _time(guess)
        yield _identity(guess)
        yield _value(guess, value)
        yield ""


def interpretation_names(guess: Guess, name: str) -> dict[ColumnPathName, str]:
    """A unique name for each value."""
    found: dict[ColumnPathName, str] = {}
    for number, value in enumerate(guess.values, start=1):
        path = value.column.path
        wanted = f"{base_name(name)}/{slug('-'.join(path)) or f'column-{number}'}"
        found[path] = wanted if wanted not in found.values() else f"{wanted}-{number}"
    return found


def base_name(name: str) -> str:
    """A valid interpretation name for a source."""
    base = slug(name) or "source"
    return f"{base}-feed" if base in ("root", "files") else base


def format_line(guess: Guess) -> str:
    format: Any = {"name": guess.format, **guess.options} if guess.options else guess.format
    return line("format", format, guess.because, _SEE_ABOVE if guess.doubts else ())


def value_summary(column: Column) -> str:
    """The range of its numbers, and how many are missing."""
    missing = column.rows - column.filled
    without = f", {missing} of {column.rows} rows without" if missing else ""
    return f"{column.low:g} to {column.high:g}{without}"


def _time(guess: Guess) -> str:
    if guess.timed:
        return "# time: the data say it in the way of the format"
    if guess.time is None:
        return f"# {UNSURE} no column looks like a time; without one the time of arrival counts"
    rule: dict[str, Any] = {"field": _field(guess.time.field), "format": guess.time.format}
    if guess.time.zone:
        rule["zone"] = guess.time.zone
    return line("time", rule, guess.time.because, guess.time.doubts)


def _identity(guess: Guess) -> str:
    if guess.key is None:
        return f'# {UNSURE} which column identifies the subject? identity = {{ field = "..." }}'
    return line("identity", {"field": _field(guess.key.field)}, guess.key.because, guess.key.doubts)


def _value(guess: Guess, value: ValueGuess) -> str:
    column, unit = value.column, value.unit
    rule: dict[str, Any] = {"field": _field(column.path)}
    if unit.unit:
        rule["unit"] = unit.unit
    if column.is_text and guess.format not in TEXT_FORMATS:
        rule["decimal"] = guess.marks.decimal
    if unit.sure:
        return line("value", rule, f"{value_summary(column)}; {unit.because}")
    doubt = unit.because
    if not unit.unit:
        doubt += "; readings are held until the unit is declared"
    return line("value", rule, value_summary(column), (doubt,))


def _field(path: ColumnPathName) -> Any:
    return path[0] if len(path) == 1 else list(path)


_NO_ATTRIBUTES = ("extends", "kind", "attributes")
"""Keys of a type with another meaning; such columns are declared in a nested table."""
_EPOCHS = (EPOCH_SECONDS, EPOCH_MILLISECONDS)
_MOST_EXACT = 1e15
"""Largest integer that is written as a name without loss."""


class RenameLine(NamedTuple):
    """A rename in the mapping with its line in the file."""

    old: str
    new: str
    text: str


def can_be_typed(guess: Guess) -> bool:
    """Whether there are several columns of numbers and all used ones are at the top level,
    since a mapping cannot read from an optional object.
    """
    paths = [value.column.path for value in guess.values]
    paths += [each.field for each in (guess.time, guess.key) if each is not None]
    key = _column(guess, guess.key.field) if guess.key else None
    can_name = key is None or not _is_number(guess, key) or abs(key.high) < _MOST_EXACT
    flat = all(len(path) == 1 and path[0] not in ("", TAG) for path in paths)
    return len(guess.values) > 1 and flat and can_name


def typed_form(guess: Guess, concept_match: ConceptMatch, name: str, file: str) -> Iterator[str]:
    """The lines of the interpretation; `name`: of the source."""
    own = ("interpretations", base_name(name))
    row = "Row" if concept_match.concept != "Row" else "FileRow"
    yield header(*own)
    yield f"about = {toml_of(f'rows of {file}')}"
    yield format_line(guess)
    yield ""
    yield from _row(guess, concept_match, (*own, "types", row))
    conversions = [*_conversions(guess, concept_match)]
    if conversions:
        yield from ("", header(*own, "conversions"), *conversions)
    for value in _texts(guess, concept_match):
        yield from _rule(value, row, own)
    yield ""
    yield from _mapping(guess, concept_match, row, own)
    yield ""


def _row(guess: Guess, concept_match: ConceptMatch, path: tuple[str, ...]) -> Iterator[str]:
    names = [column.path[-1] for column in guess.columns]
    yield header(*path, *(("attributes",) if set(names) & set(_NO_ATTRIBUTES) else ()))
    if guess.key is not None:
        kind = "number" if _is_number(guess, _column(guess, guess.key.field)) else "text"
        yield line(guess.key.field[0], kind, guess.key.because, guess.key.doubts)
    if guess.time is not None:
        how = guess.time
        yield settled_elsewhere(how.field[0], _time_kind(guess), how.because, how.doubts)
    for value, match in concept_match.columns(guess.values):
        yield _column_line(guess, value, match)


def _column_line(guess: Guess, value: ValueGuess, match: AttributeMatch) -> str:
    column, unit = value.column, value.unit
    name, because = column.path[0], f"{value_summary(column)}; {unit.because}"
    if not unit.unit:
        there = f"; root has {match.unit}" if match.unit else ""
        return open_line(name, _typed(column, unit.likely or "..."), f"{because}{there}")
    kind = unit_named(unit.unit).symbol
    if not match.taken and match.fits:
        return open_line(name, _typed(column, kind), f"{because}; {match.because}")
    if not match.taken:
        return idle_line(name, _typed(column, kind), because)
    shown = _typed(column, "text" if _is_text(guess, column) else kind)
    doubts = () if unit.sure else (unit.because,)
    return line(name, shown, because if unit.sure else value_summary(column), doubts)


def _typed(column: Column, kind: str) -> Any:
    return kind if column.filled == column.rows else {"type": kind, "optional": True}


def _conversions(guess: Guess, concept_match: ConceptMatch) -> Iterator[str]:
    if guess.time is not None:
        yield line("when", _when(guess), guess.time.because, guess.time.doubts)
    if guess.key is not None and _is_number(guess, _column(guess, guess.key.field)):
        how = {"from": "number", "to": "text", "write-number": {"decimal": "point"}}
        yield line("name", how, "identities are texts in the canonical model")
    for value in _texts(guess, concept_match):
        yield line(
            f"read {value.column.name}",
            _reading(guess, value, concept_match.matches[value.column.path]),
            f"the numbers come as text, such as {value.column.examples[0]!r}",
        )


def _when(guess: Guess) -> dict[str, Any]:
    assert guess.time is not None
    how: dict[str, Any] = {"format": guess.time.format}
    if guess.time.zone:
        how["zone"] = guess.time.zone
    parse = {"from": _parsed(guess), "to": TIME_TYPE.name, "parse-time": how}
    if _parsed(guess) == _time_kind(guess):
        return parse
    first = {"from": "text", "to": "number", "parse-number": {"decimal": guess.marks.decimal}}
    return {"from": "text", "to": TIME_TYPE.name, "chain": [first, parse]}


def _parsed(guess: Guess) -> str:
    """The argument type of the time conversion."""
    return "number" if guess.time is not None and guess.time.format in _EPOCHS else "text"


def _time_kind(guess: Guess) -> str:
    """The type of the time column; text formats parse declared numbers."""
    column = _column(guess, guess.time.field) if guess.time is not None else None
    return "text" if column is not None and _is_text(guess, column) else _parsed(guess)


def _reading(guess: Guess, value: ValueGuess, match: AttributeMatch) -> dict[str, Any]:
    """A conversion from text to a number in the canonical unit."""
    own = unit_named(value.unit.unit).symbol
    read = {"from": "text", "to": own, "parse-number": {"decimal": guess.marks.decimal}}
    if own == match.unit:
        return read
    return {"from": "text", "to": match.unit, "chain": [read, {"units": [own, match.unit]}]}


def _rule(value: ValueGuess, row: str, own: tuple[str, ...]) -> Iterator[str]:
    yield from ("", f"[{header(*own, 'rules')}]")
    pattern = Pattern((PatternItem("", row), PatternItem(value.column.path[0], "")))
    yield f"match = {toml_of(str(pattern))}"
    yield f"convert = {toml_of(f'read {value.column.name}')}"
    yield 'direction = "in"'


def _mapping(
    guess: Guess, concept_match: ConceptMatch, row: str, own: tuple[str, ...]
) -> Iterator[str]:
    yield f"[{header(*own, 'mappings')}]"
    yield f"from = {toml_of(row)}"
    if concept_match.known:
        yield line("to", concept_match.concept, "most columns fit this concept of the site")
    else:
        text = f"{UNSURE} a new concept, for you to name"
        yield f"to = {toml_of(concept_match.concept)}  {comment(text)}"
    yield 'direction = "in"'
    yield 'drop = ["*"]'
    if guess.thing:
        created = {KEY: {"type": "text", "value": guess.thing}}
        yield line("create", created, "all rows are about one thing")
    elif guess.key is None:
        yield comment(
            f'{UNSURE} which column identifies the subject? Add the column, as "text", to {row} '
            'and below, as COLUMN = "key"; or, where all rows are about one thing: '
            'create = { key = { type = "text", value = "..." } }'
        )
    if guess.timed:
        yield "# time: the data say it in the way of the format"
    elif guess.time is None:
        yield comment(f"{UNSURE} no column looks like a time; the time of arrival counts")
    yield ""
    yield header(*own, "mappings", "rename")
    renames = [*_key_and_time(guess), *_values(guess, concept_match)]
    # Renames run in sequence: a name must be free before it is reused.
    old = {each.old for each in renames}
    yield from (each.text for each in sorted(renames, key=lambda each: each.new in old))


def _key_and_time(guess: Guess) -> Iterator[RenameLine]:
    for found, name in ((guess.key, KEY), (guess.time, TIME)):
        if found is not None and found.field[0] != name:
            text = settled_elsewhere(found.field[0], name, found.because, found.doubts)
            yield RenameLine(found.field[0], name, text)


def _values(guess: Guess, concept_match: ConceptMatch) -> Iterator[RenameLine]:
    for value, match in concept_match.columns(guess.values):
        name, new = value.column.path[0], match.attribute
        if match.taken and name == new:
            yield RenameLine("", "", comment(f"{name} keeps its name: sure: {match.because}"))
        elif match.taken and match.sure:
            yield RenameLine(name, new, line(name, new, match.because))
        elif match.taken:
            place = f"{concept_match.concept}.{new}"
            yield RenameLine(name, new, line(name, new, place, (match.because,)))
        elif not match.fits or value.unit.unit:
            yield RenameLine("", "", idle_line(name, new, match.because))
        elif name != new:
            yield RenameLine("", "", idle_line(name, new, "once its unit is declared"))


def _texts(guess: Guess, concept_match: ConceptMatch) -> list[ValueGuess]:
    """Columns with numbers as text in a format that has numbers."""
    return [
        value
        for value, match in concept_match.columns(guess.values)
        if match.taken and _is_text(guess, value.column)
    ]


def _column(guess: Guess, path: tuple[str, ...]) -> Column | None:
    return next((column for column in guess.columns if column.path == path), None)


def _is_number(guess: Guess, column: Column | None) -> bool:
    """Whether its values are JSON numbers."""
    return (
        column is not None
        and column.kind == "number"
        and not column.is_text
        and guess.format not in TEXT_FORMATS
    )


def _is_text(guess: Guess, column: Column) -> bool:
    return column.is_text and guess.format not in TEXT_FORMATS


_SOURCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}", re.ASCII)
HEADING = 'For site.toml, without the "# " before each line:'


class SourceProposal(NamedTuple):
    """A proposed source: name, attributes, unsettled attributes, interpretation."""

    name: str
    given: list[str]
    open: list[str]
    interpretation: str


def site_tables(
    guess: Guess, concept_match: ConceptMatch, sources: list[SourceProposal]
) -> Iterator[str]:
    """The lines, each a comment."""
    tables = [] if concept_match.known else [*_concept(guess, concept_match)]
    tables += [_source(concept_match.concept, source) for source in sources]
    if tables:
        yield comment(HEADING)
    for table in tables:
        yield "#"
        yield from (f"# {each}" for each in table)


def source_name(name: str) -> str:
    """The given name, or a valid one like it."""
    return name if _SOURCE.fullmatch(name) else slug(name) or "source"


def _concept(guess: Guess, concept_match: ConceptMatch) -> Iterator[list[str]]:
    own = ("concepts", concept_match.concept)
    matches = [match for _value, match in concept_match.columns(guess.values)]
    names = [f'{toml_key(match.attribute)} = "number"' for match in matches]
    yield [header(*own, "attributes"), *names]
    units = [
        f"{toml_key(match.attribute)} = {toml_of(match.unit)}"
        if match.unit
        else open_line(match.attribute, value.unit.likely or "...", match.because)
        for value, match in concept_match.columns(guess.values)
    ]
    yield [header(*own, "units"), *units]


def _source(concept: str, source: SourceProposal) -> list[str]:
    several = source.given or source.open
    given = f"attributes = {toml_of(several)}"
    if len(several) == 1 and not source.open:
        given = f"attribute = {toml_of(several[0])}"
    if source.open:
        left = ", ".join(source.open)
        given = f"{given}  {comment(f'{UNSURE} only when they are settled: {left}')}"
    name = toml_of(source.interpretation)
    lines = [f"concept = {toml_of(concept)}", given, f"interpretation = {name}"]
    return [header("sources", source.name), *lines]


def is_typed(guess: Guess) -> bool:
    """Whether a new source gets the typed form: the fields form has no constant identity."""
    return can_be_typed(guess) or bool(guess.thing)


def alone(guess: Guess, concept_match: ConceptMatch) -> tuple[Guess, ConceptMatch]:
    """The same for payloads that are one value alone: what was named after its quantity is the
    field `value` there.
    """
    path = ("value",)
    values = tuple(
        ValueGuess(msgspec.structs.replace(one.column, path=path), one.unit)
        for one in guess.values
        if not one.column.path[-1].startswith("level_")
    )
    match = next(iter(concept_match.columns(guess.values)), None)
    matches = {} if match is None else {path: match[1]}
    return (
        msgspec.structs.replace(guess, format="value", options={}, values=values[:1]),
        msgspec.structs.replace(concept_match, matches=matches),
    )


def source_tables(
    guess: Guess, concept_match: ConceptMatch, *, name: str, file: str, more: Mapping[str, Any]
) -> list[str]:
    """All tables that a source needs, in effect: a new concept, the source, its interpretation;
    several sources where each column needs its own. `name`: of the source; `more`: its further
    keys. Raises InvalidInput when nothing could be read by them.
    """
    if not concept_match.given:
        raise _nothing_given(guess, concept_match)
    given = {path: match for path, match in concept_match.matches.items() if match.taken}
    concept_match = msgspec.structs.replace(concept_match, matches=given)
    base = msgspec.structs.replace(
        guess, values=tuple(one for one in guess.values if one.column.path in given)
    )
    if is_typed(base):
        if any(len(one.column.path) > 1 for one in base.values):
            raise InvalidInput(
                "rows with objects inside need a column that identifies the thing",
                code="source.no_key",
                hint="say which one: --key COLUMN",
            )
        sources = [
            SourceProposal(source_name(name), concept_match.given, [], base_name(name)),
        ]
        lines = [*typed_form(base, concept_match, name, file)]
    else:
        sources = _sources(base, concept_match, name)
        lines = [*fields_form(base, name)]
    tables = [] if concept_match.known else [*_concept(base, concept_match)]
    for source in sources:
        further = [f"{toml_key(key)} = {toml_of(value)}" for key, value in more.items()]
        tables.append([*_source(concept_match.concept, source), *further])
    return [*(row for table in tables for row in (*table, "")), *lines]


def _nothing_given(guess: Guess, concept_match: ConceptMatch) -> InvalidInput:
    if not guess.values:
        return InvalidInput(
            "no column has numbers with a known unit",
            code="source.no_values",
            hint="say the unit of a column: --unit COLUMN=UNIT",
        )
    first = next(iter(concept_match.matches.values()))
    return InvalidInput(
        f"no column becomes an attribute of {concept_match.concept!r}: {first.because}",
        code="source.no_values",
        hint="name another concept, or a new one: --concept NAME",
    )


def propose(guess: Guess, concept_match: ConceptMatch, *, name: str, file: str) -> str:
    """The text of the file; `name`: of the source, `file`: of the data."""
    lines = [*_opening(guess, concept_match, file), ""]
    if not guess.values:
        lines.append(comment(f"{UNSURE} no column has numbers that could be readings"))
    elif can_be_typed(guess):
        lines += typed_form(guess, concept_match, name, file)
        source = SourceProposal(
            source_name(name), concept_match.given, concept_match.open, base_name(name)
        )
        lines += site_tables(guess, concept_match, [source])
    else:
        lines += fields_form(guess, name)
        lines += site_tables(guess, concept_match, _sources(guess, concept_match, name))
    return "\n".join(lines).rstrip() + "\n"


def _sources(guess: Guess, concept_match: ConceptMatch, name: str) -> list[SourceProposal]:
    """A source for each fields-form interpretation whose column matches an attribute."""
    names = interpretation_names(guess, name)
    base, is_one = source_name(name), len(names) == 1
    return [
        SourceProposal(
            base if is_one else f"{base}-{match.attribute}", [match.attribute], [], names[path]
        )
        for path, match in concept_match.matches.items()
        if match.fits
    ]


def _opening(guess: Guess, concept_match: ConceptMatch, file: str) -> Iterator[str]:
    yield comment(f"Proposed from {guess.rows:,} rows of {file}. Look at each {UNSURE}")
    if not can_be_typed(guess):
        yield "# Keep the interpretations you need; bind a source to each by its name."
    for doubt in guess.doubts:
        yield comment(f"{UNSURE} {doubt}")
    if concept_match.known and concept_match.concept in _entity_types(guess):
        yield comment(
            f"{UNSURE} the data have the type {concept_match.concept!r}, which is the concept and "
            "not the row: rename one of the two"
        )
    yield from _left_out(guess)


def _left_out(guess: Guess) -> Iterator[str]:
    for column in guess.columns:
        use = guess.uses[column.name]
        if use == "place":
            yield comment(
                f"{column.name}: a place on earth; canonical points are metres in a plan, so it is "
                "left out until a conversion says how"
            )
        elif use == "left out":
            shown = ", ".join(column.examples) or "nothing"
            yield comment(f"left out: {column.name} ({column.kind}): {shown[:100]}")


def _entity_types(guess: Guess) -> set[str]:
    """The types of NGSI entities."""
    if guess.format != "ngsi":
        return set()
    return {
        str(value)
        for column in guess.columns
        if column.path == ("type",)
        for value in column.values
    }
