"""Commands, registry and comparison on their own. [PO-9, PO-10]"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rapport.core.detection import Detection
from rapport.policy.engine.active_plans import ShadowComparison, longest_memory
from rapport.policy.engine.shadow_episodes import ShadowTally
from rapport.policy.engine.stream_steps import (
    PlanChange,
    StreamPosition,
    TimeMoved,
    TimeReset,
    merge_steps,
)
from rapport.policy.lifecycle.record import stop_of
from rapport.policy.lifecycle.registry import (
    PolicyChange,
    PolicyRegistry,
    RecordedChange,
    text_of_version,
)
from rapport.policy.plan import Clause, Plan, Positive, QueryTerm, Side

SIDE = Side("A", "person", "position", (), "person.position")
ROOM = Side("R", "room", "area", (), None)


def plan(window_ms: int = 5_000) -> Plan:
    term = QueryTerm(SIDE, ROOM, "inside")
    clauses = (Clause((Positive(0),)),)
    return Plan(policy="p", terms=(term,), clauses=clauses, actions=(), window_ms=window_ms)


def detection(time: int, person: str = "1", caused: int | None = None) -> Detection:
    causes = ((time if caused is None else caused, f"e{time}"),)
    return Detection(policy="p", time=time, bindings={"A": person}, causes=causes)


@pytest.mark.parametrize(
    ("phrase", "expected"),
    [
        ("delete policy night-watch", ("delete", "night-watch")),
        ("Pause  Policy  'x'", ("pause", "x")),
        ("delete policy", None),
        ("delete the policy x", None),
        ("please delete policy x", None),
    ],
)
def test_only_exact_phrases_are_commands(phrase: str, expected: Any) -> None:
    assert stop_of(phrase) == expected


def change(number: int, what: Any, name: str = "p", **more: Any) -> RecordedChange:
    changed = PolicyChange(
        what=what, name=name, number=number, place=StreamPosition(number, 0), **more
    )
    return RecordedChange(str(number), number, number, changed)


def test_whatever_changes_a_policy_ends_its_shadow() -> None:
    start = [
        change(1, "registered", text="a", version="1"),
        change(2, "shadowed", text="b", version="2"),
    ]
    for what in ("replaced", "paused", "deleted", "broken", "rebuilt", "dropped", "promoted"):
        registry = PolicyRegistry([*start, change(3, what, text="b", version="2")])
        assert registry.entries["p"].shadow_version == "", what
    assert PolicyRegistry(start).entries["p"].shadow_version == "2"
    assert PolicyRegistry(start).until(1).entries["p"].shadow_version == ""


def test_the_text_of_every_version_is_found() -> None:
    changes = [
        change(1, "registered", text="a", version="1"),
        change(2, "shadowed", text="b", version="2"),
        change(3, "rebuilt", version="3"),
        change(4, "replaced", text="c", version="4"),
        change(5, "deleted"),
    ]
    found = [text_of_version(changes, version) for version in ("1", "2", "3", "4", "5")]
    assert found == ["a", "b", "a", "c", ""]


def test_a_replaced_policy_stays_paused_and_a_change_of_nothing_is_passed_over() -> None:
    registry = PolicyRegistry(
        [
            change(1, "registered", text="a", version="1"),
            change(2, "paused"),
            change(3, "replaced", text="b", version="2"),
            change(4, "resumed", name="nobody"),
        ]
    )
    assert registry.entries["p"].state == "paused"
    assert list(registry.entries) == ["p"]


def test_files_are_compared_with_their_recorded_text_not_with_the_running_version() -> None:
    registry = PolicyRegistry(
        [
            change(1, "registered", text="a", version="1", is_from_file=True),
            change(2, "replaced", text="b", version="2"),
        ]
    )
    assert registry.from_files({"p": "a"}) == []
    assert [one.what for one in registry.from_files({"p": "b"})] == ["replaced"]
    assert [one.what for one in registry.from_files({})] == ["deleted"]
    assert registry.from_files({}, unread={"p"}) == []


def test_time_and_changes_at_one_place_are_met_in_their_order() -> None:
    first = PlanChange(place=StreamPosition(5, 100), position=1, act="withdraw", policy="p")
    second = PlanChange(place=StreamPosition(5, 300), position=2, act="withdraw", policy="p")
    moved = [TimeMoved(200, 5), TimeMoved(300, 5), TimeMoved(50, 4)]
    assert list(merge_steps(moved, [second, first])) == [
        moved[2],
        first,
        moved[0],
        moved[1],
        second,
    ]


def test_what_happens_after_time_began_anew_is_met_after_it_though_its_time_is_earlier() -> None:
    ahead = TimeMoved(9_000, 5)
    reset = TimeReset(time=100, after=5, before=9_000, resets=1, skew_ms=10)
    moved = TimeMoved(200, 5, resets=1)
    before = PlanChange(place=StreamPosition(5, 9_000), position=1, act="withdraw", policy="p")
    after = PlanChange(place=StreamPosition(5, 200, 1), position=2, act="withdraw", policy="p")
    steps = [ahead, before, reset, moved, after]
    assert list(merge_steps([moved, reset, ahead], [after, before])) == steps
    assert msgspec.json.decode(b'{"after":5,"time":9000}', type=StreamPosition) == before.place
    assert msgspec.json.encode(before.place) == b'{"after":5,"time":9000}'


def test_a_difference_is_certain_once_the_other_cannot_find_it_any_more() -> None:
    comparison = ShadowComparison(plan(), plan(1_000), began=0)
    assert comparison.take([detection(6_000)], [], 8_000) == []
    assert comparison.take([], [detection(6_000)], 10_000) == []
    assert comparison.take([detection(9_000)], [detection(9_000, "2")], 14_000) == []
    found = comparison.take([], [], 14_001)
    assert [(one.found_by, one.bindings["A"]) for one in found] == [
        ("running", "1"),
        ("shadow", "2"),
    ]
    assert comparison.tally == ShadowTally(1, 1, 1)


def test_saved_anywhere_a_comparison_tells_the_same() -> None:
    whole, cut = (
        ShadowComparison(plan(), plan(1), began=0),
        ShadowComparison(plan(), plan(1), began=0),
    )
    told: list[Any] = []
    expected: list[Any] = []
    for time in range(4_000, 40_000, 1_000):
        running = [detection(time)] if time % 3_000 else []
        shadow = [detection(time)] if time % 2_000 else []
        expected += whole.take(running, shadow, time)
        again = ShadowComparison(plan(), plan(1), began=0)
        again.restore(cut.state())
        cut = again
        told += cut.take(running, shadow, time)
    assert told + cut.end() == expected + whole.end()
    assert cut.tally == whole.tally
    assert longest_memory(plan()) == 5_000


def test_what_rests_on_readings_from_before_the_shadow_does_not_count() -> None:
    comparison = ShadowComparison(plan(), plan(1_000), began=10_000)
    comparison.take([detection(20_000, caused=9_999), detection(14_999)], [], 20_000)
    assert comparison.end() == []
