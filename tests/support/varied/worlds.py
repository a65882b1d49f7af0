"""Small random worlds and policies: the same seed gives the same, on every machine. [PO-7]

Times repeat and differ by exactly the window on purpose; coordinates lie on a grid, so borders are
hit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from rapport.core.errors import UnknownName
from rapport.core.schema import PARTS
from rapport.kernel.clock import Chance
from rapport.policy.ontology import Ontology, PushSource, Relationship
from rapport.policy.relations import relation
from rapport.tables.instances import Instances
from support.judge.holding import Reading

WINDOW_MS = 100


@relation(first="point", second="point", parameter="length")
def in_steps(first: Sequence[float], second: Sequence[float], parameter: float | None) -> bool:
    """At most so many steps along the grid; no index knows this function."""
    return abs(first[0] - second[0]) + abs(first[1] - second[1]) <= (parameter or 0.0)


@relation(first="point", second="rectangle")
def on_border(first: Sequence[float], second: Sequence[float], parameter: float | None) -> bool:
    """At the left wall of a room."""
    return first[0] == second[0]


ONTOLOGY = Ontology(
    concepts={
        "person": {"status": "text", "position": "point"},
        "cart": {"kind": "text", "place": "point"},
        "room": {"security": "text", "area": "rectangle", "door": "point"},
    },
    relationships={
        "inside": Relationship("inside", ("person", "position"), ("room", "area"), "inside"),
        "within": Relationship("within", ("person", "position"), ("person", "position"), "within"),
        "beside": Relationship(
            "beside",
            ("person", "position"),
            ("cart", "place"),
            "support.varied.worlds:in_steps",
        ),
        "parked": Relationship(
            "parked", ("cart", "place"), ("room", "area"), "support.varied.worlds:on_border"
        ),
        "leads": Relationship("leads", ("room", "door"), ("room", "area"), "inside"),
    },
    sources={
        "badges": PushSource(
            name="badges", concept="person", attribute="position", key="person", value=("x", "y")
        ),
        "carts": PushSource(
            name="carts", concept="cart", attribute="place", key="cart", value=("x", "y")
        ),
    },
)
"""People and carts that move, rooms that do not, and doors that lead from one room into another."""


class Pull:
    """Instances by concept and looked-up numbers by function, as wiring hands them to runners."""

    def __init__(
        self,
        instances: dict[str, Instances],
        pairs: Mapping[str, Mapping[tuple[str, ...], float]] | None = None,
        days: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        self._instances, self._pairs, self._days = instances, pairs or {}, days or {}

    def instances(self, concept: str) -> Instances:
        return self._instances.get(concept) or Instances(concept, [], {})

    def pairs(self, function: str) -> Mapping[tuple[str, ...], float]:
        if function not in self._pairs:
            raise UnknownName("looked-up function", function, list(self._pairs))
        return self._pairs[function]

    def days(self, table: str) -> frozenset[str]:
        if table not in self._days:
            raise UnknownName("table of days", table, list(self._days))
        return self._days[table]


class World(msgspec.Struct, frozen=True):
    """Tables and readings in arrival order."""

    pull: Pull
    readings: tuple[Reading, ...]


def random_world(chance: Chance, *, events: int = 40) -> World:
    """Three to six people, up to two carts, two to four rooms, and their movements."""
    people = ["2", "10", "3", "ann", "bo", "7"][: chance.randint(3, 6)]
    carts = ["k1", "k2"][: chance.randint(1, 2)]
    status = [chance.choice(("guest", "employee", "guest", None)) for _ in people]
    pull = Pull(
        {
            "person": Instances("person", people, {"status": _texts(status)}),
            "cart": Instances("cart", carts, {"kind": _texts(["heavy"] * len(carts))}),
            "room": _random_rooms(chance),
        }
    )
    # A concept may exist in events only: somebody no table knows.
    keys = [("person", name) for name in [*people, "ghost"]] + [("cart", name) for name in carts]
    time, readings = 1_000, []
    for number in range(events):
        time += chance.choice((0, 0, 5, 10, 20, 50, WINDOW_MS))
        concept, key = chance.choice(keys)
        stream = "person.position" if concept == "person" else "cart.place"
        value = (float(chance.randint(0, 6)), float(chance.randint(0, 6)))
        readings.append(Reading(time, f"e{number}", stream, key, value))
    return World(pull, tuple(readings))


def with_periods(chance: Chance, world: World) -> tuple[World, Ontology]:
    """The same world told by two sources per stream, some of which promise to be heard."""
    sources = dict(ONTOLOGY.sources)
    for first, second in (("badges", "beacons"), ("carts", "scales")):
        sources[second] = msgspec.structs.replace(sources[first], name=second)
    sources = {
        name: msgspec.structs.replace(
            source, period_ms=chance.choice((0, 1, 20, 49, 50, WINDOW_MS, 3 * WINDOW_MS, 1_000))
        )
        for name, source in sources.items()
    }
    told, last = [], {"person.position": "badges", "cart.place": "carts"}
    for reading in world.readings:
        if chance.randint(0, 3) == 0:  # mostly the same one goes on, so that the other is silent
            own = [name for name, source in sources.items() if source.stream == reading.stream]
            last[reading.stream] = chance.choice(own)
        told.append(msgspec.structs.replace(reading, source=last[reading.stream]))
    return World(world.pull, tuple(told)), msgspec.structs.replace(ONTOLOGY, sources=sources)


def _random_rooms(chance: Chance) -> Instances:
    names = ["r1", "r2", "9", "r10"][: chance.randint(2, 4)]
    areas, doors = [], []
    for _ in names:
        x, y = chance.randint(0, 4), chance.randint(0, 4)
        areas.append((x, y, x + chance.randint(0, 3), y + chance.randint(1, 3)))
        doors.append((chance.randint(0, 6), chance.randint(0, 6)))
    security = [chance.choice(("restricted", "public")) for _ in names]
    columns = {
        "security": _texts(security),
        "area": np.array(areas, np.float64),
        "door": np.array(doors, np.float64),
    }
    return Instances("room", names, columns)


def _texts(values: Sequence[str | None]) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    column = np.empty(len(values), object)
    column[:] = values
    return column


_CONCEPTS = """concepts
  person A (status='guest')
  person B (status='employee')
  person C
  cart K (kind='heavy')
  room R (security='restricted')
  room Q
