"""`rapport pipeline report`: what happened, told on Spark; on the terminal, as JSON, as a page.
[PI-6, CO-18, PI-12]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rapport.cli.pipeline.lake import (
    JsonOption,
    MasterOption,
    lake_directory,
    progress_bar,
    spark_for,
)
from rapport.cli.sites import SiteOption, site_directory
from rapport.cli.terminal import stderr, write_json, write_table

if TYPE_CHECKING:
    from rapport.pipeline.figures.reports import Report


def report(
    *,
    site: SiteOption = None,
    master: MasterOption = None,
    html: Annotated[Path | None, Parameter(help="Write a page with plots to this file.")] = None,
    export: Annotated[bool, Parameter(help="First export what the channels hold.")] = True,
    json: JsonOption = False,
) -> None:
    """Export, then tell on Spark what happened: detections, deliveries, who answered how fast,
    what was held back or late, how the channels were used, and where messages came from.
    """
    from rapport.pipeline.figures.reports import make_report

    directory = site_directory(site)
    if html is not None:
        _refuse_unwritable(html)
    if export:
        from rapport.cli.pipeline.commands import export_site

        stderr().print(f"exported {export_site(directory)['rows']} rows")
    lake = lake_directory(directory)
    with spark_for(directory, "spark", master) as spark, progress_bar("report") as progress:
        assert spark is not None
        made = make_report(spark, lake, progress=progress)
    if html is not None:
        _write_page(made, html, directory, lake)
    if json:
        write_json(made)
    elif html is None:
        _write_tables(made)


def _write_tables(made: Report) -> None:
    from rapport.pipeline.figures.text import report_rows

    for table in report_rows(made):
        if not sys.stdout.isatty():
            print(f"# {table.title}")
        write_table(table.title, table.columns, table.rows)


def _write_page(made: Report, path: Path, site: Path, lake: Path) -> None:
    from rapport.channel.export.parquet_files import replaced_file
    from rapport.kernel.toml import TomlFile
    from rapport.pipeline.figures.page import report_page

    name = TomlFile.load(site / "site.toml").section("site").values.get("name", site.name)
    page = report_page(made, site=str(name), lake_files=f"{lake / 'gold'}")
    with replaced_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    stderr().print(f"wrote {path}", soft_wrap=True)


def _refuse_unwritable(path: Path) -> None:
    """Said before the work, not after it."""
    from rapport.core.errors import InvalidInput

    if path.is_dir():
        raise InvalidInput(
            f"{path} is a directory",
            code="report.bad_file",
            hint="name the file to write, such as report.html",
        )
