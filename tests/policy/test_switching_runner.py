"""A runner that goes over to other tables decides the same however its readings are cut. [PO-2,
PO-8]
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.event import make_event
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.plan import Plan
from rapport.policy.readings import split_events
from rapport.policy.runner.local import LocalRunner
from rapport.policy.table_history import PullByTime, SwitchingRunner, TableSwitch
from rapport.tables.instances import Instances
from rapport.tables.tables import BEGINNING_OF_TIME, Tables
from support.varied.changing_tables import ALONE, INSIDE
from support.varied.worlds import ONTOLOGY

LATENESS = 20


def plan_of(text: str) -> Plan:
    return compile_policy(text, name=text[:99], ontology=ONTOLOGY, window_ms=50).plan


PLANS = [plan_of(INSIDE), plan_of(ALONE)]


def tables(*statuses: str) -> Tables:
    made = Tables(ONTOLOGY.concepts)
    area = {"area": np.array([(0, 0, 5, 5)], np.float64)}
    made.add_version(BEGINNING_OF_TIME, Instances("room", ["lab"], area))
    status = {"status": np.array(statuses, object)}
    made.add_version(BEGINNING_OF_TIME, Instances("person", ["7", "8"], status))
    return made


def readings(times: list[tuple[int, str]]) -> pa.RecordBatch:
    events = [
        make_event(
            source="badges",
            id=f"e{number}",
            type="person.position",
            time=time,
            data={"key": who, "value": [1.0, 1.0]},
        )
        for number, (time, who) in enumerate(times)
    ]
    return split_events(events, ONTOLOGY)[0]


def then(*switches: tuple[int, Tables]) -> PullByTime:
    made = tuple(TableSwitch(since, lambda pull=pull: pull) for since, pull in switches)  # type: ignore[misc]
    return PullByTime(pull=tables("guest", "employee"), switches=made)


def found(runner: SwitchingRunner, batches: list[pa.RecordBatch]) -> set[str]:
    made = [one for batch in batches for one in runner.feed(batch)]
    return {one.id() for one in [*made, *runner.finish()]}


TIMES = st.lists(
    st.tuples(st.integers(min_value=0, max_value=400), st.sampled_from("78")), max_size=30
)
CUTS = st.lists(st.integers(min_value=0, max_value=30), max_size=5)
SINCE = st.lists(st.integers(min_value=-50, max_value=450), max_size=3)
STATUS = st.sampled_from(["guest", "employee"])


@given(TIMES, CUTS, SINCE, st.lists(st.tuples(STATUS, STATUS), min_size=3, max_size=3))
def test_where_readings_are_cut_makes_no_difference(
    times: list[tuple[int, str]], cuts: list[int], since: list[int], statuses: list
) -> None:
    # In an order that arrives: nobody comes later than is waited for.
    whole = readings(sorted(times, key=lambda one: one[0] + (one[0] * 7 + ord(one[1])) % LATENESS))
    switches = [(at, tables(*two)) for at, two in zip(sorted(since), statuses, strict=False)]

    def runner() -> SwitchingRunner:
        return SwitchingRunner(PLANS, then(*switches), lateness_ms=LATENESS, sources={})

    edges = sorted({0, *(min(cut, len(whole)) for cut in cuts), len(whole)})
    parts = [whole.slice(low, high - low) for low, high in pairwise(edges)]
    assert found(runner(), [whole]) == found(runner(), parts)


def test_readings_before_the_switch_meet_the_rows_of_before() -> None:
    rows = readings([(10, "7"), (100, "7"), (200, "7"), (300, "7")])
    runner = SwitchingRunner(
        PLANS[:1], then((100, tables("employee", "employee"))), lateness_ms=LATENESS, sources={}
    )
    made = [*runner.feed(rows), *runner.finish()]
    assert [one.time for one in made] == [10]


def test_without_a_switch_it_is_the_local_runner() -> None:
    rows = readings([(10, "7"), (60, "8"), (200, "7")])
    pull = tables("guest", "employee")
    plain = LocalRunner(PLANS, pull, lateness_ms=LATENESS, sources={})
    switching = SwitchingRunner(PLANS, pull, lateness_ms=LATENESS, sources={})
    assert found(switching, [rows]) == {one.id() for one in [*plain.feed(rows), *plain.finish()]}


def test_several_switches_before_the_first_reading_cost_one() -> None:
    asked: list[int] = []

    def pull(number: int) -> Tables:
        asked.append(number)
        return tables("employee", "employee")

    switches = tuple(
        TableSwitch(since, lambda number=number: pull(number))  # type: ignore[misc]
        for number, since in enumerate((-(2**62), 0, 5))
    )
    by_time = PullByTime(pull=tables("guest", "guest"), switches=switches)
    runner = SwitchingRunner(PLANS[:1], by_time, lateness_ms=0, sources={})
    assert found(runner, [readings([(10, "7")])]) == set()
    assert asked == [2]


def test_what_failed_or_was_late_is_not_forgotten_at_a_switch() -> None:
    runner = SwitchingRunner(
        PLANS[:1], then((100, tables("guest", "guest"))), lateness_ms=0, sources={}
    )
    runner.feed(readings([(50, "7"), (10, "7"), (200, "7")]))
    assert runner.runner.late == 1
    assert [time for time, _id in runner.runner.take_late()] == [10]
