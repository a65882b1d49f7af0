"""Approximate monitoring: never further off than tolerated, and far fewer messages. [PO-14]"""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput, UnknownName
from rapport.kernel.approximation import (
    Aggregate,
    ApproximateAggregate,
    ApproximateReport,
    ApproximateReporter,
    SlidingAggregate,
    aggregate_values,
    split_imprecision,
)
from rapport.kernel.clock import Chance

VALUES = st.floats(-1e9, 1e9)
IMPRECISIONS = st.one_of(st.just(0.0), st.floats(0, 1e6))
STEPS = st.lists(
    st.one_of(st.tuples(st.just("value"), VALUES), st.tuples(st.just("change"), IMPRECISIONS)),
    max_size=60,
)


@given(IMPRECISIONS, STEPS)
def test_what_a_subscriber_knows_is_never_further_off_than_it_tolerates(
    imprecision: float, steps: list[tuple[str, float]]
) -> None:
    source, known, tolerated = ApproximateReporter(imprecision), None, imprecision
    truth: float | None = None
    for what, number in steps:
        if what == "value":
            truth, report = number, source.offer(number)
        else:
            tolerated, report = number, source.change(number)
        known = report or known
        if truth is not None:
            assert known is not None
            assert abs(known.value - truth) <= tolerated


@given(IMPRECISIONS, st.lists(VALUES, min_size=1))
def test_nothing_is_reported_that_the_last_report_allows(
    imprecision: float, values: list[float]
) -> None:
    source, reports = ApproximateReporter(imprecision), []
    for value in values:
        report = source.offer(value)
        reports += [report] if report is not None else []
    assert len(reports) == source.reported <= source.offered == len(values)
    assert all(not before.allows(after.value) for before, after in pairwise(reports))


def test_a_smaller_imprecision_is_answered_at_once_when_it_must_be() -> None:
    source = ApproximateReporter(30)
    assert source.offer(50) == ApproximateReport(50, 30)
    assert source.offer(70) is None
    assert source.change(25) is None
    assert source.change(5) == ApproximateReport(70, 5)
    assert source.change(30) is None
    assert source.imprecision == 30


@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf])
def test_what_is_no_imprecision_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidInput):
        ApproximateReporter(wrong)
    source = ApproximateReporter(1)
    with pytest.raises(InvalidInput):
        source.change(wrong)
    assert source.imprecision == 1


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_no_number_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidInput):
        ApproximateReporter(1).offer(wrong)


def processor(chance: Chance, seconds: int) -> list[float]:
    """A processor's load in percent, once a second: it wanders, and now and then it jumps."""
    load, found = 30.0, []
    for _ in range(seconds):
        load += chance.gauss(0, 2)
        if chance.random() < 0.005:
            load = chance.uniform(0, 100)
        load = min(max(load, 0.0), 100.0)
        found.append(load)
    return found


def messages(loads: list[float], imprecision: float, span_ms: int) -> int:
    recent, source = SlidingAggregate("average", span_ms), ApproximateReporter(imprecision)
    for second, load in enumerate(loads):
        recent.add(second * 1_000, load)
        average = recent.value(second * 1_000)
        assert average is not None
        source.offer(average)
        assert source.last is not None
        assert abs(source.last.value - average) <= imprecision
    return source.reported


def test_five_points_of_a_processors_load_need_less_than_a_fifth_of_the_messages() -> None:
    loads = processor(Chance(7), 10_000)
    assert messages(loads, 5, 1) * 5 <= len(loads)
    assert messages(loads, 5, 60_000) * 5 <= len(loads)
    averaged = [messages(loads, imprecision, 60_000) for imprecision in (0, 1, 5, 30)]
    assert averaged == sorted(averaged, reverse=True)


def test_recent_values_are_those_of_the_span() -> None:
    recent = SlidingAggregate("average", 60_000)
    assert recent.value(0) is None
    recent.add(0, 10)
    recent.add(30_000, 20)
    assert recent.value(59_999) == 15
    assert recent.value(60_000) == 20
    assert recent.value(90_000) is None
    largest, total = SlidingAggregate("max", 10), SlidingAggregate("sum", 10)
    for each in (largest, total):
        each.add(1, 3)
        each.add(2, 4)
    assert (largest.value(5), total.value(5)) == (4, 7)
    with pytest.raises(UnknownName):
        SlidingAggregate("median", 10)  # type: ignore[arg-type]


HOWS = st.sampled_from(("average", "sum", "max"))
MOVES = st.lists(
    st.tuples(st.sampled_from("abcd"), st.floats(-1_000, 1_000), st.integers(0, 9)), max_size=60
)


@given(HOWS, st.floats(0.1, 100), MOVES, st.booleans())
def test_the_whole_is_never_further_off_than_tolerated(
    how: Aggregate, imprecision: float, moves: list[tuple[str, float, int]], by_need: bool
) -> None:
    """Members come and go, the imprecision changes, shares follow; after each step all members have
    taken their share over.
    """
    whole = ApproximateAggregate(how, imprecision)
    members: dict[str, ApproximateReporter] = {}
    truth: dict[str, float] = {}

    def give(shares: dict[str, float]) -> None:
        assert shares.keys() == members.keys()
        for name, share in shares.items():
            members[name].change(share)
            if (last := members[name].last) is not None:
                whole.take(name, last)

    for name, value, what in moves:
        if what == 0 and name in members:
            del members[name], truth[name]
            give(whole.leave(name))
            continue
        if what == 1:
            imprecision = abs(value) / 10
            give(whole.change(imprecision))
        if name not in members:
            members[name] = ApproximateReporter(imprecision)
            shares = whole.join(name)
            members[name].change(shares[name])
            truth[name] = value
            report = members[name].offer(value)
            assert report is not None
            whole.take(name, report)
            give(shares)
        truth[name] = value
        if (report := members[name].offer(value)) is not None:
            whole.take(name, report)
        if by_need:
            give(whole.shares_by_need())
        known, exact = whole.known(), aggregate_values(how, list(truth.values()))
        assert known is not None
        assert exact is not None
        assert abs(known.value - exact) <= imprecision + 1e-9
        assert known.imprecision <= imprecision + 1e-9


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1e6), min_size=1), st.floats(0, 1e3))
def test_shares_of_a_sum_add_up_and_nobody_gets_next_to_nothing(
    moved: dict[str, float], imprecision: float
) -> None:
    shares = split_imprecision(imprecision, "sum", moved)
    assert math.isclose(sum(shares.values()), imprecision, abs_tol=1e-9)
    assert all(share >= 0.09 * imprecision / len(moved) for share in shares.values())


def test_who_moves_more_gets_more_and_then_all_report_less_often() -> None:
    chance = Chance(3)
    pace = {"calm": 0.1, "wild": 3.0}

    def reports(shares: dict[str, float]) -> int:
        members = {name: ApproximateReporter(share) for name, share in shares.items()}
        values = dict.fromkeys(pace, 0.0)
        for _ in range(5_000):
            for name, step in pace.items():
                values[name] += chance.gauss(0, step)
                members[name].offer(values[name])
        return sum(member.reported for member in members.values())

    equal, fitted = (
        split_imprecision(10, "sum", dict.fromkeys(pace, 1.0)),
        split_imprecision(10, "sum", pace),
    )
    assert fitted["wild"] > equal["wild"] > fitted["calm"]
    assert reports(fitted) < 0.6 * reports(equal)
