"""The peer: listing 5.8 as Spark SQL, written by hand for this one meaning and tuned for it. [UX-3]

A guest seen in a restricted room opens an alarm. It is not raised when, in the window that begins
there, an employee was seen in that room and came, at whatever two moments of it, within reach of
the guest. Readings are placed in rooms by a broadcast join on cells, met by equi-joins on room or
person and number of the window, and accompanied openings leave by an anti join.

What makes it quick: people and rooms are numbers from the first scan on; who was seen in a room
during a window is kept as first and last time only, which decides every window that touches it; and
only readings of a guest and an employee who may meet are compared, found by a second scan against
a broadcast list.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from benchmarks.policy.building import WINDOW_MS, Building
from benchmarks.policy.by_hand import Alarm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CELL = 16.0
_SETTINGS = {
    # Two cores: two tasks behind each shuffle, and no small tables sent around to be sorted.
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.autoBroadcastJoinThreshold": "67108864",
    "spark.sql.files.maxPartitionBytes": "67108864",
}

_INSIDE = f"""
SELECT /*+ BROADCAST(p), BROADCAST(c) */
       e.id, e.time, e.time DIV {WINDOW_MS} AS k, p.n, p.status, c.r
FROM readings e
JOIN people p ON e.person = p.id
JOIN cells c
  ON CAST(floor(e.x / {_CELL}) AS INT) = c.cx AND CAST(floor(e.y / {_CELL}) AS INT) = c.cy
WHERE e.x BETWEEN c.x1 AND c.x2 AND e.y BETWEEN c.y1 AND c.y2
"""
"""Who was seen in which restricted room, by number of the window."""

_MAYBE = f"""
WITH seen AS (
  SELECT r, k, n AS b, min(time) AS lo, max(time) AS hi
  FROM inside WHERE status = 'employee' GROUP BY r, k, n
), opened AS (
  SELECT id, time, k, n AS a, r, explode(array(k, k + 1)) AS at FROM inside WHERE status = 'guest'
)
SELECT o.id, o.time, o.k, o.a, s.b
FROM opened o JOIN seen s ON s.r = o.r AND s.k = o.at
WHERE (o.at = o.k AND s.hi >= o.time) OR (o.at > o.k AND s.lo < o.time + {WINDOW_MS})
"""
"""Openings, each with the employees who were in the room in their window."""

_MEMBERS = f"""
WITH pairs AS (SELECT DISTINCT a, b, k FROM maybe),
wanted AS (
  SELECT a, b, k, explode(array(a, b)) AS n, at
  FROM pairs LATERAL VIEW explode(array(k, k + 1)) AS at
),
places AS (
  SELECT /*+ BROADCAST(p) */ e.time, e.time DIV {WINDOW_MS} AS at, p.n, p.status, e.x, e.y
  FROM readings e JOIN people p ON e.person = p.id
)
SELECT /*+ BROADCAST(w) */ w.a, w.b, w.k, e.status, e.time, e.x, e.y
FROM places e JOIN wanted w ON e.n = w.n AND e.at = w.at
"""
"""Where such guests and such employees were, in the windows in which they may have met."""

_NEAR = f"""
SELECT g.a, g.b, g.k, least(g.time, e.time) AS lo, greatest(g.time, e.time) AS hi
FROM members g JOIN members e ON g.a = e.a AND g.b = e.b AND g.k = e.k
WHERE g.status = 'guest' AND e.status = 'employee' AND abs(g.time - e.time) < {WINDOW_MS}
  AND (g.x - e.x) * (g.x - e.x) + (g.y - e.y) * (g.y - e.y) <= 25.0
"""
"""When they were within reach: both times, in order."""

_ALARMS = f"""
SELECT i.time + {WINDOW_MS} AS time, i.n AS a, i.r, i.id
FROM inside i LEFT ANTI JOIN (
  SELECT m.id FROM maybe m JOIN near n ON m.a = n.a AND m.b = n.b AND m.k = n.k
  WHERE n.lo >= m.time AND n.hi < m.time + {WINDOW_MS}
) met ON i.id = met.id
WHERE i.status = 'guest'
"""


def alarms_by_sql(spark: SparkSession, building: Building, folder: Path) -> pa.Table:
    """`time, a, r, id` of every alarm, `a` and `r` being places in the tables of people and rooms;
    end to end: from the files to columns in this process.
    """
    with _tuned(spark):
        spark.read.parquet(str(folder)).createOrReplaceTempView("readings")
        spark.createDataFrame(_people(building)).createOrReplaceTempView("people")
        spark.createDataFrame(_cells(building)).createOrReplaceTempView("cells")
        kept: list[DataFrame] = []
        try:
            # Few rows of many, each asked for more than once.
            for name, text in (("inside", _INSIDE), ("maybe", _MAYBE), ("members", _MEMBERS)):
                kept.append(spark.sql(text).persist())
                kept[-1].createOrReplaceTempView(name)
            spark.sql(_NEAR).createOrReplaceTempView("near")
            return spark.sql(_ALARMS).toArrow()
        finally:
            for frame in kept:
                frame.unpersist()


def as_alarms(building: Building, found: pa.Table) -> list[Alarm]:
    """With the identities of people and rooms."""
    people, rooms = building.instances("person").ids, building.instances("room").ids
    columns = (found.column(name).to_pylist() for name in ("time", "a", "r", "id"))
    return [(time, people[a], rooms[r], id) for time, a, r, id in zip(*columns, strict=True)]


def _people(building: Building) -> pa.Table:
    people = building.instances("person")
    return pa.table(
        {
            "id": pa.array(people.ids),
            "n": pa.array(np.arange(len(people), dtype=np.int32)),
            "status": pa.array(people.columns["status"].tolist()),
        }
    )


def _cells(building: Building) -> pa.Table:
    """Every cell of the plane that a restricted room touches, with the room's sides."""
    rooms, rows = building.instances("room"), []
    for number, (area, security) in enumerate(
        zip(rooms.columns["area"].tolist(), rooms.columns["security"].tolist(), strict=True)
    ):
        if security != "restricted":
            continue
        x1, y1, x2, y2 = area
        for cx in range(int(x1 // _CELL), int(x2 // _CELL) + 1):
            for cy in range(int(y1 // _CELL), int(y2 // _CELL) + 1):
                rows.append((number, cx, cy, x1, y1, x2, y2))
    numbers = ("r", "cx", "cy")
    columns = dict(zip((*numbers, "x1", "y1", "x2", "y2"), zip(*rows, strict=True), strict=True))
    return pa.table(
        {
            name: pa.array(column, pa.int32() if name in numbers else pa.float64())
            for name, column in columns.items()
        }
    )


@contextmanager
def _tuned(spark: SparkSession) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in _SETTINGS}
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)
