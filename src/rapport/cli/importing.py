"""`rapport import`: a file of readings into a source, or a guess at what the file means.
[ME-13, UX-3]
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from rapport.cli.importing_target import open_target
from rapport.cli.remote import TokenFileOption, UrlOption
from rapport.cli.sites import SiteOption, site_directory
from rapport.cli.terminal import stderr, write_bytes, write_json
from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.event import Event
from rapport.kernel.clock import SystemClock
from rapport.kernel.paths import files_matching, is_inside
from rapport.kernel.toml import TomlFile

_BATCH = 1_000
_SAMPLE_BYTES = 32 * 1024 * 1024


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
    site: SiteOption = None,
    url: UrlOption = None,
    token_file: TokenFileOption = None,
) -> None:
    """Publish the rows of a file as raw events of a source, or guess what they mean.

    Through the node when it runs, else into the site's store. Rows that were imported before are
    not stored again.
    """
    options = dict(map(_option, option or []))
    if guess:
        _propose(file, format or "", options, name=source or file.stem, out=out)
        return
    if not source:
        raise InvalidInput(
            "say the --source, or --guess", code="cli.wrong_use", hint="rapport import FILE --guess"
        )
    directory = site_directory(site)
    chosen, options = _format_of(file, directory, source, format, options)
    _check_rows(file, chosen, options)
    events = _events(file, source, chosen, options)
    with _progress(file) as told, open_target(directory, source, url, token_file) as send:
        sent = duplicates = 0
        while batch := list(islice(events, _BATCH)):
            duplicates += send(batch)
            sent += len(batch)
            told(sent)
    write_json({"published": sent - duplicates, "duplicates": duplicates})


def _propose(
    file: Path, format: str, options: dict[str, Any], *, name: str, out: Path | None
) -> None:
    from rapport.cli.importing_summary import show_summary
    from rapport.mediation.guessing.guess import guess
    from rapport.mediation.guessing.proposal import propose
    from rapport.mediation.guessing.sample import sample_of

    found = guess(sample_of(_beginning(file), name=format, options=options))
    text = propose(found, name=name, file=file.name).encode()
    if out is None:
        write_bytes(text)
    else:
        _write_new(out, text)
    show_summary(found)


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
        raise InvalidInput(f"cannot write {path}: {error.strerror}", code="cli.no_file") from None


def _format_of(
    file: Path, directory: Path, source: str, format: str | None, options: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """What was said when called, else what the source's interpretation says, else a guess."""
    from rapport.mediation.formats.named import read_format
    from rapport.mediation.guessing.guess import guess
    from rapport.mediation.guessing.sample import sample_of

    declared = _declared_format(directory, source)
    if format is None and not options and declared is not None:
        return read_format(declared)
    found = guess(sample_of(_beginning(file), name=format or "", options=options))
    stderr().print(f"read as {found.format}: {found.because}", soft_wrap=True, markup=False)
    return found.format, found.options


def _declared_format(directory: Path, source: str) -> Any:
    """What stands at `format` of the interpretation of a source; None when nothing does. Raises
    UnknownName when the site has no such source.
    """
    file = TomlFile.load(directory / "site.toml")
    sources = dict(file.section("sources").sections())
    if source not in sources:
        raise UnknownName("source", source, list(sources))
    name = sources[source].values.get("interpretation")
    for each in (file, *_further_files(file, directory)):
        table = each.section("interpretations").values.get(name) if name else None
        if isinstance(table, dict) and "format" in table:
            return table["format"]
    return None


def _further_files(file: TomlFile, directory: Path) -> Iterator[TomlFile]:
    named = file.section("interpretations").values.get("files", [])
    home = directory.resolve()
    for pattern in [named] if isinstance(named, str) else named:
        for path in files_matching(home, str(pattern)):
            if is_inside(path, home):
                yield TomlFile.load(path)


def _check_rows(file: Path, name: str, options: dict[str, Any]) -> None:
    """Reads all of it once: a file is imported as a whole or not at all. Once it is mended it is
    another file, and its rows would be other events.
    """
    from rapport.mediation.formats.files import values_of

    with _opened(file) as opened:
        for _value in values_of(opened, name, options):
            pass


def _events(file: Path, source: str, name: str, options: dict[str, Any]) -> Iterator[Event]:
    """One event for each row, named by what the file holds and its place in it."""
    from rapport.mediation.formats.files import values_of

    with _opened(file) as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    now_ms = SystemClock().now_ms()
    with _opened(file) as opened:
        for number, value in enumerate(values_of(opened, name, options), start=1):
            yield Event(
                source=source,
                id=f"{digest}:{number}",
                type=f"{source}.raw",
                subject="",
                time=now_ms,
                data=msgspec.json.encode(value),
            )


def _beginning(file: Path) -> bytes:
    """As much of a file as a guess looks at, to the end of a line."""
    with _opened(file) as opened:
        raw = opened.read(_SAMPLE_BYTES)
        if opened.read(1):
            raw = raw[: raw.rfind(b"\n") + 1] or raw
    return raw


@contextmanager
def _opened(file: Path) -> Iterator[BufferedReader]:
    try:
        with file.open("rb") as opened:
            yield opened
    except OSError as error:
        raise InvalidInput(f"cannot read {file}: {error.strerror}", code="cli.no_file") from None


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
