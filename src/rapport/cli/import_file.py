"""`rapport import`: imports a file of readings into a source, or proposes an interpretation of the
file (`--guess`). [ME-11, ME-13, CH-12, UX-3]

Events go through the running node; without one they are appended to the site's store.
"""

from __future__ import annotations

import asyncio
import shutil
import stat
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from itertools import islice
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from cyclopts import Parameter

from rapport.channel.backends.stores import open_channels
from rapport.channel.config import channels_from_site
from rapport.channel.log.channels import LoggedChannels
from rapport.cli.arguments import site_directory
from rapport.cli.hints import cannot_read, cannot_write, unknown, wrong_use
from rapport.cli.node_api import HERE, Remote, Where, request_bodies
from rapport.cli.output import print_note, stderr, write_bytes, write_json
from rapport.core.codec import to_cloudevent
from rapport.core.errors import InvalidInput, SiteError, StoreUnavailable
from rapport.core.event import Event, RowIds
from rapport.core.release import history_headers
from rapport.kernel.clock import SystemClock
from rapport.kernel.files import files_matching, is_inside
from rapport.kernel.settings import load_settings
from rapport.kernel.toml import TomlFile
from rapport.mediation.concepts import KEY, TIME, Concepts
from rapport.mediation.guessing.columns import Column
from rapport.mediation.guessing.concept_match import ConceptMatch
from rapport.mediation.guessing.guess import Guess

_SAMPLE_BYTES = 32 * 1024 * 1024


def beginning(file: Path) -> bytes:
    """As much of a file as a guess looks at, to the end of a line."""
    with opened(file) as stream:
        raw = stream.read(_SAMPLE_BYTES)
        if stream.read(1):
            raw = raw[: raw.rfind(b"\n") + 1] or raw
    return raw


@contextmanager
def at_rest(file: Path) -> Iterator[Path]:
    """The file as one that can be read from its beginning more than once: what comes out of a pipe
    (`zcat A801.csv.gz | rapport import /dev/stdin`) is put aside first, on disk.
    """
    if not _is_passing(file):
        yield file
        return
    with NamedTemporaryFile(prefix="rapport-import-") as kept:
        with opened(file) as stream:
            shutil.copyfileobj(stream, kept)
        kept.flush()
        yield Path(kept.name)


def _is_passing(file: Path) -> bool:
    """Whether data that were read of the file are gone; a missing file is reported when opened."""
    try:
        mode = file.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


@contextmanager
def opened(file: Path) -> Iterator[BufferedReader]:
    """The file to read; raises InvalidInput when it cannot be."""
    try:
        with file.open("rb") as stream:
            yield stream
    except OSError as error:
        raise cannot_read(file, error) from None


