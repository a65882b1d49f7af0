"""`rapport pipeline`: history into the lake, and what is done with it. [PI-3, CH-16]"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import App

from rapport.cli.sites import SiteOption, site_directory
from rapport.cli.terminal import write_json

if TYPE_CHECKING:
    from rapport.channel.channel import Channels
    from rapport.channel.export.lake_export import ExportResult

_TRIES, _BETWEEN_TRIES_MS = 60, 500

app = App(name="pipeline", help="History on Spark: export, lake, questions, report.")
for _path, _help in (
    ("lake:silver", "Take new events of the lake into silver and gold."),
    ("lake:compact", "Merge small files of the lake into large ones."),
    ("lake:expire", "Let go of old days of the lake."),
    ("mediate:mediate", "Give raw history its meaning, by the interpretations of now."),
    ("query:tables", "List the tables of the lake, or the columns of one."),
    ("query:query", "Ask the lake a question in SQL."),
    ("report:report", "Tell what happened: figures, tables, a page with plots."),
    ("run:run", "Run a site's jobs: live policies, history into the lake."),
    ("run:status", "Show what runs where, and how far each job is behind."),
    ("run:stop", "Ask the process to end after what it is doing."),
    ("run:resume", "Let a stopped pipeline go on."),
):
    app.command(f"rapport.cli.pipeline.{_path}", name=_path.partition(":")[2], help=_help)


@app.command
def export(*, site: SiteOption = None) -> None:
    """Write what the channels hold beyond the last export to Parquet files."""
    directory = site_directory(site)
    write_json(export_site(directory))


def export_site(site: Path) -> dict[str, object]:
    """Exports a site's channels into its lake; returns what was done."""
    from rapport.cli.local import data_directory, read_channels

    lake = data_directory(site) / "lake"
    done = read_channels(site, lambda channels: _export_when_free(channels, lake))
    return {"lake": str(lake), "rows": done.rows, "files": done.files, "positions": done.positions}


async def _export_when_free(channels: Channels, lake: Path) -> ExportResult:
    """Exports; waits a while for another export into the lake, such as a running node's."""
    from rapport.channel.export.lake_export import EXPORT_RUNNING, export_channels
    from rapport.core.errors import Conflict
    from rapport.kernel.clock import SystemClock

    for _again in range(_TRIES - 1):
        try:
            return await export_channels(channels, lake)
        except Conflict as error:
            if error.code != EXPORT_RUNNING:
                raise
            await SystemClock().sleep(_BETWEEN_TRIES_MS)
    return await export_channels(channels, lake)
