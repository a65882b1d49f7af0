"""The local runner: order within the lateness, late readings, snapshots, changing policies."""

from __future__ import annotations

import msgspec
import pytest

from rapport.core.detection import detection_lines
from rapport.core.errors import Corrupt, DuplicateName, UnknownName, Unsupported
from rapport.kernel.clock import Chance
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.plan import Constraint, Plan
from rapport.policy.runner.local import LocalRunner, in_event_order
from support.judge.occurrences import Reading
from support.varied.worlds import ONTOLOGY, WINDOW_MS, Pull, random_world, readings_batch

WORLD = random_world(Chance(7), events=60)


def plan(conditions: str, name: str = "p") -> Plan:
    text = (
        f"concepts\n  person A\n  room R\n  person B\nconditions\n{conditions}\nactions\n  look\n"
    )
    return compile_policy(text, name=name, ontology=ONTOLOGY, window_ms=WINDOW_MS).plan


INSIDE = plan("  A is inside R")
ALONE = plan("  A is inside R\n  A is not within 1m of B\n  distinct A, B", name="alone")


def reading(time: int, id: str, key: str = "2") -> Reading:
    return Reading(time, id, "person.position", key, (0.0, 0.0))


def test_a_reading_as_old_as_the_watermark_is_not_late_and_an_older_one_is() -> None:
    runner = LocalRunner([], Pull({}), lateness_ms=10)
    runner.feed(readings_batch([reading(100, "a"), reading(90, "b"), reading(89, "c")]))
    assert runner.late == 1
    assert runner.take_late() == [(89, "c")]
    assert runner.take_late() == []


def test_lateness_is_judged_by_arrival_not_by_batch() -> None:
    arrivals = [reading(100, "a"), reading(80, "b"), reading(200, "c"), reading(195, "d")]
    whole = LocalRunner([], Pull({}), lateness_ms=10)
    whole.feed(readings_batch(arrivals))
    single = LocalRunner([], Pull({}), lateness_ms=10)
    for item in arrivals:
        single.feed(readings_batch([item]))
    assert whole.late_readings == single.late_readings == [(80, "b")]


def test_readings_strictly_below_the_watermark_are_handed_on() -> None:
    runner = LocalRunner([INSIDE], WORLD.pull, lateness_ms=0)
    room = WORLD.pull.instances("room").columns["area"][0]
    here = Reading(100, "a", "person.position", "2", (room[0], room[1]))
    assert runner.feed(readings_batch([here])) == []
    assert runner.pending_until() == 101
    assert runner.advance(100) == []
    assert [found.time for found in runner.advance(101)] == [100] * len(runner_rooms(here))
    assert runner.pending_until() is None


def runner_rooms(here: Reading) -> list[str]:
    rooms = WORLD.pull.instances("room")
    x, y = here.value
    return [
        name
        for name, (x1, y1, x2, y2) in zip(rooms.ids, rooms.columns["area"], strict=True)
        if x1 <= x <= x2 and y1 <= y <= y2
    ]


def test_advancing_makes_older_readings_late() -> None:
    runner = LocalRunner([], Pull({}), lateness_ms=5)
    runner.advance(100)
    runner.feed(readings_batch([reading(94, "a"), reading(95, "b")]))
    assert runner.take_late() == [(94, "a")]


def test_equal_times_are_ordered_by_id_as_code_points() -> None:
    ids = ["e9", "e10", "é", "z", "e10", "𝄞", "\ufffd"]
    for filler in (0, 100):
        padding = [reading(1_000 + number, f"f{number}") for number in range(filler)]
        batch = readings_batch([*(reading(5, id, key=id) for id in ids), *padding])
        found = in_event_order(batch).column("id").to_pylist()[: len(ids)]
        assert found == sorted(ids)


def test_unsorted_readings_are_sorted_by_time() -> None:
    batch = readings_batch([reading(3, "a"), reading(1, "b"), reading(2, "c"), reading(1, "a")])
    assert in_event_order(batch).column("id").to_pylist() == ["a", "b", "c", "a"]