def format_of(
    file: Path, directory: Path, source: str, format: str | None, options: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The format by the option, else by the source's interpretation, else a guess."""
    from rapport.mediation.formats.catalogue import parse_format
    from rapport.mediation.guessing.guess import guess
    from rapport.mediation.guessing.sample import sample_of

    declared = _declared_format(directory, source)
    if format is None and not options and declared is not None:
        return parse_format(declared)
    found = guess(sample_of(beginning(file), name=format or "", options=options))
    print_note(f"read as {found.format}: {found.because}")
    return found.format, found.options


def _declared_format(directory: Path, source: str) -> Any:
    """What stands at `format` of the interpretation of a source, or of the nearest one above it;
    None when nothing does. Raises UnknownName when the site has no such source.
    """
    from rapport.mediation.declarations.typed_tables import declared_parent, is_typed_table

    file = TomlFile.load(directory / "site.toml")
    sources = dict(file.section("sources").sections())
    if source not in sources:
        raise unknown(
            "source",
            source,
            sources,
            if_none="declare it in site.toml: [sources.NAME]; --guess instead of --source says how",
        )
    name = str(sources[source].values.get("interpretation", ""))
    tables: dict[str, Any] = {}
    for each in (file, *_further_files(file, directory)):
        tables = {**each.section("interpretations").values, **tables}
    while isinstance(table := tables.pop(name, None), dict):  # parents may go in circles
        if "format" in table or not is_typed_table(table):
            return table.get("format")
        name = declared_parent(name, table)
    return None


def _further_files(file: TomlFile, directory: Path) -> Iterator[TomlFile]:
    """Those that the site names for its interpretations; raises SiteError for a broken one."""
    from rapport.mediation.declarations.files import KINDS, read_file

    named = file.section("interpretations").values.get("files", [])
    home = directory.resolve()
    for pattern in [named] if isinstance(named, str) else named:
        for path in files_matching(home, str(pattern)):
            kind = KINDS.get(path.suffix.lower())
            if kind is not None and is_inside(path, home):
                read = read_file(path.name, path.read_bytes(), kind)
                if read.file is None:
                    raise SiteError(list(read.problems))
                yield read.file


def propose_file(
    file: Path,
    format: str,
    options: dict[str, Any],
    *,
    name: str,
    out: Path | None,
    site: Path | None,
) -> None:
    """Writes the proposal to `out` or stdout, and the doubts to stderr."""
    from rapport.mediation.guessing.concept_match import match_concept
    from rapport.mediation.guessing.guess import guess
    from rapport.mediation.guessing.proposal import propose
    from rapport.mediation.guessing.sample import sample_of
    from rapport.policy.language.lexer import is_name

    found = guess(sample_of(beginning(file), name=format, options=options))
    becoming = match_concept(found, _concepts(site), name=name, is_name=is_name)
    text = propose(found, becoming, name=name, file=file.name).encode()
    if out is None:
        write_bytes(text)
    else:
        _write_new(out, text)
    show_summary(found, becoming)


def _concepts(site: Path | None) -> Concepts:
    """Those of the site that is named, or that stands here; none without a site."""
    from rapport.policy.config.loader import ontology_from_site
    from rapport.site.interpretations import concepts_of

    path = site_directory(site) / "site.toml"
    if site is None and not path.exists():
        return {}
    ontology, _problems = ontology_from_site(TomlFile.load(path), trusted=False)
    return concepts_of(ontology)


def _write_new(path: Path, text: bytes) -> None:
    """Never over a file that somebody may have edited."""
    try:
        with path.open("xb") as file:
            file.write(text)
    except FileExistsError:
        raise InvalidInput(
            f"{path} is there already", code="import.exists", hint="name another file with --out"
        ) from None
    except OSError as error:
        raise cannot_write(path, error) from None


def show_summary(guess: Guess, becoming: ConceptMatch) -> None:
    """A table of the columns on stderr, and how much is left to settle."""
    from rich.table import Table
    from rich.text import Text

    title = f"{guess.rows:,} rows as {guess.format}, about: {becoming.concept}"
    table = Table(title=title, title_justify="left")
    for heading in ("column", "taken for", "unit", "becomes", "unsure of"):
        table.add_column(heading, no_wrap=heading == "becomes")
    open_questions = len(guess.doubts)
    for column, unit, doubts in _rows(guess, becoming):
        open_questions += len(doubts)
        becomes = _becomes(guess, becoming, column)
        cells = (column.name, guess.uses[column.name], unit, becomes, "; ".join(doubts))
        table.add_row(*(Text(cell) for cell in cells))
    console = stderr()
    console.print(table)
    for doubt in guess.doubts:
        console.print(f"unsure: {doubt}", soft_wrap=True, markup=False)
    if guess.key is None:
        console.print("unsure: no column identifies the thing that a row describes")
    left = open_questions + (guess.key is None)
    console.print("1 question is left to settle" if left == 1 else f"{left} questions are left")


def _becomes(guess: Guess, becoming: ConceptMatch, column: Column) -> str:
    """The attribute of the concept; in brackets while something must be settled before."""
    use = guess.uses[column.name]
    if use in ("time", "identity"):
        return TIME if use == "time" else KEY
    match = becoming.matches.get(column.path)
    if match is None or not match.fits:
        return ""
    is_settled = match.taken and match.sure
    return match.attribute if is_settled else f"({match.attribute})"


def _rows(guess: Guess, becoming: ConceptMatch) -> Iterator[tuple[Column, str, tuple[str, ...]]]:
    values = {value.column.path: value.unit for value in guess.values}
    for column in guess.columns:
        if guess.time is not None and column.path == guess.time.columns[0]:
            yield column, "", guess.time.doubts
        elif guess.key is not None and column.path == guess.key.field:
            yield column, "", guess.key.doubts
        elif column.path in values:
            unit = values[column.path]
            match = becoming.matches[column.path]
            doubts = [] if unit.sure else [unit.because]
            doubts += [] if match.sure or match.because in doubts else [match.because]
            yield column, unit.unit, tuple(doubts)
        else:
            yield column, "", ()


Send = Callable[[list[Event]], int]
"""Stores events and returns how many were there already."""


@contextmanager
def open_target(where: Where, source: str) -> Iterator[Send]:
    """A way to store events of a source. The lock of the store shows whether a node runs; with
    `--url` it is that node in any case.
    """
    with asyncio.Runner() as runner:
        channels = None if where.url else _open_store(where.directory, runner)
        if channels is None:
            yield _through_node(where.remote(), source)
            return
        try:
            yield lambda events: runner.run(_append(channels, source, events))
        finally:
            runner.run(channels.close())


async def _append(channels: LoggedChannels, source: str, events: list[Event]) -> int:
    appended = await channels.channel(f"raw.{source}").append(events)
    return appended.duplicates


def _through_node(remote: Remote, source: str) -> Send:
    def send(events: list[Event]) -> int:
        parts = [msgspec.json.encode(to_cloudevent(event)) for event in events]
        path = f"/channels/raw.{quote(source, safe='')}/events"
        return sum(remote.post(path, body)["duplicates"] for _count, body in request_bodies(parts))

    return send


def _open_store(site: Path, runner: asyncio.Runner) -> LoggedChannels | None:
    """The site's channels for this process; None when a node has them."""
    file = TomlFile.load(site / "site.toml")
    declared, problems = channels_from_site(file)
    if any(problem.severity == "error" for problem in problems):
        raise SiteError(problems)
    settings = load_settings(file.section("node"), flags={})

    async def open_them() -> LoggedChannels:
        return open_channels(
            site / settings.data / "log",
            SystemClock(),
            declared,
            site=site,
            segment_bytes=settings.segment_bytes,
        )

    try:
        return runner.run(open_them())
    except StoreUnavailable as error:
        if error.code == "store.locked":
            return None
        raise


_BATCH = 1_000


def import_file(
    file: Annotated[Path, Parameter(help="CSV, JSON, JSON lines, NGSI, SenML, XML, MessagePack.")],
    *,
    source: Annotated[str | None, Parameter(help="The source of the site it is from.")] = None,
    guess: Annotated[bool, Parameter(help="Propose an interpretation; publish nothing.")] = False,
    format: Annotated[str | None, Parameter(help="The format, where it is known.")] = None,
    option: Annotated[
        list[str] | None, Parameter(help="Of the format, as NAME=VALUE; may be repeated.")
    ] = None,
    out: Annotated[Path | None, Parameter(help="Write the proposal here, not to stdout.")] = None,
    notify: Annotated[
        bool, Parameter(help="Carry out the actions of what is found, however old it is.")
    ] = False,
    where: Where = HERE,
) -> None:
    """Publish the rows of a file as history of a source, or guess what they mean.

    Through the node when it runs, else into the site's store. Rows that were imported before are
    not stored again: a copy of the file adds nothing, an appended file its new rows. Policies
    evaluate the rows in order of time, together with what the log holds of that time; live policies
    are not affected. What they find is marked as history, and nobody is notified unless --notify is
    given.
    """
    options = dict(map(_option, option or []))
    if guess:
        propose_file(
            file, format or "", options, name=source or file.stem, out=out, site=where.site
        )
        return
    if not source:
        raise wrong_use("say the --source, or --guess", f"rapport import {file} --guess")
    sent = duplicates = 0
    with at_rest(file) as kept:
        chosen, options = format_of(kept, where.directory, source, format, options)
        _check_rows(kept, chosen, options)
        id_field = _id_field(where.directory, source)
        marks = history_headers(notify=notify)
        events = _events(kept, source, chosen, options, id_field, marks)
        with _progress(file) as note_progress, open_target(where, source) as send:
            while batch := list(islice(events, _BATCH)):
                duplicates += send(batch)
                sent += len(batch)
                note_progress(sent)
    write_json({"published": sent - duplicates, "duplicates": duplicates})
    if sent > duplicates:
        note_progress = "people are notified" if notify else "nobody is notified"
        print_note(
            f"imported as history: policies evaluate it when the node has read it; {note_progress}"
        )


def _check_rows(file: Path, name: str, options: dict[str, Any]) -> None:
    """Reads all of it once: a file is imported as a whole or not at all. Once a row is mended, it
    and those after it are other events.
    """
    from rapport.mediation.formats.catalogue import read_values

    with opened(file) as stream:
        for _value in read_values(stream, name, options):
            pass


def _events(
    file: Path,
    source: str,
    name: str,
    options: dict[str, Any],
    id_field: str,
    marks: dict[str, str],
) -> Iterator[Event]:
    """One event for each row, named by what the file holds up to it, or by the `id_field`."""
    from rapport.mediation.formats.catalogue import read_values
    from rapport.mediation.source_bindings import field_id

    now_ms, ids = SystemClock().now_ms(), RowIds()
    with opened(file) as stream:
        for value in read_values(stream, name, options):
            data = msgspec.json.encode(value)
            id = ids.next(data)
            yield Event(
                source=source,
                id=field_id(value, id_field) or id,
                type=f"{source}.raw",
                subject="",
                time=now_ms,
                data=data,
                headers=marks,
            )


def _id_field(site: Path, source: str) -> str:
    """The field that names the rows of a source, where the site declares one."""
    declared = TomlFile.load(site / "site.toml").section("sources").section(source).values.get("id")
    return declared if isinstance(declared, str) else ""


def _option(text: str) -> tuple[str, Any]:
    """`metadata=8` as ("metadata", 8): a value of TOML, or else the text as it stands."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise wrong_use(f"{text[:60]!r} is not NAME=VALUE", 'such as delimiter=";"')
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value


@contextmanager
def _progress(file: Path) -> Iterator[Any]:
    """Says how many rows are done, on a terminal only."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = stderr()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(f"{file.name}: 0 rows")
        yield lambda done: bar.update(task, description=f"{file.name}: {done:,} rows")
