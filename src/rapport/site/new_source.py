"""A new source from a sample of its data: the guess with its doubts, the tables for site.toml, a
preview of the readings; written and taken back as one part of the file. [CN-6, ME-13]

`rapport add` and the console use it. The part stands between two comments and is appended, so that
everything else in the file stays as it is; its first comment has a digest, by which it is known
whether somebody has changed it since.
"""

from __future__ import annotations

import re
import tomllib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Mapping
from hashlib import sha256
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet

from rapport.channel.mqtt.bridge import named_levels, to_event
from rapport.core.errors import (
    Conflict,
    DuplicateName,
    InterpretationError,
    InvalidInput,
    Problem,
    SiteError,
    UnknownName,
)
from rapport.core.event import Event, StoredEvent
from rapport.core.times import format_time
from rapport.kernel.toml import TomlFile
from rapport.mediation.concepts import KEY, TIME
from rapport.mediation.formats.catalogue import read_values
from rapport.mediation.guessing.choices import (
    Question,
    SourceChoices,
    likely_answers,
    questions_about,
    settle,
    without_unknown_units,
)
from rapport.mediation.guessing.columns import Column
from rapport.mediation.guessing.concept_match import ConceptMatch, match_concept
from rapport.mediation.guessing.guess import Guess, guess
from rapport.mediation.guessing.proposal import (
    alone,
    header,
    source_name,
    source_tables,
    toml_of,
)
from rapport.mediation.guessing.sample import MAX_ROWS, sample_of
from rapport.mediation.reader import build_transformer
from rapport.policy.config.loader import ontology_from_site
from rapport.policy.language.lexer import is_name
from rapport.site.file_changes import read_raw
from rapport.site.interpretations import concepts_of, interpretations_in_site, source_bindings
from rapport.site.site import SITE_FILE, check_site
from rapport.site.topics import HeardTopics

PARQUET = b"PAR1"
PREVIEWED = 20
"""Rows of the sample whose readings are shown."""
_ALL_DIGITS = 12
_LOOKED_AT = 64 * 1024
_SHOWN_REJECTIONS = 5


class NewColumn(msgspec.Struct, frozen=True, kw_only=True):
    """A column of the sample: what it is taken for, and why that may be wrong."""

    name: str
    use: str
    """`time`, `identity`, `value`, `place` or `left out`."""
    unit: str = ""
    becomes: str = ""
    """The attribute of the concept; empty: nothing."""
    examples: list[str] = []
    reason: str = ""
    doubts: list[str] = []
    may_identify: bool = False
    likely_unit: str = ""


class PreviewReading(msgspec.Struct, frozen=True, kw_only=True):
    """A reading that a row of the sample becomes."""

    stream: str
    key: str
    time: str
    value: list[Any]


class RejectedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the sample that would be quarantined."""

    row: int
    reason: str
    message: str
    hint: str = ""


class SourceDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A source as it would be written."""

    name: str
    format: str
    because: str
    """Why it is read in this format."""
    rows: int
    concept: str
    is_new_concept: bool
    columns: list[NewColumn]
    doubts: list[str]
    """About the file as a whole."""
    questions: list[Question]
    """What the data do not say and nobody has said."""
    text: str = ""
    """The part for site.toml; empty while a question must be answered."""
    sources: list[str] = []
    """The names of the sources in it: more than one where each column needs its own."""
    problems: list[Problem] = []
    """What `rapport check` would find that it does not find without the part."""
    readings: list[PreviewReading] = []
    rejected: list[RejectedRow] = []

    @property
    def errors(self) -> list[Problem]:
        """The problems for which it is not written."""
        return [one for one in self.problems if one.severity == "error"]

    @property
    def needed(self) -> list[Question]:
        """Questions without whose answers nothing can be written."""
        return [one for one in self.questions if one.must]