conditions
"""
_POSITIVE = (
    "A is inside R",
    "B is inside R",
    "C is inside R",
    "A is inside Q",
    "C is inside Q",
    "A is within 2m of B",
    "C is within 1m of A",
    "B is beside 1m of K",
    "A is beside 2m of K",
    "A is within 1m of C",
    "K is parked Q",
)


def random_policy(chance: Chance) -> str:
    """A policy over ONTOLOGY whose first condition events can satisfy; every kind of child
    occurs.
    """
    lines = [chance.choice(_POSITIVE)]
    lines += [_random_line(chance) for _ in range(chance.randint(0, 2))]
    if chance.randint(0, 19) == 0:  # nothing opens the absence beside it: it counts as not there
        lines = [f"{chance.choice(_POSITIVE)} OR {_term(chance)}"]
    if chance.randint(0, 9) == 0:
        lines.append(chance.choice(("R is leads Q", "R is not leads Q")))
    options = ["  consume recent"] if chance.randint(0, 3) == 0 else []
    options += ["  distinct A, C"] if chance.randint(0, 4) == 0 else []
    conditions = "\n".join(f"  {line}" for line in chance.sample(lines, len(lines)))
    return _CONCEPTS + conditions + "\n" + "".join(f"{o}\n" for o in options) + "actions\n  look\n"


def _random_line(chance: Chance) -> str:
    kind = chance.randint(0, 9)
    if kind < 2:
        return _term(chance)
    if kind < 4:
        return f"{_term(chance)} OR {_term(chance)}"
    if kind < 6:
        return f"{_term(chance)} FOLLOWED-BY {_term(chance)}"
    if kind == 6:
        pair = f"({_term(chance)} {chance.choice(('AND', 'OR'))} {_term(chance)})"
        sides = chance.sample([pair, _term(chance)], 2)
        return " FOLLOWED-BY ".join(sides)
    if kind == 9:
        return f"{chance.choice(_POSITIVE)} OR R is {chance.choice(('', 'not '))}leads Q"
    if kind == 7:
        return " FOLLOWED-BY ".join(_term(chance) for _ in range(3))
    return f"{_term(chance)} OR ({_term(chance)} FOLLOWED-BY {_term(chance)})"


def _term(chance: Chance) -> str:
    term = chance.choice(_POSITIVE)
    return term.replace(" is ", " is not ") if chance.randint(0, 2) == 0 else term


def readings_batch(readings: Sequence[Reading], ontology: Ontology = ONTOLOGY) -> pa.RecordBatch:
    """Readings as the record batch that runners take, in the order given."""
    from rapport.policy.readings import readings_schema

    given_by = {
        stream: name for name, source in ontology.sources.items() for stream in source.streams
    }
    columns: dict[str, list[object]] = {
        "time": [reading.time for reading in readings],
        "id": [reading.id for reading in readings],
        "stream": [reading.stream for reading in readings],
        "source": [reading.source or given_by[reading.stream] for reading in readings],
        "key": [reading.key for reading in readings],
    }
    for stream, kind in ontology.streams().items():
        for place, part in enumerate(PARTS[kind]):
            columns[f"{stream}.{part}"] = [
                reading.value[place] if reading.stream == stream else None for reading in readings
            ]
    return pa.RecordBatch.from_pydict(columns, schema=readings_schema(ontology))
