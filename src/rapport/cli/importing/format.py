"""How the file that is imported is read. [ME-13]"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rapport.cli.importing.file import beginning
from rapport.cli.names import unknown
from rapport.cli.terminal import stderr
from rapport.core.errors import SiteError
from rapport.kernel.files import files_matching, is_inside
from rapport.kernel.toml import TomlFile


def format_of(
    file: Path, directory: Path, source: str, format: str | None, options: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """What was said when called, else what the source's interpretation says, else a guess."""
    from rapport.mediation.formats.catalogue import parse_format
    from rapport.mediation.guessing.guess import guess
    from rapport.mediation.guessing.sample import sample_of

    declared = _declared_format(directory, source)
    if format is None and not options and declared is not None:
        return parse_format(declared)
    found = guess(sample_of(beginning(file), name=format or "", options=options))
    stderr().print(f"read as {found.format}: {found.because}", soft_wrap=True, markup=False)
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
