"""`rapport pipeline mediate`: raw history to readings, on Spark. [ME-14, PI-4]"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rapport.cli.names import unknown
from rapport.cli.pipeline.lake import JsonOption, MasterOption, lake_directory, spark_for
from rapport.cli.sites import SiteOption, site_directory
from rapport.cli.terminal import stdout, write_json, write_table

if TYPE_CHECKING:
    from rapport.pipeline.mediating.meanings import Meanings
    from rapport.pipeline.mediating.writing import MediatedHistory


def mediate(
    *what: Annotated[
        str, Parameter(help="SOURCE=FILE or SOURCE=FOLDER of recorded raw events, or SOURCE.")
    ],
    into: Annotated[Path | None, Parameter(help="Folder to write to; must not be there.")] = None,
    explain: Annotated[
        bool, Parameter(help="Only tell which steps are columns of Spark, which Python, and why.")
    ] = False,
    site: SiteOption = None,
    master: MasterOption = None,
    json: JsonOption = False,
) -> int:
    """Give raw history its meaning by the site's interpretations of now: files that were recorded,
    or the raw events of the site's lake. The same readings and reasons as in the node.
    """
    from rapport.core.errors import InvalidInput
    from rapport.pipeline.mediating.of_site import meanings_of_site
    from rapport.site.raw_files import naming_of
    from rapport.site.site import load_site

    directory = site_directory(site)
    loaded = load_site(directory)
    meanings = meanings_of_site(loaded)
    files, sources = _asked(meanings, what)
    if explain:
        _explain(meanings, [*files, *sources] or None, json=json)
        return 0
    if into is None:
        raise InvalidInput(
            "nothing says where the readings go",
            code="cli.wrong_use",
            hint="add --into FOLDER, or --explain to see how it would be done",
        )
    with spark_for(directory, "spark", master) as spark:
        assert spark is not None
        from rapport.pipeline.mediating.writing import mediate_files, mediate_lake

        if files:
            named = {naming_of(loaded.file, name): paths for name, paths in files.items()}
            done = mediate_files(spark, meanings, named, into)
        else:
            lake = lake_directory(directory)
            done = mediate_lake(spark, meanings, lake, into, sources=sources or None)
    _tell(done, json=json)
    return 1 if done.rejected else 0


def _asked(meanings: Meanings, what: tuple[str, ...]) -> tuple[dict[str, list[Path]], list[str]]:
    """Files by source, or names of sources; raises InvalidInput for a mixture or an unknown one."""
    from rapport.core.errors import InvalidInput
    from rapport.policy.recordings.files import READERS

    files: dict[str, list[Path]] = {}
    names: list[str] = []
    for each in what:
        name, equals, rest = each.partition("=")
        if name not in meanings.bindings:
            raise unknown(
                "source",
                name,
                meanings.bindings,
                if_none="declare it in site.toml: [sources.NAME]",
                code="source.unbound",
            )
        if not equals:
            names.append(name)
            continue
        path = Path(rest)
        found = sorted(path.iterdir()) if path.is_dir() else [path]
        files.setdefault(name, []).extend(
            one for one in found if not path.is_dir() or one.suffix in READERS
        )
        if not files[name] or not path.exists():
            raise InvalidInput(
                f"there are no recorded files at {path}",
                code="cli.no_file",
                hint=f"{name}=FILE or {name}=FOLDER, files that end in {', '.join(READERS)}",
            )
    if files and names:
        raise InvalidInput(
            "files and sources of the lake cannot be mixed",
            code="cli.wrong_use",
            hint=f"write {names[0]}=FILE, or leave the files out",
        )
    return files, names


def _explain(meanings: Meanings, sources: list[str] | None, *, json: bool) -> None:
    from rapport.pipeline.mediating.planning import explain_mediation

    found = explain_mediation(meanings, sources)
    if json:
        write_json(found)
        return
    for each in found:
        for line in each.lines():
            stdout().print(line, soft_wrap=True, markup=False, highlight=False)


def _tell(done: MediatedHistory, *, json: bool) -> None:
    if json:
        write_json(done)
        return
    whole = sum(done.readings.values())
    share = f"{done.by_columns / whole:.0%}" if whole else "none"
    rows = [(f"readings of {name}", f"{count:,}") for name, count in done.readings.items()]
    rows += [(f"no meaning, {why}", f"{count:,}") for why, count in done.rejected.items()]
    rows += [("decided by Spark's columns alone", share), ("written to", done.into)]
    write_table("mediated", ("what", "how much"), rows)
