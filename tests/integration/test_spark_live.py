"""Policies live on Spark and in the node: the same events, in several micro-batches and buckets,
and after a restart in the middle.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest

from rapport.core.detection import DETECTED, ENDED, Detection, NamedValue, detection_lines
from rapport.core.errors import Conflict, Corrupt, InvalidInput
from rapport.core.event import Event, make_event
from rapport.pipeline.streaming.live_query import FILE
from rapport.policy.compiler.compile import compile_situation
from rapport.policy.engine.stream_steps import StreamPosition, TimeMoved, time_event
from rapport.policy.lifecycle.registry import CHANNEL, ChangeKind, PolicyChange, change_event
from rapport.policy.runner.local import LocalRunner
from support.live_site import CHECKS, LiveSite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

FAR_MS = 10_000_000
SITUATION = """concepts
  person A (status='guest')
  room R (security='restricted')
situation
  (A is inside R AND no person B (status='employee') with (B is within 5 m of A)) for 500 ms OR
  no position of A for 1 h
actions
  raise alarm
actions when cleared
  raise alarm
"""
GUARDED = """concepts
  person A (status='guest')
  room R (security='restricted')
conditions
  A is inside R
while
  no person B (status='employee') with (B is within 5 m of A)
actions
  raise alarm
"""


def test_the_secure_building_in_two_buckets_and_several_micro_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = LiveSite("secure-building", tmp_path)
    last = max(event.time for event in place.events)
    place.append("events", place.events, last)
    place.beat(last + FAR_MS)
    counts = place.run(spark, buckets=2, most_rows=6_000)
    told = place.found()
    assert told == place.expected(place.readings, end=last + FAR_MS)
    lines = detection_lines(Detection.from_event(one) for one in told if one.type == DETECTED)
    assert lines == (CHECKS / "secure-building" / "expected.jsonl").read_bytes()
    assert (counts.reached, counts.detections, counts.late) == (20_000, len(told), 0)
    assert counts.batches >= 3
    [report] = [one.event.payload() for one in place.read("pipeline")][-1:]
    assert set(report["policies"]) == {"secure-building"}


def test_a_restart_in_the_middle_changes_nothing_and_late_and_unusable_ones_are_told(
    spark: SparkSession, tmp_path: Path
) -> None:
    policies = {"alone": SITUATION, "unaccompanied": GUARDED}
    place = LiveSite("small-policies", tmp_path, policies)
    middle, last = len(place.events) // 2, max(event.time for event in place.events)
    late = msgspec.structs.replace(place.events[0], id="too-late")
    ahead = msgspec.structs.replace(place.events[-1], id="ahead", time=last + 3_600_000)
    broken = msgspec.structs.replace(place.events[-1], id="broken", data=b'{"key": ""}')
    place.append("events", place.events[:middle], last)
    place.run(spark, buckets=7)
    before = place.found()
    place.append("events", [*place.events[middle:], late, ahead, broken], last)
    place.beat(last + FAR_MS)
    counts = place.run(spark, buckets=7)
    rows = [place.readings, *_readings_again(place, "too-late")]
    assert place.found() == place.expected(*rows, end=last + FAR_MS)
    assert {event.id for event in before} < {event.id for event in place.found()}
    told = [Detection.from_event(one) for one in place.found() if one.type in (DETECTED, ENDED)]
    # The clock begins a silence; others are open when the query restarts.
    assert max(one.time for one in told if one.policy == "alone") > last
    assert {one.policy for one in told if one.began is None} > policies.keys()
    assert {one.policy for one in told if one.began is not None} == {"alone"}
    assert (counts.late, counts.quarantined) == (1, 2)
    held = {one.event.payload()["event"]["id"]: one.event for one in place.read("quarantine")}
    assert held.keys() == {"ahead", "broken"}
    assert held["ahead"].payload()["reason"] == "policy.ahead_of_clock"
    # Started once more there is nothing left to say.
    told = place.read("detections")
    place.run(spark, buckets=7)
    assert place.read("detections") == told


def test_a_backlog_is_judged_by_what_the_clock_had_said_before(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Half of the events come after a long silence; the query begins when all of it is there."""
    place = LiveSite("small-policies", tmp_path)
    last = max(event.time for event in place.events)
    first, second = place.readings.slice(0, 100), place.readings.slice(100)
    place.append("events", place.events[:100], last)
    reached = max(event.time for event in place.events[:100])
    moments = [*(reached + number for number in range(1, 40)), last + FAR_MS]
    beats = [time_event(place.site.name, TimeMoved(moment, 100)) for moment in moments]
    place.append("detections", beats, last + FAR_MS)
    place.append("events", place.events[100:], last + FAR_MS)
    counts = place.run(spark, buckets=1, most_rows=50)
    assert counts.late == len(second)
    site = place.site
    runner = LocalRunner(
        [one.plan for one in site.policies.values()],
        site.tables,
        lateness_ms=site.lateness_ms,
        sources=site.ontology.sources,
    )
    found = [*runner.feed(first), *runner.advance(last + FAR_MS), *runner.feed(second)]
    told = [Detection.from_event(one) for one in place.found() if one.type == DETECTED]
    assert detection_lines(told) == detection_lines(found)


