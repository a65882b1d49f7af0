"""The situations of SI over a year on Spark, each beside a condition over the same readings.
[SI-11, PI-9]"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.policy.parts import say
from benchmarks.results import Result
from benchmarks.spark.parts import Goals, Took, require, timed, told
from rapport.pipeline.backtest.execution import BackTestFound, BackTestWork, run_here, run_on_spark
from rapport.pipeline.backtest.find_history import find_history
from rapport.scenarios.year import Year
from rapport.scenarios.year_site import FOLDER
from rapport.site.site import load_site

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST = 1.5
"""How many times the time of a condition."""
_MINUTES = 1_440
_COMPARED = 2_000_000
"""Readings up to which the result is compared with that of one process."""
_FREEZERS = """# Freezers that are measured once a minute.
[site]
name = "freezers"

[concepts.freezer.attributes]
temperature = "number"
[concepts.freezer.units]
temperature = "degC"

[tables.freezers]
concept = "freezer"
csv = "freezers.csv"
key = "id"

[sources.probes]
concept = "freezer"
attribute = "temperature"
key = "freezer"
value = ["value"]

[policies]
files = ["*.dpl"]
window = "1min"

[peers.keeper]
addresses = ["inbox:"]
[actions."call the keeper"]
send_to = "peer:keeper"
text = "{F} is too warm"
"""
_WARM = "temperature of F above -15 degC for 10 min"
_SECTIONS = {
    "condition": f"conditions\n  {_WARM}\n",
    "warm": f"situation\n  {_WARM} OR no temperature of F for 30 min\n"
    "cleared by\n  temperature of F below -17 degC for 5 min\n",
    "mean": "situation\n"
    "  mean of temperature of F in the last 24 h (at least 18 readings) above -18.9 degC\n",
}
_ALONE = """concepts
  person A (status='guest')
  room R (security='restricted')
situation
  (A is inside R AND
  no person B (status='employee') with (B is within 5 m of A AND B is inside R)) for 5 s
actions
  raise alarm
"""


def situations(
    spark: SparkSession, building: Path, freezers: Path, made_up: Year, goals: Goals
) -> list[Result]:
    """The made-up year of the building, which is there, and one of freezers of the same size."""
    (building / "alone-situation.dpl").write_text(_ALONE, encoding="utf-8")
    rows = _write_freezers(freezers, made_up)
    say(f"{rows:,} readings of freezers made up")
    took = {
        name: _timed(spark, folder, policy, made_up)
        for name, folder, policy in (
            ("positions, a condition (a guest alone)", building, "alone"),
            ("positions, a situation (a guest alone for 5 s)", building, "alone-situation"),
            ("temperatures, a condition (too warm for 10 min)", freezers, "condition"),
            ("temperatures, a situation (too warm or silent, cleared)", freezers, "warm"),
            ("temperatures, a situation (mean of 24 h)", freezers, "mean"),
        )
    }
    walls = [one.wall for one in took.values()]
    beside_positions = walls[1] / walls[0]
    beside_temperatures = [wall / walls[2] for wall in walls[3:]]
    return [
        *(told(f"year: {name}", one, made_up.readings, goals) for name, one in took.items()),
        goals.limit("year: guest alone, situation / condition", beside_positions, "times", _MOST),
        *(
            goals.limit(f"year: {what}, situation / condition", ratio, "times", _MOST)
            for what, ratio in zip(("too warm", "mean"), beside_temperatures, strict=True)
        ),
    ]


def _timed(spark: SparkSession, directory: Path, policy: str, made_up: Year) -> Took:
    def work() -> BackTestWork:
        site = load_site(directory)
        history = find_history(site, str(directory / FOLDER))
        return BackTestWork.of(site, [site.policies[policy].plan], history)

    found, took = timed(lambda: run_on_spark(spark, work()))
    if made_up.readings <= _COMPARED:
        require(_lines(found) == _lines(run_here(work())), policy)
    say(f"{policy}: {len(found.columns):,} found")
    require(len(found.columns) > 0, f"{policy} finds something")
    return took


def _lines(found: BackTestFound) -> list[str]:
    return sorted(str(row) for row in found.columns.table.to_pylist())


def _write_freezers(directory: Path, year: Year) -> int:
    """As many freezers as give the readings of the year once a minute; one file a day."""
    number = max(year.readings // (year.days * _MINUTES), 1)
    (directory / FOLDER).mkdir(parents=True, exist_ok=True)
    names = pa.array([f"freezer-{n}" for n in range(number)])
    (directory / "site.toml").write_text(_FREEZERS, encoding="utf-8")
    lines = "\n".join(["id", *names.to_pylist()]) + "\n"
    (directory / "freezers.csv").write_text(lines, encoding="utf-8")
    for name, section in _SECTIONS.items():
        text = f"concepts\n  freezer F\n{section}actions\n  call the keeper\n"
        (directory / f"{name}.dpl").write_text(text, encoding="utf-8")
    chance = np.random.default_rng(year.seed)
    rows = 0
    for day in range(year.days):
        date = year.begin() + timedelta(day)
        table = _day(chance, int(np.datetime64(date, "ms").astype(np.int64)), names, rows)
        pq.write_table(table, directory / FOLDER / f"{date}.parquet", compression="zstd")
        rows += len(table)
    return rows


def _day(chance: np.random.Generator, begin: int, names: pa.Array, first_id: int) -> pa.Table:
    """Each freezer once a minute, warmer by day; some stand open for a while."""
    count = len(names)
    minute = np.repeat(np.arange(_MINUTES), count)
    which = np.tile(np.arange(count), _MINUTES)
    opened = chance.integers(0, _MINUTES, count)
    is_open = chance.random(count) < 0.02
    open_now = is_open[which] & (minute >= opened[which]) & (minute < opened[which] + 25)
    daily = np.sin(2 * np.pi * minute / _MINUTES + which)
    values = -20 + daily + chance.normal(0, 0.5, len(which)) + 8 * open_now
    return pa.table(
        {
            "id": pa.array(first_id + np.arange(len(which))),
            "time": pa.array(begin + minute * 60_000 + which * 60_000 // count),
            "freezer": pa.DictionaryArray.from_arrays(pa.array(which), names).cast(pa.string()),
            "value": pa.array(np.round(values, 2)),
        },
        schema=_SCHEMA,
    )


_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("time", pa.int64()),
        pa.field("freezer", pa.string()),
        pa.field("value", pa.float64(), metadata={"unit": "degC"}),
    ]
)
