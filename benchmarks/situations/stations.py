"""Stations that are measured once a minute, and policies over them. [SI-11]"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pyarrow as pa

from rapport.core.errors import UnknownName
from rapport.policy.compiler.compile import compile_situation
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.readings import readings_schema
from rapport.policy.situation_plan import SituationPlan
from rapport.tables.instances import Instances

STREAM = "station.temperature"
MINUTE_MS = 60_000
BEGIN = 1_704_067_200_000
ONTOLOGY = Ontology(
    concepts={"station": {"temperature": "number", "group": "number"}},
    relationships={},
    sources={
        "huts": PushSource(
            name="huts",
            concept="station",
            attribute="temperature",
            key="station",
            value=("value",),
        )
    },
    units={"station": {"temperature": "degC"}},
)
LASTING = "temperature of S above 27 degC for 10 min"
AVERAGE = "mean of temperature of S in the last 24 h (at least 18 readings) above 24 degC"


class Stations:
    """The table of the stations, as a site has it."""

    def __init__(self, count: int) -> None:
        ids = [str(number) for number in range(count)]
        groups = np.arange(count, dtype=np.float64) % 100
        self._instances = Instances("station", ids, {"group": groups})

    def instances(self, concept: str) -> Instances:
        """All stations."""
        return self._instances

    def pairs(self, function: str) -> Mapping[tuple[str, ...], float]:
        """Nothing is looked up here."""
        raise UnknownName("looked-up function", function, [])

    def days(self, table: str) -> Collection[str]:
        """There are no tables of days."""
        raise UnknownName("table of days", table, [])


def policy(situation: str, name: str = "bench", properties: str = "") -> SituationPlan:
    """A plan with this situation of one station."""
    lines = ("concepts", f"  station S{properties}", "situation", f"  {situation}")
    text = "\n".join((*lines, "actions", "  look", ""))
    return compile_situation(text, name=name, ontology=ONTOLOGY).plan


def readings(stations: int, count: int, seed: int) -> pa.RecordBatch:
    """One reading of each station a minute, in order of time."""
    chance = np.random.default_rng(seed)
    numbers = np.arange(count)
    who = numbers % stations
    times = BEGIN + numbers // stations * MINUTE_MS + who * MINUTE_MS // stations
    daily = np.sin(2 * np.pi * (times % 86_400_000) / 86_400_000 + who)
    values = np.round(22 + 5 * daily + chance.normal(0, 1, count), 2)
    arrays = [
        pa.array(times),
        pa.array([f"e{number}" for number in range(count)], pa.string()),
        pa.repeat(pa.scalar(STREAM), count),
        pa.repeat(pa.scalar("huts"), count),
        pa.array(who).cast(pa.string()),
        pa.array(values),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=readings_schema(ONTOLOGY))
