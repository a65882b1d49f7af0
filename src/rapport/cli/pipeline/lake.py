"""`rapport pipeline silver|compact|expire`: looking after the lake. [PI-3, PI-12]"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from rapport.cli.sites import SiteOption, site_directory
from rapport.cli.terminal import show_problem, stderr, write_json, write_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rapport.core.errors import Problem

MasterOption = Annotated[str | None, Parameter(help="Where Spark runs, such as local[2].")]
JsonOption = Annotated[bool, Parameter(help="As JSON.")]
DryRunOption = Annotated[bool, Parameter(help="Only tell what would be done.")]
_MEGABYTE = 1_000_000


def silver(
    *,
    site: SiteOption = None,
    engine: Annotated[
        Literal["spark", "local"], Parameter(help="Spark, or this process: quicker for little.")
    ] = "spark",
    master: MasterOption = None,
    rebuild: Annotated[bool, Parameter(help="Make silver anew from bronze.")] = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> int:
    """Take what the lake's bronze has beyond the last run into silver: typed readings, each once,
    with what became of them; and detections into gold.
    """
    from rapport.pipeline.lake.silver import silver_due, update_silver
    from rapport.site.site import load_site

    directory = site_directory(site)
    lake = lake_directory(directory)
    if dry_run:
        _tell(silver_due(lake), json=json)
        return 0
    ontology = load_site(directory).ontology
    with spark_for(directory, engine, master) as spark, progress_bar("silver") as progress:
        done = update_silver(spark, lake, ontology, rebuild=rebuild, progress=progress)
    _tell(done, json=json)
    return show_problems(done.problems)


def compact(
    *,
    site: SiteOption = None,
    fewest: Annotated[int, Parameter(help="Leave folders with fewer small files.")] = 4,
    megabytes: Annotated[int, Parameter(help="Files of this size are large enough.")] = 64,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> int:
    """Merge small files of the lake into large ones; readers see the old or the new."""
    from rapport.pipeline.lake.compaction import compact as compact_lake

    with progress_bar("compact") as progress:
        done = compact_lake(
            lake_directory(site_directory(site)),
            fewest=fewest,
            large_bytes=megabytes * _MEGABYTE,
            dry_run=dry_run,
            progress=progress,
        )
    _tell(done, json=json)
    return show_problems(done.problems)


def expire(
    *,
    site: SiteOption = None,
    keep: Annotated[
        list[str] | None,
        Parameter(
            help="Table or layer and days, such as bronze/raw.*=30; may be given often. Otherwise "
            "what [pipeline.keep] of the site says."
        ),
    ] = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Let go of days of the lake that are older than said; never of what silver has not taken."""
    from rapport.pipeline.lake.retention import expire as expire_lake
    from rapport.pipeline.lake.retention import read_rules

    directory = site_directory(site)
    rules = read_rules(keep) if keep else _kept_by_site(directory)
    done = expire_lake(lake_directory(directory), rules, dry_run=dry_run)
    _tell(done, json=json)
    for table, why in done.waiting.items():
        stderr().print(f"{table} stays: {why}", soft_wrap=True)


def _kept_by_site(directory: Path) -> dict[str, int]:
    from rapport.core.errors import InvalidInput
    from rapport.site.pipeline import pipeline_settings
    from rapport.site.site import load_site

    rules = pipeline_settings(load_site(directory).file)[0].keep
    if not rules:
        raise InvalidInput(
            "nothing says how long to keep what",
            code="lake.no_rules",
            hint="add --keep bronze/raw.*=30, or [pipeline.keep] to the site file",
        )
    return rules


def lake_directory(site: Path) -> Path:
    """Where the site's lake lies."""
    from rapport.cli.local import data_directory

    return data_directory(site) / "lake"


@contextmanager
def spark_for(site: Path | None, engine: str, master: str | None) -> Iterator[SparkSession | None]:
    """A session with the site's settings, if there is one; or None when the work is done here."""
    from rapport.kernel.toml import TomlFile
    from rapport.pipeline.session import running_spark
    from rapport.pipeline.settings import load_spark_settings

    if engine != "spark":
        yield None
        return
    said = {} if site is None else TomlFile.load(site / "site.toml").section("spark").values
    settings = load_spark_settings(said, flags={"master": master}, environment=os.environ)
    stderr().print("starting Spark …")
    with running_spark(settings) as spark:
        yield spark


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr where somebody can see it; otherwise nothing."""
    from rich.progress import Progress

    console = stderr()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)


def show_problems(problems: tuple[Problem, ...]) -> int:
    """Tells every problem on stderr; the exit code that says whether there was one."""
    for problem in problems:
        show_problem(problem)
    return 1 if problems else 0


def _tell(done: Any, *, json: bool) -> None:
    """What was done: a line for each figure, or JSON."""
    import msgspec

    if json:
        write_json(done)
        return
    told = msgspec.structs.asdict(done)
    rows = [(name.replace("_", " "), _shown(value)) for name, value in told.items()]
    write_table("lake", ("what", "how much"), [row for row in rows if row[1]])


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {number}" for name, number in value.items())
    if isinstance(value, tuple):
        return str(len(value)) if value else ""
    return str(value)
