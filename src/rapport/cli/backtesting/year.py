"""`rapport demo year DIR`: a site with a made-up history of any length, to try back-tests on.
[PI-9, UX-7]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from rapport.cli.backtesting.progress import watched
from rapport.cli.terminal import stdout, write_json


def year(
    directory: Annotated[Path, Parameter(help="Where to write the site; new, or to go on with.")],
    *,
    readings: Annotated[int, Parameter(help="About how many positions in all.")] = 1_300_000,
    days: Annotated[int, Parameter(help="How many days.")] = 31,
    first: Annotated[str, Parameter(help="The first day.")] = "2025-01-01",
    seed: Annotated[int, Parameter(help="Another number, another history.")] = 1,
    json: Annotated[bool, Parameter(help="What was written, as JSON.", negative="")] = False,
) -> None:
    """Make up the history of a building: guests and their escorts by day and night, one Parquet
    file per day. The same numbers give the same files; a run that was interrupted goes on.

    A year as of 250 sensors that report every minute: --readings 131000000 --days 365.
    """
    from rapport.scenarios.year import Year, write_year
    from rapport.scenarios.year_site import FOLDER, POLICY

    made_up = Year(readings=readings, days=days, first=first, seed=seed)
    with watched("making it up", readings) as progress:
        written = write_year(directory, made_up, lambda rows, _days: progress(rows))
    if json:
        write_json(written)
        return
    there = f", {written.kept_files} were there" if written.kept_files else ""
    lines = [
        f"{written.rows:,} readings in {written.files} files{there}: {directory / FOLDER}",
        f"try: cd {directory} && rapport backtest {POLICY} --history {FOLDER}",
    ]
    for line in lines if sys.stdout.isatty() else lines[:1]:
        stdout().print(line, highlight=False, markup=False, soft_wrap=True)
