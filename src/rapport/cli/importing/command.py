"""`rapport import`: a file of readings into a source, or a guess at what the file means.
[ME-13, UX-3]
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from rapport.cli.importing.file import at_rest, opened
from rapport.cli.importing.format import format_of
from rapport.cli.importing.proposal import propose_file
from rapport.cli.importing.target import open_target
from rapport.cli.terminal import stderr, write_json
from rapport.cli.where import HERE, Where
from rapport.core.errors import InvalidInput
from rapport.core.event import Event
from rapport.core.ids import RowIds
from rapport.core.release import history_headers
from rapport.kernel.clock import SystemClock
from rapport.kernel.toml import TomlFile

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
        raise InvalidInput(
            "say the --source, or --guess",
            code="cli.wrong_use",
            hint=f"rapport import {file} --guess",
        )
    sent = duplicates = 0
    with at_rest(file) as kept:
        chosen, options = format_of(kept, where.directory, source, format, options)
        _check_rows(kept, chosen, options)
        id_field = _id_field(where.directory, source)
        marks = history_headers(notify=notify)
        events = _events(kept, source, chosen, options, id_field, marks)
        with _progress(file) as told, open_target(where, source) as send:
            while batch := list(islice(events, _BATCH)):
                duplicates += send(batch)
                sent += len(batch)
                told(sent)
    write_json({"published": sent - duplicates, "duplicates": duplicates})
    if sent > duplicates:
        told = "people are notified" if notify else "nobody is notified"
        note = f"imported as history: policies evaluate it when the node has read it; {told}"
        stderr().print(note, soft_wrap=True, markup=False)


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
    said = TomlFile.load(site / "site.toml").section("sources").section(source).values.get("id")
    return said if isinstance(said, str) else ""


def _option(text: str) -> tuple[str, Any]:
    """`metadata=8` as ("metadata", 8): a value of TOML, or else the text as it stands."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise InvalidInput(
            f"{text[:60]!r} is not NAME=VALUE", code="cli.wrong_use", hint='such as delimiter=";"'
        )
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
