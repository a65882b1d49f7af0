"""Durations and silence in policies, from text to detection, live and recorded."""

from __future__ import annotations

import numpy as np

from rapport.core.detection import Detection
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.ontology import Ontology, PushSource, Relationship
from rapport.policy.plan import Plan
from rapport.policy.runner.local import LocalRunner
from rapport.tables.instances import Instances
from support.judge.holding import Reading
from support.varied.worlds import readings_batch

HOUR = 3_600_000
MINUTE = 60_000
ONTOLOGY = Ontology(
    concepts={
        "station": {"temperature": "number", "humidity": "number", "wind": "number"},
        "person": {"position": "point"},
        "room": {"area": "rectangle"},
    },
    relationships={
        "inside": Relationship("inside", ("person", "position"), ("room", "area"), "inside")
    },
    units={"station": {"temperature": "degC", "humidity": "percent", "wind": "km/h"}},
    sources={
        "weather": PushSource(
            name="weather",
            concept="station",
            attribute="temperature",
            further=("humidity", "wind"),
            key="station",
            value=("value",),
            stale_after_ms=3 * HOUR,
        ),
        "badges": PushSource(
            name="badges", concept="person", attribute="position", key="badge", value=("x", "y")
        ),
    },
)


class Tables:
    def instances(self, concept: str) -> Instances:
        areas = np.array([[0.0, 0.0, 10.0, 10.0], [10.0, 0.0, 20.0, 10.0]])
        return {
            "station": Instances("station", ["hill", "lake"], {}),
            "person": Instances("person", [], {}),
            "room": Instances("room", ["vault", "hall"], {"area": areas}),
        }[concept]

    def pairs(self, function: str) -> dict[tuple[str, ...], float]:
        return {}


def policy(conditions: str, *, extra: str = "") -> Plan:
    text = (
        "concepts\n  station S\n  person A\n  room R\n"
        f"conditions\n  {conditions}\n{extra}actions\n  raise alarm\n"
    )
    return compile_policy(text, name="p", ontology=ONTOLOGY, window_ms=5_000).plan


def runner(*plans: Plan) -> LocalRunner:
    return LocalRunner(plans, Tables(), lateness_ms=0, sources=ONTOLOGY.sources)


def weather(time: int, attribute: str, value: float, station: str = "hill") -> Reading:
    return Reading(time, f"{attribute[0]}{time}", f"station.{attribute}", station, (value,))


def position(time: int, x: float, y: float, badge: str = "7") -> Reading:
    return Reading(time, f"p{time}", "person.position", badge, (x, y))


def replayed(plan: Plan, *readings: Reading) -> list[Detection]:
    """Reading by reading, saved and taken up again after each."""
    running, found = runner(plan), []
    for reading in readings:
        found += running.feed(readings_batch([reading], ONTOLOGY))
        saved, running = running.snapshot(), runner(plan)
        running.restore(saved)
    return found + running.finish()


THIRTY = policy(
    "(temperature of S above 30 degC AND humidity of S below 30 % AND wind of S above 30 km/h) "
    "for 2 hours"
)


def test_thirty_thirty_thirty_is_detected_two_hours_after_the_last_of_the_three() -> None:
    found = replayed(
        THIRTY,
        weather(0, "temperature", 34.0),
        weather(10 * MINUTE, "humidity", 22.0),
        weather(20 * MINUTE, "wind", 41.0),
        weather(80 * MINUTE, "temperature", 33.0),
        weather(130 * MINUTE, "humidity", 25.0),
    )
    assert [(one.time, one.bindings) for one in found] == [(140 * MINUTE, {"S": "hill"})]
    assert [id for _, id in found[0].causes] == ["t0", "h600000", "w1200000"]


def test_a_shower_in_between_and_a_silent_thermometer_both_end_it() -> None:
    begin = [weather(0, "humidity", 22.0), weather(1, "wind", 41.0)]
    hot = weather(2, "temperature", 34.0)
    shower = weather(HOUR, "humidity", 80.0)
    assert replayed(THIRTY, *begin, hot, shower) == []
    long = policy("temperature of S above 30 degC for 4 hours")
    assert replayed(long, hot) == []
    kept = replayed(long, hot, weather(2 * HOUR, "temperature", 31.0))
    assert [one.time for one in kept] == [4 * HOUR + 2]


def test_who_stayed_and_then_left_within_the_window_is_found() -> None:
    plan = policy(
        "A is inside R for 10 min FOLLOWED-BY temperature of S above 30 degC within 2 min"
    )
    stayed = [position(0, 5, 5), position(5 * MINUTE, 6, 6)]
    found = replayed(plan, *stayed, weather(11 * MINUTE, "temperature", 31.0))
    assert [(one.time, one.bindings) for one in found] == [
        (11 * MINUTE, {"A": "7", "R": "vault", "S": "hill"})
    ]
    assert replayed(plan, *stayed, weather(12 * MINUTE, "temperature", 31.0)) == []


def test_silence_counts_for_stations_that_never_spoke_and_fires_again_after_a_reading() -> None:
    found = replayed(
        policy("no temperature of S for 3 hours"),
        weather(0, "temperature", 20.0),
        weather(5 * HOUR, "temperature", 20.0),
    )
    assert [(one.time, one.bindings["S"], len(one.causes)) for one in found] == [
        (3 * HOUR, "hill", 1),
        (3 * HOUR, "lake", 0),
        (8 * HOUR, "hill", 1),
    ]


def test_a_policy_deployed_while_running_counts_silence_from_then() -> None:
    running = runner()
    running.feed(readings_batch([weather(HOUR, "wind", 3.0)], ONTOLOGY))
    running.deploy(policy("no event of S for 3 hours"))
    assert running.advance(4 * HOUR) == []
    assert {one.bindings["S"] for one in running.advance(4 * HOUR + 1)} == {"hill", "lake"}


def test_repeated_durations_are_throttled_like_everything_else() -> None:
    plan = policy("A is inside R for 1 min", extra="  at most once per 10 min\n")
    visits = [
        position(number * 2 * MINUTE + away * 90_000, 5 + 10 * away, 5)
        for number in range(6)
        for away in (0, 1)
    ]
    found = [one for one in replayed(plan, *visits) if one.bindings["R"] == "vault"]
    assert [one.time for one in found] == [MINUTE, 11 * MINUTE]
