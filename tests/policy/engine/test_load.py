"""The load of a node's policies: shares, room, trend, and what to do about it. [PO-14]"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rapport.policy.engine.metrics import TREND_MS, LoadMeter, LoadReport, LoadSample, PolicyCounts


def measured(
    seconds: int, busy: Callable[[int], float], rate: float = 1_000, behind: float = 0
) -> LoadReport:
    """A node that was so busy in each second; `wide` costs three quarters of it."""
    meter, spent, costs = LoadMeter(), 0.0, {}
    for second in range(seconds + 1):
        spent += 1_000 * busy(second) if second else 0
        costs = {
            "wide": PolicyCounts(read=int(rate * second), cost_ms=0.75 * spent),
            "narrow": PolicyCounts(read=int(rate * second / 2), cost_ms=0.05 * spent),
        }
        sample = LoadSample(1_000 * second, spent, int(rate * second), int(behind * second))
        meter.take(sample, costs)
    return meter.report(costs)


def test_shares_rates_and_room_are_those_of_the_last_minute() -> None:
    report = measured(200, lambda second: 0.9 if second <= 100 else 0.25)
    assert report.busy == 0.25
    assert report.events_per_second == 1_000
    assert report.headroom == 3_000
    assert [one.policy for one in report.policies] == ["wide", "narrow"]
    assert report.policies[0].share == pytest.approx(0.1875)
    assert report.policies[0].us_per_event == pytest.approx(187.5)
    assert report.policies[1].us_per_event == pytest.approx(25)


def test_nothing_is_reported_that_was_not_measured() -> None:
    empty = LoadMeter().report({})
    assert (empty.busy, empty.headroom, empty.state) == (0, None, "measuring")
    assert measured(10, lambda _: 0.9).state == "measuring"


def test_a_node_with_room_stays_as_it_is() -> None:
    report = measured(600, lambda _: 0.3)
    assert report.state == "fine"
    assert report.advice == "This node can stay as it is: policies keep it busy 30% of the time."
    assert report.trend_per_hour == pytest.approx(0)


def test_the_advice_for_a_full_node_is_to_move_the_costliest_policy() -> None:
    report = measured(120, lambda _: 0.8)
    assert report.state == "move"
    assert report.advice == (
        "It is time to move policies to Spark: this node is busy 80% of the time; "
        "wide costs most (60%)."
    )


def test_the_advice_for_a_node_that_falls_behind_is_to_move_policies() -> None:
    report = measured(120, lambda _: 0.3, rate=100, behind=50)
    assert (report.state, report.behind) == ("move", 6_000)
    assert "falls behind what comes in" in report.advice


def test_a_rising_trend_is_reported_before_the_node_is_full() -> None:
    report = measured(600, lambda second: 0.3 + 0.0004 * second)
    assert report.state == "soon"
    assert report.trend_per_hour == pytest.approx(1.44, rel=0.02)
    assert "at this pace it is full in" in report.advice
    assert measured(600, lambda second: 0.54 - 0.0001 * second).state == "fine"


def test_a_policy_that_began_anew_counts_from_there() -> None:
    meter = LoadMeter()
    meter.take(LoadSample(0, 0, 0), {"p": PolicyCounts(read=500, cost_ms=900)})
    meter.take(LoadSample(10_000, 100, 10), {"p": PolicyCounts(read=10, cost_ms=100)})
    (policy,) = meter.report({"p": PolicyCounts(read=10, cost_ms=100)}).policies
    assert (policy.read, policy.share) == (10, 0.01)


def test_samples_are_kept_as_long_as_the_trend_needs_them() -> None:
    meter = LoadMeter()
    for second in range(5_000):
        meter.take(LoadSample(1_000 * second, 0, 0), {})
    assert len(meter._samples) == TREND_MS / 1_000 + 1
    assert len(meter._costs) <= 14