class NewSource(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a source and what is said about them."""

    name: str
    raw: bytes
    """The beginning of the data, as `readable` gives it."""
    origin: str
    """What the sample is of, for people: a file's name, a topic."""
    format: str = ""
    """Empty: found out."""
    options: Mapping[str, Any] = {}
    choices: SourceChoices = SourceChoices()
    takes_likely: bool = False
    """Whether likely answers are taken for what nobody said."""
    more: Mapping[str, Any] = {}
    """Further keys of the source, such as `events`."""
    bridge: Mapping[str, Any] = {}
    """Keys of the broker that the readings come from, without `in`; empty: there is none."""
    topics: HeardTopics | None = None
    """What was heard from it."""


def readable(raw: bytes) -> bytes:
    """The beginning of a file as text; rows of Parquet become JSON lines. Raises InvalidInput, also
    for what is no text.
    """
    if raw.startswith(PARQUET):
        return parquet_rows(BytesIO(raw))
    if b"\0" in raw[:_LOOKED_AT] and raw[:2] not in (BOM_UTF16_LE, BOM_UTF16_BE):
        raise InvalidInput(
            "these data are no text",
            code="format.not_text",
            hint="give CSV, JSON, JSON lines, XML, or a whole file of Parquet",
        )
    return raw


def parquet_rows(file: BinaryIO) -> bytes:
    """The first rows of a Parquet file as JSON lines; raises InvalidInput for another file."""
    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            rows = (row for batch in table.iter_batches(MAX_ROWS) for row in batch.to_pylist())
            return b"\n".join(msgspec.json.encode(row) for row in islice(rows, MAX_ROWS))
    except (pa.ArrowException, OSError, msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidInput(
            f"this is no Parquet file: {error}",
            code="source.bad_parquet",
            hint="a Parquet file has to be there as a whole",
        ) from None


def draft_source(new: NewSource, site: TomlFile, directory: Path) -> SourceDraft:
    """What would be written for a sample, checked with everything else in the site. Raises
    InvalidInput for data or choices that cannot be used, DuplicateName for a source that exists.
    """
    name = source_name(new.name)
    taken = site.section("sources").values
    if name in taken:
        added = added_sources(site.text.encode())
        raise DuplicateName(
            f"the site has a source {name!r} already",
            code="source.exists",
            hint="choose another name"
            + (f", or take it back: rapport add --undo {name}" if name in added else ""),
        )
    found, questions = _decided(new, site, name)
    ontology, _problems = ontology_from_site(site, trusted=False)
    concepts = concepts_of(ontology)
    fitting = _fitting(found, concepts, new.choices.concept, name)
    draft = SourceDraft(
        name=name,
        format=found.format,
        because=found.because,
        rows=found.rows,
        concept=fitting.concept,
        is_new_concept=not fitting.known,
        columns=[_column(found, fitting, one) for one in found.columns],
        doubts=list(found.doubts),
        questions=[one for one in questions if _matters(one, found, fitting)],
    )
    if draft.needed:
        return draft
    settled = without_unknown_units(found)
    settled_match = _fitting(settled, concepts, new.choices.concept or fitting.concept, name)
    if new.topics is not None and new.topics.quantity:
        settled, settled_match = alone(settled, settled_match)
    tables = source_tables(settled, settled_match, name=name, file=new.origin, more=new.more)
    if new.topics is not None:
        tables += _bridge_table(name, new, tables)
    return _checked(draft, part_of_site(name, new.origin, tables), new, found, site, directory)


def _bridge_table(name: str, new: NewSource, tables: list[str]) -> list[str]:
    """The table of the broker, with a line for each source."""
    assert new.topics is not None
    sources = tomllib.loads("\n".join(tables))["sources"]
    entries = [{"topic": new.topics.subscription, "source": source} for source in sources]
    keys = [f"{key} = {toml_of(value)}" for key, value in {**new.bridge, "in": entries}.items()]
    return ["", header("mqtt", name), *keys]


def _raw_events(source: str, new: NewSource, found: Guess) -> Iterator[StoredEvent]:
    """The first rows of the sample as the raw events that they will be."""
    if new.topics is not None:
        for number, packet in enumerate(new.topics.packets[:PREVIEWED], start=1):
            fields = named_levels(new.topics.subscription, packet.topic)
            event = to_event(
                packet, bridge="", source=source, fresh_id=f"{number}", now_ms=0, fields=fields
            )
            yield StoredEvent(number, 0, event)
        return
    rows = islice(read_values(BytesIO(new.raw), found.format, found.options), PREVIEWED)
    for number, row in enumerate(rows, start=1):
        data = msgspec.json.encode(row)
        yield StoredEvent(number, 0, Event(source, f"{number}", f"{source}.raw", "", 0, data))


def _decided(new: NewSource, site: TomlFile, name: str) -> tuple[Guess, list[Question]]:
    """The guess with all choices, and what is still open."""
    sample = sample_of(new.raw, name=new.format, options=new.options)
    zone = new.choices.zone or str(site.section("site").values.get("zone", ""))
    first, choices = guess(sample), msgspec.structs.replace(new.choices, zone=zone)
    found = settle(first, choices)
    if not new.takes_likely:
        return found, list(questions_about(found))
    likely = likely_answers(questions_about(found))
    if found.key is None and not choices.thing:
        choices = msgspec.structs.replace(choices, thing=name)
    found = settle(first, choices, likely)
    return found, [one for one in questions_about(found) if one.kind != "identity"]


def _matters(question: Question, found: Guess, fitting: ConceptMatch) -> bool:
    """Whether an answer changes anything: not the unit of a column without an attribute."""
    columns = {one.column.name: one.column.path for one in found.values}
    path = columns.get(question.column) if question.kind == "unit" else None
    return path is None or fitting.matches[path].fits


def _fitting(found: Guess, concepts: Any, wanted: str, name: str) -> ConceptMatch:
    """The concept of the rows: the one that is wanted, else the best."""
    if not wanted:
        return match_concept(found, concepts, name=name, is_name=is_name)
    if wanted in concepts:
        of_it = {wanted: concepts[wanted]}
        fitting = match_concept(found, of_it, name=name, is_name=is_name)
        if fitting.known:
            return fitting
        raise InvalidInput(
            f"no column becomes an attribute of {wanted!r}",
            code="source.no_values",
            hint=f"it has {', '.join(concepts[wanted]) or 'no attributes'}; name a new concept",
        )
    if not is_name(wanted):
        raise InvalidInput(
            f"{wanted[:60]!r} can be no concept",
            code="source.bad_concept",
            hint="a letter, then letters, digits, - and _; no word of the policy language",
        )
    fitting = match_concept(found, {}, name=name, is_name=is_name)
    return msgspec.structs.replace(fitting, concept=wanted)


def _column(found: Guess, fitting: ConceptMatch, column: Column) -> NewColumn:
    use = found.uses[column.name]
    made = NewColumn(
        name=column.name,
        use=use,
        examples=list(column.examples),
        may_identify=column.kind in ("text", "number"),
    )
    put = msgspec.structs.replace
    if use == "time" and found.time is not None:
        own = found.time if column.path == found.time.columns[0] else None
        doubts = list(own.doubts) if own else []
        return put(made, becomes=TIME, reason=found.time.because, doubts=doubts)
    if use == "identity" and found.key is not None:
        return put(made, becomes=KEY, reason=found.key.because, doubts=list(found.key.doubts))
    value = next((one for one in found.values if one.column is column), None)
    if value is None:
        return made
    match, unit = fitting.matches[column.path], value.unit
    doubts = [] if unit.sure else [unit.because]
    doubts += [] if match.sure or match.because in doubts else [match.because]
    return put(
        made,
        unit=unit.unit,
        likely_unit=unit.likely,
        becomes=match.attribute if match.taken else "",
        reason=unit.because if unit.sure else "",
        doubts=doubts,
    )


# --- the part of the file -------------------------------------------------------------------------


def part_of_site(name: str, origin: str, lines: list[str]) -> str:
    """The lines between the two comments; `name` has no characters that matter in comments."""
    shown = "".join(sign if sign.isprintable() else " " for sign in origin)[:100]
    body = "\n".join(lines).strip("\n")
    begin = f"# --- source {name}: from {shown}; rapport add --undo {name} takes this part back"
    return f"{begin}\n{body}\n# --- end of source {name}\n"


def with_part(text: bytes, part: str) -> bytes:
    """The file with the part at its end, in the file's own line ends."""
    end = b"\r\n" if b"\r\n" in text else b"\n"
    gap = b"" if not text else end if text.endswith(b"\n") else end * 2
    first, _, rest = part.encode().replace(b"\n", end).partition(end)
    return text + gap + first + b" (" + _digest(gap + rest) + b")" + end + rest


def without_part(text: bytes, name: str) -> bytes:
    """The file as it would be had the part never been added. Raises UnknownName when there is no
    such part, Conflict when it was changed since.
    """
    found = _part(name).search(text)
    if found is None:
        names = [
            one.decode() for one in re.findall(rb"^# --- source ([A-Za-z0-9._-]+):", text, re.M)
        ]
        raise UnknownName("added source", name, names, code="source.not_added")
    before, rest = text[: found.start()], found["rest"]
    for gap in (b"\r\n\r\n", b"\r\n", b"\n\n", b"\n", b""):
        if before.endswith(gap) and _digest(gap + rest) == found["digest"]:
            return before[: len(before) - len(gap)] + text[found.end() :]
    line = before.count(b"\n") + 1
    raise Conflict(
        f"the part of source {name!r} was changed since it was added",
        code="source.changed",
        hint=f"take out by hand what is no longer needed: {SITE_FILE}, line {line}",
    )


def added_sources(text: bytes) -> list[str]:
    """The names of the parts that can be taken back, changed or not."""
    return [
        one.decode() for one in re.findall(rb"^# --- end of source ([A-Za-z0-9._-]+)", text, re.M)
    ]


def _part(name: str) -> re.Pattern[bytes]:
    own = re.escape(name).encode()
    return re.compile(
        rb"^# --- source " + own + rb":[^\n]*\((?P<digest>[0-9a-f]{12})\)\r?\n"
        rb"(?P<rest>(?:(?!# --- end of source )[^\n]*\n)*?# --- end of source " + own + rb"\r?\n)",
        re.MULTILINE,
    )


def _digest(part: bytes) -> bytes:
    return sha256(part).hexdigest()[:_ALL_DIGITS].encode()


def site_without(directory: Path, name: str) -> tuple[TomlFile, TomlFile]:
    """The site's file as it is, and without the part of a source. Raises SiteError when the rest
    needs it, such as a policy about its concept.
    """
    before = load_site_file(directory)
    after = TomlFile.parse(without_part(raw_text(directory), name), name=SITE_FILE)
    errors = [one for one in _new_problems(directory, before, after) if one.severity == "error"]
    if errors:
        raise SiteError(errors)
    return before, after


def load_site_file(directory: Path) -> TomlFile:
    return TomlFile.load(directory / SITE_FILE, name=SITE_FILE)


def raw_text(directory: Path) -> bytes:
    """The bytes of the site's file; empty when there is none. Raises Unavailable."""
    return read_raw(directory, SITE_FILE) or b""


# --- check and preview ----------------------------------------------------------------------------


def _checked(
    draft: SourceDraft, part: str, new: NewSource, found: Guess, site: TomlFile, directory: Path
) -> SourceDraft:
    """The draft with its text, what the check says of it, and the readings of the sample."""
    put = msgspec.structs.replace
    file = TomlFile.parse(with_part(site.text.encode(), part), name=SITE_FILE)
    names = [one for one in file.section("sources").values if one not in _sources_of(site)]
    draft = put(draft, text=part, sources=names, problems=_new_problems(directory, site, file))
    if draft.errors:
        return draft
    try:
        events = {name: list(_raw_events(name, new, found)) for name in names}
        readings, rejected = _preview(events, file, directory)
    except InterpretationError as error:
        return put(draft, problems=[*draft.problems, *error.problems])
    return put(draft, readings=readings, rejected=rejected)


def _sources_of(site: TomlFile) -> dict[str, Any]:
    return site.section("sources").values


def _new_problems(directory: Path, before: TomlFile, after: TomlFile) -> list[Problem]:
    """Errors of the file that is to be; of warnings and hints only those that are new."""
    known = {(one.code, one.message) for one in check_site(directory, file=before)}
    return [
        one
        for one in check_site(directory, file=after)
        if one.severity == "error" or (one.code, one.message) not in known
    ]


def _preview(
    raw: Mapping[str, list[StoredEvent]], file: TomlFile, directory: Path
) -> tuple[list[PreviewReading], list[RejectedRow]]:
    """What the first rows become, by the same code that will read them."""
    ontology, _problems = ontology_from_site(file, trusted=False)
    in_force, _checks = interpretations_in_site(file, directory, ontology).files.activate()
    bindings = source_bindings(ontology, file)
    readings: list[PreviewReading] = []
    rejected: dict[int, RejectedRow] = {}
    for name, events in raw.items():
        found, refused = build_transformer(bindings[name], in_force).apply_many(events)
        readings += [_reading(one) for one in found]
        for one in refused:
            row = RejectedRow(row=one.position, reason=one.code, message=one.message, hint=one.hint)
            rejected.setdefault(row.row, row)
    return readings, list(rejected.values())[:_SHOWN_REJECTIONS]


def _reading(event: Event) -> PreviewReading:
    payload = event.payload()
    return PreviewReading(
        stream=event.type,
        key=payload["key"],
        time=format_time(event.time) if event.time else "",
        value=list(payload["value"]),
    )
