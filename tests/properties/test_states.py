"""Durations and silence as steps give what a tiny literal model says, however readings are cut and
states saved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.policy import plan
from rapport.policy.ontology import PushSource
from rapport.policy.operators.base import END_OF_TIME
from rapport.policy.operators.columns import pack_state, unpack_state
from rapport.policy.operators.identities import Identities
from rapport.policy.operators.steps import make_step
from rapport.tables.instances import Instances
from support.examples import examples

STREAMS = {
    "station.temperature": ("value",),
    "station.humidity": ("value",),
    "person.position": ("x", "y"),
}
SCHEMA = pa.schema(
    [("time", pa.int64())]
    + [(name, pa.string()) for name in ("id", "stream", "source", "key")]
    + [(f"{s}.{part}", pa.float64()) for s, parts in STREAMS.items() for part in parts]
)
SOURCES = {
    name: PushSource(
        name=name,
        concept=concept,
        attribute=attribute,
        further=further,
        key="key",
        value=("value",),
        stale_after_ms=stale,
        uncertainty_ms=blur,
    )
    for name, concept, attribute, further, stale, blur in (
        ("lasting", "station", "temperature", ("humidity",), 0, 0),
        ("fading", "station", "temperature", ("humidity",), 7, 3),
        ("quick", "station", "humidity", (), 3, 0),
        ("tags", "person", "position", (), 0, 1),
        ("weak", "person", "position", (), 5, 0),
    )
}
NAN = math.nan
TABLES = {
    "station": Instances(
        "station",
        ["s1", "s2", "s3"],
        {
            "zone": np.array(["north", None, "south"], object),
            "limit": np.array([2.0, NAN, 4.0]),
        },
    ),
    "person": Instances(
        "person", ["p1", "p2"], {"status": np.array(["guest", "employee"], object)}
    ),
    "room": Instances(
        "room",
        ["r1", "r2", "r3", "r4"],
        {
            "area": np.array([[0, 0, 2, 2], [1, 1, 4, 4], [3, 0, 5, 2], [NAN, 0, 1, 1]]),
            "kind": np.array(["lab", "hall", None, "lab"], object),
        },
    ),
}


class Tables:
    def instances(self, concept: str) -> Instances:
        return TABLES[concept]

    def pairs(self, function: str) -> dict[tuple[str, ...], float]:
        return {("p1", "p2"): 2.0, ("p2", "p1"): 2.0, ("p1", "p3"): 1.0}


pytestmark = pytest.mark.slow


class Reading(NamedTuple):
    time: int
    id: str
    stream: str
    source: str
    key: str
    value: tuple[float, ...]


# The model: one binding at a time, one step at a time.

Side = plan.Side
Value = tuple[Any, ...] | None
OPERATIONS = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
}


def in_tables(concept: str, attribute: str, identity: str) -> Value:
    row = TABLES[concept].row(identity)
    if row < 0:
        return None
    value = TABLES[concept].columns[attribute][row]
    return complete(tuple(value) if getattr(value, "ndim", 0) else (value,))


def complete(parts: tuple[Any, ...]) -> Value:
    return None if any(part is None or part != part for part in parts) else parts


def satisfies(side: Side, identity: str) -> bool:
    for constraint in side.constraints:
        value = in_tables(side.concept, constraint.attribute, identity)
        if value is None or not OPERATIONS[constraint.operator](value[0], constraint.value):
            return False
    return True


Last = dict[tuple[str, str], Reading]


class Model:
    def __init__(self, term: plan.LastingTerm, readings: list[Reading]) -> None:
        self.term, self.readings = term, readings
        self.sides = {term.first.alias: term.first, term.second.alias: term.second}
        atoms = list(plan.state_atoms(term.state))
        self.ends = {
            (side.alias, side.stream)
            for atom in atoms
            for side in (atom.term.first, atom.term.second)
            if side.stream
        }

    def occurrences(self) -> list[tuple[Any, ...]]:
        found = []
        timed = {alias for alias, _ in self.ends}
        choices = []
        for alias, side in self.sides.items():
            if alias in timed:
                keys = {r.key for r in self.readings if (alias, r.stream) in self.ends}
            else:
                keys = set(TABLES[side.concept].ids)
            choices.append(sorted(key for key in keys if satisfies(side, key)))
        for identities in product(*choices):
            found += self.stretches(dict(zip(self.sides, identities, strict=True)))
        return sorted(found)

    def stretches(self, bound: dict[str, str]) -> Iterator[tuple[Any, ...]]:
        since: int | None = None
        causes: list[Reading] = []
        first, second = bound[self.term.first.alias], bound[self.term.second.alias]
        for time, last, heard in self.steps(bound):
            true = heard and self.truth(self.term.state, bound, last) is True
            if true and since is None:
                since, causes = time, self.shown(bound, last)
            elif not true and since is not None:
                if time >= since + self.term.duration_ms:
                    yield self.occurrence(first, second, since, causes)
                since = None
        if since is not None:
            yield self.occurrence(first, second, since, causes)

    def occurrence(self, first: str, second: str, since: int, causes: list[Reading]) -> Any:
        end = since + self.term.duration_ms
        start = min((one.time for one in causes), default=end)
        blur = max((SOURCES[one.source].uncertainty_ms for one in causes), default=0)
        return end, first, second, start, tuple(sorted({(r.time, r.id) for r in causes})), blur

    def steps(self, bound: dict[str, str]) -> Iterator[tuple[int, Last, bool]]:
        own = [
            one
            for one in self.readings
            if any(s == one.stream and bound[alias] == one.key for alias, s in self.ends)
        ]
        moments: list[tuple[int, int, int, Reading]] = []
        for number, one in enumerate(own):
            moments.append((one.time, 1, number, one))
            if stale := SOURCES[one.source].stale_after_ms:
                moments.append((one.time + stale, 0, number, one))
        last: Last = {}
        heard: set[str] = set()
        for time, comes, _, one in sorted(moments):
            where = (one.stream, one.key)
            if comes:
                last[where] = one
                heard |= {a for a, s in self.ends if s == one.stream and bound[a] == one.key}
            elif last.get(where) is one:
                del last[where]
            yield time, last, heard == {alias for alias, _ in self.ends}

    def shown(self, bound: dict[str, str], last: Last) -> list[Reading]:
        return [
            last[side.stream, bound[side.alias]]
            for atom in plan.state_atoms(self.term.state)
            if self.truth(atom, bound, last) is True
            for side in (atom.term.first, atom.term.second)
            if side.stream
        ]

    def truth(self, state: plan.StateExpression, bound: dict[str, str], last: Last) -> bool | None:
        if isinstance(state, plan.StateAtom):
            truth = self.holds(state.term, bound, last)
            return truth if truth is None else truth != state.negated
        parts = [self.truth(part, bound, last) for part in state.parts]
        decisive = isinstance(state, plan.StateAny)
        if decisive in parts:
            return decisive
        return None if None in parts else not decisive

    def holds(self, term: plan.StateTerm, bound: dict[str, str], last: Last) -> bool | None:
        sides = (term.first, term.second)
        ends = {(side.stream, bound[side.alias]) for side in sides if side.stream}
        if not all(end in last for end in ends):
            return None
        aliases = {side.alias for side in sides if side.stream}
        if len(aliases) == 2 and len(ends) == 1:
            return None

        def value(side: Side, attribute: str) -> Value:
            if attribute == "id":
                return (bound[side.alias],)
            if side.stream and attribute == side.attribute:
                return complete(last[side.stream, bound[side.alias]].value)
            return in_tables(side.concept, attribute, bound[side.alias])

        def operand(one: plan.Operand) -> Any:
            if isinstance(one, plan.Constant):
                return one.value
            if isinstance(one, plan.SideValue):
                found = value(sides[one.side], one.attribute)
                return None if found is None else found[0]
            of = [value(sides[each.side], each.attribute) for each in one.of]
            if any(each is None for each in of):
                return None
            if isinstance(one, plan.LookedUp):
                return Tables().pairs("").get(tuple(each[0] for each in of))  # type: ignore[index]
            (x1, y1), (x2, y2) = of  # type: ignore[misc]
            return math.sqrt((x1 - x2) ** 2 + (y1 - y2) ** 2)

        if term.compared is not None:
            left, right = operand(term.compared.left), operand(term.compared.right)
            if left is None or right is None:
                return None
            return bool(OPERATIONS[term.compared.operator](left, right))
        first, second = (value(side, side.attribute) for side in sides)
        if first is None or second is None:
            return False
        if term.function == "inside":
            return bool(second[0] <= first[0] <= second[2] and second[1] <= first[1] <= second[3])
        assert term.function == "within"
        return bool((first[0] - second[0]) ** 2 + (first[1] - second[1]) ** 2 <= term.parameter**2)


# Terms to choose from.


def side(alias: str, concept: str, attribute: str, *constraints: plan.Constraint) -> Side:
    stream = f"{concept}.{attribute}"
    return Side(alias, concept, attribute, constraints, stream if stream in STREAMS else None)


def compared(left: Any, operator: Any, right: Any) -> plan.Compared:
    def operand(one: Any) -> plan.Operand:
        return plan.SideValue(*one) if isinstance(one, tuple) else one

    return plan.Compared(operand(left), operator, operand(right))


def number(value: float) -> plan.Constant:
    return plan.Constant(float(value))


SOUTH = plan.Constraint("zone", "=", "south")
operators = st.sampled_from(["<", ">", "<=", ">=", "=", "!="])


def station_terms(alias: str, *limits: plan.Constraint) -> st.SearchStrategy[plan.StateTerm]:
    def one(attribute: str) -> Side:
        return side(alias, "station", attribute, *limits)

    constants = st.integers(0, 4).map(number)
    return st.one_of(
        st.builds(
            lambda name, op, c: plan.ReadingTerm(one(name), compared((0, name), op, c)),
            st.sampled_from(["temperature", "humidity"]),
            operators,
            constants,
        ),
        operators.map(
            lambda op: plan.ReadingTerm(
                one("temperature"), compared((0, "temperature"), op, (0, "limit"))
            )
        ),
        operators.map(
            lambda op: plan.CorrelationTerm(
                one("temperature"),
                one("humidity"),
                "",
                compared=compared((0, "temperature"), op, (1, "humidity")),
            )
        ),
        st.just(
            plan.ConstraintTerm(
                one("zone"),
                one("zone"),
                "",
                compared=compared((0, "zone"), "=", plan.Constant("north")),
            )
        ),
    )


def two_stations() -> st.SearchStrategy[plan.StateTerm]:
    first, second = (side(alias, "station", "temperature") for alias in "ST")
    return st.one_of(
        station_terms("S"),
        station_terms("T"),
        operators.map(
            lambda op: plan.CorrelationTerm(
                first, second, "", compared=compared((0, "temperature"), op, (1, "temperature"))
            )
        ),
    )


def in_rooms() -> st.SearchStrategy[plan.StateTerm]:
    person, room = side("A", "person", "position"), side("R", "room", "area")
    kind = side("R", "room", "kind")
    far = plan.ReadingTerm(person, compared((0, "id"), "!=", plan.Constant("p2")))
    return st.sampled_from(
        [
            plan.QueryTerm(person, room, "inside"),
            plan.QueryTerm(person, room, "inside"),
            plan.ConstraintTerm(
                kind, kind, "", compared=compared((0, "kind"), "=", plan.Constant("lab"))
            ),
            far,
        ]
    )


def two_persons() -> st.SearchStrategy[plan.StateTerm]:
    first, second = side("A", "person", "position"), side("B", "person", "position")
    distance = plan.Measure(
        "distance", (plan.SideValue(0, "position"), plan.SideValue(1, "position"))
    )
    closest = plan.LookedUp("closest", (plan.SideValue(0, "id"), plan.SideValue(1, "id")))
    return st.sampled_from(
        [
            plan.CorrelationTerm(first, second, "within", 1.0),
            plan.CorrelationTerm(first, second, "within", 0.0),
            plan.CorrelationTerm(first, second, "", compared=compared(distance, "<", number(2.0))),
            plan.CorrelationTerm(first, second, "", compared=compared(distance, "<=", closest)),
            plan.ReadingTerm(second, compared((0, "id"), "!=", plan.Constant("p2"))),
        ]
    )


def states(terms: st.SearchStrategy[plan.StateTerm]) -> st.SearchStrategy[plan.StateExpression]:
    atoms = st.builds(plan.StateAtom, terms, st.booleans())
    return st.recursive(
        atoms,
        lambda parts: st.builds(
            lambda kind, some: kind(tuple(some)),
            st.sampled_from([plan.StateAll, plan.StateAny]),
            st.lists(parts, min_size=2, max_size=3),
        ),
        max_leaves=4,
    )


GUEST = plan.Constraint("status", "!=", "employee")


@st.composite
def lasting_terms(draw: st.DrawFn) -> plan.LastingTerm:
    kind = draw(st.sampled_from(["station", "southern", "stations", "rooms", "moor", "persons"]))
    first, second, terms = {
        "station": (side("S", "station", "temperature"),) * 2 + (station_terms("S"),),
        "southern": (side("S", "station", "humidity", SOUTH),) * 2 + (station_terms("S", SOUTH),),
        "stations": (
            side("S", "station", "temperature"),
            side("T", "station", "temperature"),
            two_stations(),
        ),
        "rooms": (
            side("A", "person", "position", GUEST),
            side("R", "room", "area"),
            in_rooms(),
        ),
        "moor": (
            side("R", "room", "area"),
            side("A", "person", "position"),
            in_rooms(),
        ),
        "persons": (
            side("A", "person", "position", GUEST),
            side("B", "person", "position"),
            two_persons(),
        ),
    }[kind]
    state = draw(states(terms).filter(lambda one: bool(_streams(one))))
    aliases = {
        each.alias for a in plan.state_atoms(state) for each in (a.term.first, a.term.second)
    }
    if len(aliases) == 1:
        first = second = first if first.alias in aliases else second
    return plan.LastingTerm(first, second, state, draw(st.integers(1, 12)))


def _streams(state: plan.StateExpression) -> frozenset[str]:
    atoms = plan.state_atoms(state)
    return frozenset(s for atom in atoms for s in plan.streams_of_term(atom.term))


@st.composite
def recordings(draw: st.DrawFn, most: int = 40) -> list[Reading]:
    found = []
    time = 100
    for _ in range(draw(st.integers(1, most))):
        time += draw(st.sampled_from([0, 0, 1, 1, 2, 3, 5, 8]))
        stream = draw(st.sampled_from(sorted(STREAMS)))
        concept = stream.partition(".")[0]
        givers = sorted(name for name, one in SOURCES.items() if stream in one.streams)
        key = f"{concept[0]}{draw(st.integers(1, 4))}"
        parts = STREAMS[stream]
        missing = draw(st.integers(0, 19)) == 7
        value = tuple(NAN if missing else float(draw(st.integers(0, 5))) for _ in parts)
        found.append(
            Reading(time, f"e{len(found):04}", stream, draw(st.sampled_from(givers)), key, value)
        )
    return found


def batch_of(readings: list[Reading]) -> pa.RecordBatch:
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for one in readings:
        for name in ("time", "id", "stream", "source", "key"):
            columns[name].append(getattr(one, name))
        given_now = {
            f"{one.stream}.{part}": value
            for part, value in zip(STREAMS[one.stream], one.value, strict=True)
        }
        for name in SCHEMA.names[5:]:
            columns[name].append(given_now.get(name))
    return pa.record_batch(columns, schema=SCHEMA)


class Driver:
    """A step with its identities, saved and taken up again where asked."""

    def __init__(self, term: Any, began: int | None = None) -> None:
        self.term, self.began = term, began
        self.found: list[tuple[Any, ...]] = []
        self._make()

    def _make(self) -> None:
        self.identities = {name: Identities(one) for name, one in TABLES.items()}
        self.step = make_step(self.term, self.identities, Tables(), SOURCES, self.began)

    def save_and_restore(self) -> None:
        saved = pack_state(self.step.state())
        ids = {name: list(one.ids) for name, one in self.identities.items()}
        self._make()
        for name, one in self.identities.items():
            one.restore(ids[name])
        self.step.restore(unpack_state(saved))
        assert pack_state(self.step.state()) == saved

    def take(self, readings: list[Reading], watermark: int) -> None:
        pending = self.step.pending_until()
        got = self.step.take(batch_of(readings), watermark)
        ends = got["end"].tolist()
        assert ends == sorted(ends)
        assert not ends or ends[-1] < watermark
        assert not ends or readings or (pending is not None and pending <= ends[0])
        after = self.step.pending_until()
        assert after is None or after >= watermark
        sides = [
            [self.identities[one.concept].ids[code] for code in got[name].tolist()]
            for one, name in ((self.term.first, "first"), (self.term.second, "second"))
        ]
        blurs = got.get("uncertainty", np.zeros(len(ends), np.int64)).tolist()
        rest = (got["start"].tolist(), got["causes"].tolist(), blurs)
        self.found += zip(ends, *sides, *rest, strict=True)


Cuts = list[tuple[int, int, bool]]
"""Readings per batch, how far time then runs on, and whether the state is saved there."""
cuts_of = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 9), st.booleans()), max_size=20)


def drive(term: Any, readings: list[Reading], cuts: Cuts, began: int | None = None) -> list[Any]:
    driver = Driver(term, began)
    first = 0
    for size, further, saved in cuts:
        last = min(first + size, len(readings))
        while 0 < last < len(readings) and readings[last].time == readings[last - 1].time:
            last += 1
        limit = readings[last - 1].time + 1 if last else readings[0].time
        if last < len(readings):
            limit = min(limit + further, readings[last].time)
        driver.take(readings[first:last], limit)
        if saved:
            driver.save_and_restore()
        first = last
    driver.take(readings[first:], readings[-1].time + 1)
    driver.take([], END_OF_TIME)
    assert driver.step.pending_until() is None
    return driver.found


@given(lasting_terms(), recordings(), cuts_of)
def test_durations_are_what_the_model_says(
    term: plan.LastingTerm, readings: list[Reading], cuts: Cuts
) -> None:
    assert sorted(drive(term, readings, cuts)) == Model(term, readings).occurrences()


@pytest.mark.parametrize("most", [1, 3])
@given(lasting_terms(), recordings())
def test_portions_of_any_size_give_the_same(
    most: int, term: plan.LastingTerm, readings: list[Reading]
) -> None:
    """Portions are cut where times are equal, too."""
    driver = Driver(term)
    driver.step._common.step._bindings.most_readings = lambda: most  # type: ignore[attr-defined]
    driver.take(readings, readings[-1].time + 1)
    driver.take([], END_OF_TIME)
    assert sorted(driver.found) == Model(term, readings).occurrences()


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.3, 2.0, 6.0]))
def test_passing_over_pairs_that_stay_apart_changes_nothing(seed: int, reach: float) -> None:
    """Random walks at any place of the plane, far more people than the model can do."""
    chance = np.random.default_rng(seed)
    places = chance.normal(0, 10, (25, 2))
    readings = []
    for number, who in enumerate(chance.integers(0, 25, 600).tolist()):
        places[who] += chance.normal(0, chance.choice([0.1, 3.0]), 2)
        source = ("tags", "weak")[int(chance.integers(0, 2))]
        point = tuple(places[who].tolist())
        readings.append(
            Reading(number, f"e{number:04}", "person.position", source, f"p{who}", point)
        )
    first, second = side("A", "person", "position"), side("B", "person", "position")
    near = plan.StateAtom(plan.CorrelationTerm(first, second, "within", reach))
    found = []
    for looks_at_all in (False, True):
        driver = Driver(plan.LastingTerm(first, second, near, 20))
        if looks_at_all:
            driver.step._common.step._bindings._near = None  # type: ignore[attr-defined]
        for start in range(0, 600, 200):
            driver.take(readings[start : start + 200], start + 200)
        driver.take([], END_OF_TIME)
        found.append(sorted(driver.found))
    assert found[0] == found[1]


def silent_model(
    term: plan.SilentTerm, readings: list[Reading], began: int | None
) -> list[tuple[Any, ...]]:
    start = readings[0].time if began is None else began
    own = [one for one in readings if one.stream in term.streams]
    keys = {*TABLES[term.first.concept].ids, *(one.key for one in own)}
    found = []
    for key in sorted(key for key in keys if satisfies(term.first, key)):
        mine = [one for one in own if one.key == key]
        is_known = key in TABLES[term.first.concept].ids
        lasts: list[Reading | None] = [None, *mine] if is_known else [*mine]
        for last, following in pairwise([*lasts, None]):
            since = start if last is None else last.time
            end = since + term.duration_ms
            if following is None or following.time >= end:
                causes = () if last is None else ((last.time, last.id),)
                blur = 0 if last is None else SOURCES[last.source].uncertainty_ms
                found.append((end, key, key, end if last is None else since, causes, blur))
    return sorted(found)


silent_terms = st.builds(
    lambda limits, streams, duration: plan.SilentTerm(
        side("S", "station", "temperature", *limits), streams, duration
    ),
    st.sampled_from([(), (SOUTH,)]),
    st.sampled_from([("station.temperature",), ("station.humidity", "station.temperature")]),
    st.integers(1, 12),
)


@given(silent_terms, recordings(), cuts_of, st.sampled_from([None, 90, 100]))
def test_silences_are_what_the_model_says(
    term: plan.SilentTerm, readings: list[Reading], cuts: Cuts, began: int | None
) -> None:
    assert sorted(drive(term, readings, cuts, began)) == silent_model(term, readings, began)
