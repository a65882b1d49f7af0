"""`rapport add`: a source from a file, a broker's topics or an address: shows the guess, asks what
the data do not say, writes site.toml. [CN-6, UX-2, UX-3]
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from rapport.cli.hints import wrong_use
from rapport.cli.import_file import beginning, opened
from rapport.cli.node_api import HERE, Where
from rapport.cli.output import print_line, print_note, show_problem, visible
from rapport.core.errors import InvalidInput, RapportError, SiteError, Unavailable
from rapport.core.times import parse_duration
from rapport.mediation.guessing.choices import Question, SourceChoices
from rapport.mediation.guessing.proposal import source_name
from rapport.site.broker_survey import ADDRESSES, BROKERS, listen
from rapport.site.file_changes import check_writable, replace_file
from rapport.site.new_source import (
    PARQUET,
    NewColumn,
    NewSource,
    SourceDraft,
    draft_source,
    load_site_file,
    parquet_rows,
    raw_text,
    readable,
    site_without,
    with_part,
    without_part,
)
from rapport.site.site import SITE_FILE
from rapport.site.topics import HeardTopics

_SHOWN_COLUMNS, _SHOWN_TEXT = 4, 150
_NEEDING_A_START = ("reload.other_streams", "reload.needs_restart")
"""Codes of problems of a reload: new streams and brokers are known from a start on."""


def add(
    origin: Annotated[
        str, Parameter(help="A file, mqtt://HOST/TOPIC/FILTER, or http://HOST/PATH.")
    ] = "",
    *,
    name: Annotated[str, Parameter(help="Of the source; else that of the file.")] = "",
    concept: Annotated[str, Parameter(help="What rows are about; one of the site or new.")] = "",
    key: Annotated[str, Parameter(help="The column that identifies the thing of a row.")] = "",
    thing: Annotated[str, Parameter(help="The thing, where all rows are about one.")] = "",
    time: Annotated[str, Parameter(help="The column with the time.")] = "",
    zone: Annotated[str, Parameter(help="Of local times: Europe/Berlin.")] = "",
    unit: Annotated[
        list[str] | None, Parameter(help="COLUMN=UNIT; without UNIT it is left out.")
    ] = None,
    yes: Annotated[bool, Parameter(help="Take the guess; ask nothing.", negative="")] = False,
    all: Annotated[bool, Parameter(help="Show every column.", negative="")] = False,
    listen_for: Annotated[
        str, Parameter(name="--listen", help="How long to listen to a broker.")
    ] = "10s",
    password: Annotated[str, Parameter(help="Of a broker: env:NAME or file:PATH.")] = "",
    undo: Annotated[str, Parameter(help="Take back the source of this name.")] = "",
    where: Where = HERE,
) -> None:
    """Add a source to a site: shows what its data seem to mean, asks what they do not say, writes
    site.toml after checking it, and has a running node take it over.

    What was written stands between two comments; --undo takes it back as long as nobody has changed
    it.
    """
    if undo:
        _undo(undo, where)
        return
    if not origin:
        raise wrong_use("say what to add", "rapport add FILE, or --undo NAME")
    choices = SourceChoices(
        key=key, thing=thing, time=time, zone=zone, units=_units(unit or []), concept=concept
    )
    listen_ms = parse_duration(listen_for)
    found = _new_sources(origin, name, where.directory, listen_ms=listen_ms, password=password)
    added = ""
    for number, one in enumerate(found):
        new = msgspec.structs.replace(one, choices=choices, takes_likely=yes)
        try:
            draft = _decided(new, where.directory)
        except RapportError as error:
            # Of many topics some are about other things.
            if len(found) == 1 or (number == len(found) - 1 and not added):
                raise
            print_note(visible(f"left out {one.origin}: {error.message}"))
            continue
        _show(draft, everything=all)
        _write(draft, where)
        added = draft.name
    print_line(_next(origin, added, where.directory))


def _new_sources(
    origin: str, name: str, directory: Path, *, listen_ms: int, password: str
) -> list[NewSource]:
    """What there is to add: one source of a file or an address, one for each form of messages of a
    broker. Raises InvalidInput, Unavailable.
    """
    if origin.startswith((*BROKERS, *ADDRESSES)):
        listening = listen(origin, directory, name=name, password=password, listen_ms=listen_ms)
        found = asyncio.run(listening)
        if groups := [one.topics for one in found if one.topics is not None]:
            count = sum(len(one.packets) for one in groups)
            shown = f"heard {count} messages: {_heard_text(groups)}"
            print_line(visible(shown[:_SHOWN_TEXT]))
        return found
    file = Path(origin)
    named = name or source_name(file.stem)
    more = {"events": _from_site(file, directory)}
    return [NewSource(name=named, raw=_beginning(file), origin=file.name, more=more)]


def _next(origin: str, name: str, directory: Path) -> str:
    if origin.startswith("mqtt"):
        return f"next: rapport up --site {directory}"
    if origin.startswith("http"):
        return f"next: nothing fetches it again: post what it gives to /sources/{name}, say by cron"
    return f"next: rapport replay --site {directory}, or rapport backtest POLICY"


def _heard_text(groups: Sequence[HeardTopics]) -> str:
    return "; ".join(
        f"{one.subscription} ({len(one.things)}: {', '.join(one.things[:3])})" for one in groups
    )


def _beginning(file: Path) -> bytes:
    raw = beginning(file)
    if not raw.startswith(PARQUET):
        return readable(raw)
    with opened(file) as stream:
        return parquet_rows(stream)


def _units(given: list[str]) -> dict[str, str]:
    found = {}
    for text in given:
        column, sign, unit = text.rpartition("=")
        if not sign or not column:
            raise wrong_use(f"{text[:60]!r} is not COLUMN=UNIT", 'such as --unit "temp=degC"')
        found[column] = unit
    return found


def _from_site(file: Path, site: Path) -> str:
    """The path of a file as the site names it: from its directory where it is inside."""
    whole, home = file.resolve(), site.resolve()
    return str(whole.relative_to(home) if whole.is_relative_to(home) else whole)


def _decided(new: NewSource, directory: Path) -> SourceDraft:
    """The draft once all is said that must be; asks on a terminal."""
    site = load_site_file(directory)
    draft = draft_source(new, site, directory)
    asked: set[tuple[str, str]] = set()
    while not new.takes_likely and sys.stdin.isatty():
        left = [one for one in draft.questions if (one.kind, one.column) not in asked]
        if not left:
            break
        asked.add((left[0].kind, left[0].column))
        choices = _answered(left[0], new.choices)
        new = msgspec.structs.replace(new, choices=choices)
        draft = draft_source(new, site, directory)
    if draft.needed:
        one = draft.needed[0]
        raise InvalidInput(
            f"{_subject(one)}{one.because}", code=f"source.no_{one.kind}", hint=_how_to_say(one)
        )
    if draft.errors:
        raise SiteError(draft.errors)
    return draft


def _subject(question: Question) -> str:
    return f"{question.column}: " if question.column else ""


def _how_to_say(question: Question) -> str:
    how = {
        "identity": "--key COLUMN, or --thing NAME where all rows are about one thing",
        "zone": "--zone Europe/Berlin, or zone in [site]",
        "unit": f'--unit "{question.column}=UNIT"',
    }[question.kind]
    likely = f"; --yes takes {question.likely}" if question.likely else ""
    return f"{how}{likely}; nothing was written"


def _answered(question: Question, choices: SourceChoices) -> SourceChoices:
    """The choices with the answer of somebody at the terminal; an empty one takes the likely."""
    shown = f" [{question.likely}]" if question.likely else ""
    what = {
        "identity": "which column identifies it? (or =NAME, if all rows are about one thing)",
        "zone": "which zone?",
        "unit": "which unit? (- leaves the column out)",
    }[question.kind]
    among = f" {', '.join(question.answers[:8])}" if question.answers else ""
    print_note(visible(f"{_subject(question)}{question.because}.{among}"))
    sys.stderr.write(f"{what}{shown} ")
    sys.stderr.flush()
    answer = sys.stdin.readline().strip() or question.likely
    put = msgspec.structs.replace
    if question.kind == "zone":
        return put(choices, zone=answer)
    if question.kind == "identity":
        return put(choices, thing=answer[1:]) if answer[:1] == "=" else put(choices, key=answer)
    if not answer:
        return choices
    return put(choices, units={**choices.units, question.column: "" if answer == "-" else answer})


def _show(draft: SourceDraft, *, everything: bool) -> None:
    """What it is taken for, in few lines: columns with doubts first."""
    new = "new concept " if draft.is_new_concept else ""
    print_line(f"{draft.name}: {draft.rows:,} rows of {draft.format}, about {new}{draft.concept}")
    used = [one for one in draft.columns if one.becomes or one.doubts]
    shown = draft.columns if everything else sorted(used, key=lambda one: not one.doubts)
    limit = len(shown) if everything else _SHOWN_COLUMNS
    for column in shown[:limit]:
        print_line(visible(f"  {_column_text(column)}"))
    rest = [one.name for one in draft.columns if one not in shown[:limit]]
    if rest:
        print_line(visible(f"  {len(rest)} more: {', '.join(rest)}"[:_SHOWN_TEXT]))
    for doubt in draft.doubts if everything else draft.doubts[:1]:
        print_line(visible(f"unsure: {doubt}"))
    if draft.rejected:
        one = draft.rejected[0]
        print_line(visible(f"row {one.row} would be quarantined: {one.message}"[:_SHOWN_TEXT]))
    elif draft.readings:
        first = draft.readings[0]
        value = " ".join(map(str, first.value))
        time = f" at {first.time}" if first.time else ""
        print_line(visible(f"first reading: {first.stream} of {first.key} is {value}{time}"))


def _column_text(column: NewColumn) -> str:
    if column.becomes:
        unit = f" in {column.unit}" if column.unit else ""
        text = f"{column.name} is {column.becomes}{unit}"
    else:
        text = f"{column.name} is left out"
    if column.doubts:
        return f"{text}; unsure: {'; '.join(column.doubts)}"
    return f"{text}: {column.reason}" if column.reason else text


def _write(draft: SourceDraft, where: Where) -> None:
    check_writable(where.directory, SITE_FILE)
    before = raw_text(where.directory)
    replace_file(where.directory, SITE_FILE, before, with_part(before, draft.text))
    for one in draft.problems[:1]:
        show_problem(one)
    names = ", ".join(draft.sources)
    undo = f"rapport add --undo {draft.name}"
    print_line(f"wrote {names} to site.toml ({_taken_over(where)}); undo: {undo}")


def _undo(name: str, where: Where) -> None:
    check_writable(where.directory, SITE_FILE)
    before = raw_text(where.directory)
    site_without(where.directory, name)
    replace_file(where.directory, SITE_FILE, before, without_part(before, name))
    print_line(f"took {name} out of site.toml ({_taken_over(where)})")


def _taken_over(where: Where) -> str:
    """Whether a running node has the file now."""
    try:
        where.remote().post("/reload", b"{}")
    except Unavailable as error:
        if error.code == "node.unreachable":
            return "no node runs"
        return f"the node has not taken it over: {error.message}"
    except RapportError as error:
        problems = error.problems_found()
        if problems and all(one.code in _NEEDING_A_START for one in problems):
            return "it counts when the node is started again: rapport stop, rapport up"
        reason = problems[0].message if problems else error.message
        return f"the node has not taken it over: {reason}"
    return "the node has it"
