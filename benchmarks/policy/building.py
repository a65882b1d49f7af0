"""The secure-building workload, any size: people who walk from place to place among rooms. [PO-7]

Shaped like the worked check of the meaning: one person in five is a guest, three rooms in ten are
restricted, about 1,000 position events per window of five seconds, coordinates in 64ths of a metre.
The same numbers and seed give the same workload; `digest` tells it from any other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rapport.core.errors import UnknownName
from rapport.core.event import Event
from rapport.policy.compiler.compile import compile_conditions
from rapport.policy.ontology import Ontology, PushSource, Relationship
from rapport.policy.plan import Plan
from rapport.policy.readings import readings_schema
from rapport.tables.instances import Instances

STREAM = "person.position"
WINDOW_MS = 5_000
_METRES_PER_ROOM = 16.0
_METRES_PER_SECOND = 1.4
_MS_BETWEEN_EVENTS = 5.0

ONTOLOGY = Ontology(
    concepts={
        "person": {"status": "text", "badge": "text", "position": "point"},
        "room": {"security": "text", "area": "rectangle"},
    },
    relationships={
        "inside": Relationship("inside", ("person", "position"), ("room", "area"), "inside"),
        "within": Relationship("within", ("person", "position"), ("person", "position"), "within"),
    },
    sources={
        "positions": PushSource(
            name="positions", concept="person", attribute="position", key="person", value=("x", "y")
        )
    },
)

_CONCEPTS = """concepts
  person A ({who})
  person B (status='employee')
  room R (security='restricted')
conditions
"""
ALONE = "  A is inside R\n  A is not within 5m of B or B is not inside R\n"
TOGETHER = "  A is within 5m of B\n"
LASTING = "  A is inside R for 20 s\n"
SILENT = "  no position of A for 3 s\n"


class Building:
    """People and rooms; hands instances to operators like the tables of a site."""

    def __init__(self, people: int, rooms: int, seed: int) -> None:
        self.people = people
        chance = np.random.default_rng(seed)
        status = np.where(np.arange(people) % 5 == 0, "guest", "employee").astype(object)
        ids = [str(number + 1) for number in range(people)]
        self._instances = {
            "person": Instances("person", ids, {"status": status, "badge": np.array(ids, object)}),
            "room": _rooms(rooms, chance),
        }

    def instances(self, concept: str) -> Instances:
        """The people or the rooms."""
        return self._instances[concept]

    def pairs(self, function: str) -> Mapping[tuple[str, ...], float]:
        """Nothing is looked up here."""
        raise UnknownName("looked-up function", function, [])

    def days(self, table: str) -> Collection[str]:
        """There are no tables of days."""
        raise UnknownName("table of days", table, [])


class Workload(msgspec.Struct, frozen=True):
    """Readings in event order, and a name for exactly them."""

    readings: pa.RecordBatch
    digest: str


def policy(
    conditions: str = ALONE,
    *,
    name: str = "bench",
    who: str = "status='guest'",
    window_ms: int = WINDOW_MS,
) -> Plan:
    """A plan with these conditions over the building; `who` is asked of A."""
    text = policy_text(conditions, who)
    return compile_conditions(text, name=name, ontology=ONTOLOGY, window_ms=window_ms).plan


def policy_text(conditions: str, who: str = "status='guest'") -> str:
    """The text of such a policy."""
    return f"{_CONCEPTS.format(who=who)}{conditions}actions\n  raise alarm\n"


def alone_within(metres: float) -> str:
    """The conditions of listing 5.8 with another distance."""
    return ALONE.replace("5m", f"{metres:.4f}m")


def walk(
    people: int, rooms_walked: int, events: int, seed: int, *, gap_ms: float = _MS_BETWEEN_EVENTS
) -> Workload:
    """`events` positions of people who walk straight from one random place to the next; one of them
    is seen every `gap_ms` on average.
    """
    chance = np.random.default_rng(seed + 1)
    gaps = chance.exponential(gap_ms, events)
    times = 1_000_000 + np.cumsum(gaps).astype(np.int64)
    who = chance.integers(0, people, events)
    extent = _METRES_PER_ROOM * np.ceil(np.sqrt(rooms_walked))
    positions = np.empty((events, 2))
    for person in range(people):
        mine = np.flatnonzero(who == person)
        positions[mine] = _path(chance, times[mine], int(times[-1]), extent)
    positions = np.round(positions * 64) / 64
    digest = hashlib.blake2b(digest_size=8)
    for part in (times, who, positions):
        digest.update(np.ascontiguousarray(part).tobytes())
    return Workload(_readings(times, who, positions), digest.hexdigest())


def as_events(readings: pa.RecordBatch) -> list[Event]:
    """The readings as mediated events of the channel."""
    columns = (
        readings.column(name).to_pylist()
        for name in ("time", "id", "key", f"{STREAM}.x", f"{STREAM}.y")
    )
    return [
        Event(
            source="positions",
            id=id,
            type=STREAM,
            subject=f"person/{key}",
            time=time,
            data=msgspec.json.encode({"key": key, "value": [x, y]}),
            headers={"cause": id, "interpretation": "root@1"},
        )
        for time, id, key, x, y in zip(*columns, strict=True)
    ]


def _path(
    chance: np.random.Generator, times: npt.NDArray[np.int64], end: int, extent: float
) -> npt.NDArray[np.float64]:
    """Where one person is at the given times."""
    legs = int((end - 1_000_000) / 1_000 * _METRES_PER_SECOND / (extent / 3)) + 2
    places = chance.uniform(0, extent, (legs, 2))
    lengths = np.hypot(*np.diff(places, axis=0).T)
    arrival = 1_000_000 + np.concatenate(([0], np.cumsum(lengths))) / _METRES_PER_SECOND * 1_000
    return np.column_stack([np.interp(times, arrival, places[:, axis]) for axis in (0, 1)])


def _rooms(count: int, chance: np.random.Generator) -> Instances:
    side = int(np.ceil(np.sqrt(count)))
    numbers = np.arange(count)
    corner = np.column_stack((numbers % side, numbers // side)) * _METRES_PER_ROOM
    low = corner + np.round(chance.uniform(0.5, 2.0, (count, 2)) * 64) / 64
    high = low + np.round(chance.uniform(11.0, 13.5, (count, 2)) * 64) / 64
    security = np.where(numbers % 10 < 3, "restricted", "public").astype(object)
    ids = [str(number + 1) for number in range(count)]
    return Instances("room", ids, {"security": security, "area": np.column_stack((low, high))})


def _readings(
    times: npt.NDArray[np.int64], who: npt.NDArray[np.int64], at: npt.NDArray[np.float64]
) -> pa.RecordBatch:
    count = len(times)
    arrays = [
        pa.array(times),
        pa.array([f"e{number}" for number in range(count)], pa.string()),
        pa.repeat(pa.scalar(STREAM), count),
        pa.repeat(pa.scalar("positions"), count),
        pa.array(who + 1).cast(pa.string()),
        pa.array(np.ascontiguousarray(at[:, 0])),
        pa.array(np.ascontiguousarray(at[:, 1])),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=readings_schema(ONTOLOGY))