def test_a_changed_policy_begins_anew_and_the_others_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = LiveSite("small-policies", tmp_path)
    middle, last = len(place.events) // 2, max(event.time for event in place.events)
    place.append("events", place.events[:middle], last)
    place.run(spark, buckets=1)
    [name, *others] = sorted(place.site.policies)
    file = place.directory / f"{name}.dpl"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("actions\n", "actions\n  look twice\n"), encoding="utf-8")
    place.append("events", place.events[middle:], last)
    place.beat(last + FAR_MS)
    place.run(spark, buckets=1)
    expected = place.expected(place.readings, end=last + FAR_MS)

    def of_others(events: list[Event]) -> list[Event]:
        return [one for one in events if one.subject.removeprefix("policy/") in others]

    assert of_others(place.found()) == of_others(expected)


CROWDED = """concepts
  person A (status='guest')
  room R (security='restricted')
situation
  A is inside R
  count of (A is inside R) in the last 1 min at least 2
actions
  raise alarm
    say "{A} was {count of (A is inside R)} times in {R}"
actions when cleared
  raise alarm
    say "{A} has left {R}: {count of (A is inside R)}"
"""
FOLLOWED = (
    CROWDED.replace("  count of (A is inside R) in the last 1 min at least 2\n", "")
    .replace(": {count of (A is inside R)}", "")
    .replace("{count of (A is inside R)} times", "seen")
)
COUNT = "count of (A is inside R)"
BEGUN = Path(__file__).parents[1] / "data" / "before" / "live.tar.xz"
"""The first half of the test below, as the version before wrote it."""


def situations_begin(spark: SparkSession, directory: Path) -> LiveSite:
    """Two situations are open when the query stops."""
    place = LiveSite("small-policies", directory)
    change(place, 1, "registered", "crowded", CROWDED)
    change(place, 2, "registered", "followed", FOLLOWED)
    positions(place, (1_000, 5), (2_000, 5))
    place.beat(10_000)
    place.run(spark, buckets=2)
    return place


def change(place: LiveSite, number: int, what: ChangeKind, name: str, text: str = "") -> None:
    """Records a change of a policy as a node does."""
    site, version = place.site, ""
    if text:
        version = compile_situation(text, name=name, ontology=site.ontology).plan.version()
    changed = PolicyChange(
        what=what,
        name=name,
        place=StreamPosition(0, 0),
        number=number,
        text=text,
        version=version,
        actions=("raise alarm",) if text else (),
        end_actions=("raise alarm",) if text else None,
    )
    place.append(CHANNEL, [change_event(changed, site.name, 10_000)], 10_000)


def positions(place: LiveSite, *found: tuple[int, float]) -> None:
    """A guest is seen."""
    events = [
        make_event(
            source="positions",
            id=f"at-{time}",
            type="person.position",
            subject="person/2",
            time=time,
            data={"key": "2", "value": [x, 5.0]},
        )
        for time, x in found
    ]
    place.append("events", events, found[-1][0])


