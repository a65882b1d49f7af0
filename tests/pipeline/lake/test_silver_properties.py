"""Whatever comes in whatever order over however many runs, also when a run is killed between two
commits: silver is what a model of a few lines says. [LK-4, LK-11, PI-10]
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from rapport.core.detection import Detection
from rapport.core.errors import Problem
from rapport.core.event import Event
from rapport.lake.places import Lake
from rapport.pipeline.lake import silver
from rapport.pipeline.lake.silver import silver_due, update_silver
from rapport.policy.engine.stream_steps import late_event, quarantine_event
from rapport.policy.ontology import Ontology
from support.silver_lake import BEGIN, DAY, SilverLake, make_ontology, reading, warm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]
ASIDE = Problem(code="policy.unusable", message="it cannot be used")
STREAMS = ("person.position", "room.warmth")
Rows = list[tuple[Any, ...]]


class Killed(BaseException):
    """Ends a run as a kill would: nothing of ours runs after it."""


class Story:
    """Random events of the three channels, and what silver has to hold of them."""

    def __init__(self, seed: int, length: int) -> None:
        self._chance = random.Random(seed)
        self.channels: dict[str, list[Event]] = {"events": [], "detections": [], "quarantine": []}
        self._unused: set[tuple[str, str]] = set()
        steps: list[tuple[Callable[[str], None], int]] = [
            (self._give, 50),
            (self._give_again, 10),
            (self._give_nonsense, 10),
            (self._correct, 12),
            (self._find_late, 8),
            (self._set_aside, 5),
            (self._detect, 5),
        ]
        weights = [weight for _step, weight in steps]
        for number in range(length):
            self._chance.choices(steps, weights)[0][0](str(number))

    def _give(self, id: str) -> None:
        time, value = BEGIN + self._chance.randrange(4 * DAY), float(id)
        source = self._chance.choice(("person_position", "other"))
        is_point = self._chance.random() < 0.6
        event = reading(id, time, [value, 1], source=source) if is_point else warm(id, time, value)
        self.channels["events"].append(event)
        if self._chance.random() < 0.1:  # the verdict may be exported before its reading
            self.channels["detections"].append(late_event("p", (time, id)))

    def _give_again(self, _id: str) -> None:
        known = [one for one in self.channels["events"] if (one.source, one.id) not in self._unused]
        if known:
            self.channels["events"].append(self._chance.choice(known))

    def _give_nonsense(self, id: str) -> None:
        unknown = self._chance.random() < 0.3
        stream = "robot.load" if unknown else "person.position"
        self.channels["events"].append(reading(id, value=["?"], stream=stream))

    def _correct(self, id: str) -> None:
        known = [one for one in self._readings() if "corrects" not in one.headers]
        if not known:
            return
        former = self._chance.choice(known)
        value = [1.0] if former.type == "room.warmth" else [1.0, 2.0]
        time = former.time + self._chance.choice((0, 0, DAY, 9 * DAY))
        names = {"stream": former.type, "source": former.source, "corrects": former.id}
        self.channels["events"].append(reading(f"{former.id}~{id}", time, value, **names))

    def _find_late(self, _id: str) -> None:
        if known := self._readings():
            one = self._chance.choice(known)
            self.channels["detections"].append(late_event("p", (one.time, one.id)))

    def _set_aside(self, _id: str) -> None:
        known = [one for one in self._readings() if "corrects" not in one.headers]
        if known:
            one = self._chance.choice(known)
            self._unused.add((one.source, one.id))
            self.channels["quarantine"].append(quarantine_event("p", one, ASIDE))

    def _detect(self, id: str) -> None:
        found = Detection(policy=id, time=BEGIN, bindings={}, causes=())
        self.channels["detections"].append(found.to_event(source="p"))

    def _readings(self) -> list[Event]:
        """Events that can be read, each once."""
        first: dict[tuple[str, str], Event] = {}
        for event in self.channels["events"]:
            if b"?" not in event.data:
                first.setdefault((event.source, event.id), event)
        return list(first.values())

    # --- the model ---

    def readings(self) -> Rows:
        late = {
            (one.time, msgspec.json.decode(one.data)["id"])
            for one in self.channels["detections"]
            if one.type.endswith("late")
        }
        rows: Rows = []
        for event in self._readings():
            if (event.source, event.id) in self._unused:
                continue
            original = event.headers.get("corrects", event.id)
            group = [
                one
                for one in self._readings()
                if (one.source, one.headers.get("corrects", one.id)) == (event.source, original)
            ]
            after = group[group.index(event) + 1 :]
            state = ("counted", "")
            if after:
                state = ("corrected", f"corrected by {after[0].id}")
            elif (event.time, event.id) in late:
                state = ("late", "policy.late")
            rows.append((event.type, event.source, event.id, *state))
        return sorted(rows)

    def quarantined(self) -> Rows:
        bad = {
            (
                event.source,
                event.id,
                "reading.bad_value" if event.type in STREAMS else "reading.unknown_stream",
            )
            for event in self.channels["events"]
            if b"?" in event.data
        }
        return sorted(bad | {(source, id, ASIDE.code) for source, id in self._unused})

    def detected(self) -> list[str]:
        found = self.channels["detections"]
        return sorted({one.id for one in found if one.type.endswith("detected")})


def found_in(lake: Lake) -> dict[str, Any]:
    """The rows of all tables."""
    readings = [
        (stream, *(row[name] for name in ("event_source", "id", "status", "reason")))
        for stream in STREAMS
        if lake.has("silver", stream)
        for row in lake.open("silver", stream).read().to_pylist()
    ]
    held = lake.open("silver", "quarantined").read().to_pylist()
    detected = lake.open("gold", "detected").read().to_pylist()
    return {
        "readings": sorted(readings),
        "quarantined": sorted((row["source"], row["id"], row["reason"]) for row in held),
        "detected": sorted(row["id"] for row in detected),
    }


def expected_of(story: Story) -> dict[str, Any]:
    return {
        "readings": story.readings(),
        "quarantined": story.quarantined(),
        "detected": story.detected(),
    }


@pytest.mark.parametrize(
    "seed", [*(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2)), 3]
)
def test_silver_holds_what_the_model_says_however_it_is_split(
    spark: SparkSession, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed == 3:  # as with very many repeated or judged events: joins by shuffle
        monkeypatch.setattr(silver, "_BROADCAST_ROWS", 0)
    story, ontology = Story(seed, length=150), make_ontology()
    chance, filled = random.Random(seed), SilverLake(tmp_path / "lake")
    for name, events in story.channels.items():
        filled.append(name, *events)
    runs = seed
    for _run in range(runs - 1):
        ends = {
            name: chance.randint(filled.exported(name), len(events))
            for name, events in story.channels.items()
        }
        filled.export(until=ends)
        update_silver(spark, filled.lake, ontology)
    filled.export(rows_at_once=40)
    update_silver(spark, filled.lake, ontology, rows_per_step=110)
    assert silver_due(filled.lake).positions == {}
    assert found_in(filled.lake) == expected_of(story)


EVERY_CUT = (1, 2, 3, 4, 5)
"""After how many commits of a run it can be killed."""


@pytest.mark.parametrize(
    "cuts",
    [
        pytest.param((3,), id="in the middle"),
        pytest.param(EVERY_CUT, id="everywhere", marks=pytest.mark.long),
    ],
)
def test_a_run_killed_between_any_two_commits_is_finished_by_the_next(
    spark: SparkSession, tmp_path: Path, cuts: Sequence[int]
) -> None:
    story, ontology = Story(7, length=80), make_ontology()
    filled = SilverLake(tmp_path / "lake")
    for name, events in story.channels.items():
        filled.append(name, *events)
    ends = {name: len(events) // 2 for name, events in story.channels.items()}
    filled.export(until=ends)
    update_silver(spark, filled.lake, ontology)
    filled.export()
    expected = expected_of(story)
    for commits in cuts:
        copy = tmp_path / f"killed-{commits}"
        shutil.copytree(tmp_path / "lake", copy)
        assert _is_killed(spark, copy, ontology, commits)
        update_silver(spark, copy, ontology)
        assert found_in(Lake.at(copy)) == expected, commits
    if cuts == EVERY_CUT:
        assert not _is_killed(spark, tmp_path / "lake", ontology, len(cuts) + 1)
        assert found_in(filled.lake) == expected


def _is_killed(spark: SparkSession, lake: Path, ontology: Ontology, commits: int) -> bool:
    left = commits

    def kill(_table: str) -> None:
        nonlocal left
        if not left:
            raise Killed
        left -= 1

    try:
        update_silver(spark, lake, ontology, at_commit=kill)
    except Killed:
        return True
    return False