def test_a_snapshot_goes_on_as_if_nothing_had_happened() -> None:
    straight = LocalRunner([INSIDE, ALONE], WORLD.pull, lateness_ms=20)
    expected = straight.feed(readings_batch(WORLD.readings)) + straight.finish()
    assert expected
    for cut in (1, 13, 40):
        first = LocalRunner([INSIDE, ALONE], WORLD.pull, lateness_ms=20)
        found = first.feed(readings_batch(WORLD.readings[:cut]))
        second = LocalRunner([INSIDE, ALONE], WORLD.pull, lateness_ms=20)
        second.restore(first.snapshot())
        found += second.feed(readings_batch(WORLD.readings[cut:])) + second.finish()
        assert detection_lines(found) == detection_lines(expected)


def test_a_snapshot_of_other_policies_or_garbage_is_refused() -> None:
    runner = LocalRunner([INSIDE], WORLD.pull, lateness_ms=0)
    saved = runner.snapshot()
    with pytest.raises(Corrupt, match="other policies"):
        LocalRunner([ALONE], WORLD.pull, lateness_ms=0).restore(saved)
    with pytest.raises(Corrupt, match="other policies"):
        LocalRunner([INSIDE], WORLD.pull, lateness_ms=1).restore(saved)
    for broken in (b"", b"\xff", saved[:10]):
        with pytest.raises(Corrupt):
            runner.restore(broken)


def test_unchanged_policies_go_on_when_others_changed() -> None:
    before = LocalRunner([INSIDE, ALONE], WORLD.pull, lateness_ms=0)
    before.feed(readings_batch(WORLD.readings[:30]))
    changed = msgspec.structs.replace(INSIDE, window_ms=50)
    after = LocalRunner([changed, ALONE], WORLD.pull, lateness_ms=0)
    assert after.restore_known(before.snapshot()) == ["p"]
    rest = readings_batch(WORLD.readings[30:])
    found = after.feed(rest) + after.finish()
    expected = before.feed(rest) + before.finish()
    kept = [item for item in found if item.policy == "alone"]
    assert kept == [item for item in expected if item.policy == "alone"]
    assert kept


def test_policies_come_and_go_between_batches() -> None:
    runner = LocalRunner([INSIDE], WORLD.pull, lateness_ms=0)
    with pytest.raises(DuplicateName):
        runner.deploy(INSIDE)
    runner.withdraw("p")
    with pytest.raises(UnknownName):
        runner.withdraw("p")
    assert runner.feed(readings_batch(WORLD.readings)) + runner.finish() == []


def test_a_plan_that_cannot_be_executed_is_refused_with_the_reason() -> None:
    side = msgspec.structs.replace(
        INSIDE.terms[0].first, constraints=(Constraint("position", "=", "x"),)
    )
    wrong = msgspec.structs.replace(
        INSIDE, terms=(msgspec.structs.replace(INSIDE.terms[0], first=side),), window_ms=0
    )
    with pytest.raises(Unsupported, match=r"which events bring.*window"):
        LocalRunner([wrong], WORLD.pull, lateness_ms=0)


PERIODS = {"badges": msgspec.structs.replace(ONTOLOGY.sources["badges"], period_ms=30)}


def test_a_snapshot_made_with_other_periods_is_refused() -> None:
    saved = LocalRunner([ALONE], WORLD.pull, lateness_ms=0, sources=PERIODS).snapshot()
    with pytest.raises(Corrupt, match="periods"):
        LocalRunner([ALONE], WORLD.pull, lateness_ms=0).restore(saved)


def test_a_snapshot_of_an_older_version_is_refused() -> None:
    saved = msgspec.msgpack.decode(LocalRunner([], Pull({}), lateness_ms=0).snapshot())
    del saved["silence"]  # not known in version 1
    for old in (1, 99):
        saved["snapshot"] = old
        with pytest.raises(Corrupt, match=f"version {old}"):
            LocalRunner([], Pull({}), lateness_ms=0).restore(msgspec.msgpack.encode(saved))


def test_a_source_that_gets_a_period_while_the_node_is_down_is_watched_from_then_on() -> None:
    before = LocalRunner([ALONE], WORLD.pull, lateness_ms=0)
    before.feed(readings_batch([reading(0, "a"), reading(1_000, "b")]))
    after = LocalRunner([ALONE], WORLD.pull, lateness_ms=0, sources=PERIODS)
    assert after.restore_known(before.snapshot()) == []
    assert after.renewed().snapshot() != after.snapshot()
    states = msgspec.msgpack.decode(after.snapshot())["silence"]
    assert states == {"badges": {"period_ms": 30, "last": 1_000, "gaps": []}}