@pytest.mark.parametrize("begun", ["now", "before"])
def test_replaced_and_deleted_situations_end_once_with_the_values_that_texts_name(
    spark: SparkSession, tmp_path: Path, begun: str
) -> None:
    """The first half was run by this version, or by the one before: its checkpoint is read on."""
    if begun == "now":
        place = situations_begin(spark, tmp_path)
        [crowded, _followed] = lives(place)
        assert crowded.values == {COUNT: NamedValue(2.0)}
    else:
        shutil.unpack_archive(BEGUN, tmp_path)
        place = LiveSite("small-policies", tmp_path)
        schema = place.checkpoint / "state/0/_metadata/v2/0"  # Spark writes the whole path
        schema.write_text(schema.read_text().replace("@CHECKPOINT@", str(place.checkpoint)))
    assert [(one.policy, one.time) for one in lives(place)] == [
        ("crowded", 2_000),
        ("followed", 1_000),
    ]
    change(place, 3, "replaced", "crowded", CROWDED.replace("at least 2", "at least 1"))
    change(place, 4, "deleted", "followed")
    positions(place, (12_000, 5), (13_000, 5), (20_000, 50))
    place.beat(30_000)
    place.run(spark, buckets=2)
    crowded, ended, _followed, deleted = lives(place)
    assert (ended.began, ended.time, ended.reason) == (2_000, 20_000, "")
    assert ended.values == {COUNT: NamedValue(2.0)}
    assert (deleted.began, deleted.reason) == (1_000, "the policy was deleted")


def lives(place: LiveSite) -> list[Detection]:
    """Beginnings and ends by policy and time."""
    told = [Detection.from_event(one) for one in place.found() if one.type in (DETECTED, ENDED)]
    return sorted(told, key=lambda one: (one.policy, one.time))


def test_what_does_not_fit_is_refused_in_words(spark: SparkSession, tmp_path: Path) -> None:
    place = LiveSite("small-policies", tmp_path)
    last = max(event.time for event in place.events)
    place.append("events", place.events[:10], last)
    with pytest.raises(InvalidInput, match="number of buckets"):
        place.run(spark, buckets=1_001)
    place.checkpoint.mkdir()
    made = {"site": "small-policies", "buckets": 1, "keys": [0], "after": 0, "began": 0}
    older = made | {"start": {}, "form": 0, "site": place.site.name}
    (place.checkpoint / FILE).write_bytes(msgspec.json.encode(older))
    with pytest.raises(Conflict) as caught:
        place.run(spark)
    assert caught.value.code == "live.other_version"
    (place.checkpoint / FILE).write_bytes(msgspec.json.encode(older | {"site": "other"}))
    with pytest.raises(Conflict) as caught:
        place.run(spark)
    assert caught.value.code == "live.other_site"


def _readings_again(place: LiveSite, id: str) -> list[pa.RecordBatch]:
    """The first reading once more, under another id."""
    first = place.readings.slice(0, 1)
    column = first.schema.get_field_index("id")
    return [first.set_column(column, "id", pa.array([id]))]


@pytest.fixture(scope="module")
def has_run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> LiveSite:
    """A site whose query has run once and left a checkpoint."""
    place = LiveSite("small-policies", tmp_path_factory.mktemp("has-run"))
    place.append("events", place.events[:10], max(event.time for event in place.events))
    place.run(spark, buckets=1)
    return place


@pytest.mark.parametrize(
    ("file", "text"),
    [
        *(("offsets/0", text) for text in ("", "garbage", "v1\n{broken", "v1")),
        ("commits/0", "garbage"),
        ("metadata", "garbage"),
    ],
)
@pytest.mark.slow
def test_a_damaged_file_of_the_checkpoint_is_called_damaged(
    spark: SparkSession, has_run: LiveSite, file: str, text: str
) -> None:
    damaged = has_run.checkpoint / file
    sound = damaged.read_bytes()
    damaged.write_text(text)
    with pytest.raises(Corrupt) as caught:
        has_run.run(spark, buckets=1)
    assert caught.value.code == "live.bad_checkpoint"
    damaged.write_bytes(sound)
