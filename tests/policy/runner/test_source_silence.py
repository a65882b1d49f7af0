"""Who was silent when: the borders of a gap, before the first event, and what is kept."""

from __future__ import annotations

import msgspec
import pytest

from rapport.policy.compiler.compile import compile_policy
from rapport.policy.ontology import PushSource
from rapport.policy.operators.uncertainty import SourceSilence, watched_sources
from support.judge.occurrences import Reading
from support.varied.worlds import ONTOLOGY, readings_batch

PERIOD = 10
STREAM = "person.position"


def sources(**periods: int) -> dict[str, PushSource]:
    badges = ONTOLOGY.sources["badges"]
    return {
        name: msgspec.structs.replace(badges, name=name, period_ms=period)
        for name, period in periods.items()
    }


def heard(silence: SourceSilence, *events: tuple[int, str]) -> SourceSilence:
    readings = [
        Reading(time, f"{time}{source}", STREAM, "2", (0.0, 0.0), source) for time, source in events
    ]
    silence.take(readings_batch(readings))
    return silence


def test_a_gap_as_long_as_the_period_is_none_and_a_longer_one_is() -> None:
    silence = heard(SourceSilence(sources(gate=PERIOD)), (0, "gate"), (10, "gate"), (21, "gate"))
    assert silence.silent([STREAM], 0, 10) == ()
    assert silence.silent([STREAM], 0, 21) == ("gate",)


@pytest.mark.parametrize(
    ("start", "end", "silent"),
    [
        (0, 20, False),  # the gap from 20 to 40 has not begun
        (20, 30, False),  # only 10 of it are past: not longer than the period
        (20, 31, True),
        (39, 45, True),
        (40, 45, False),  # it ended where the interval begins
        (40, 51, True),  # from the last event to the end
    ],
)
def test_a_gap_counts_where_it_meets_the_interval_and_as_far_as_it_is_past(
    start: int, end: int, silent: bool
) -> None:
    times = [(time, "gate") for time in (0, 10, 20, 40)]
    silence = heard(SourceSilence(sources(gate=PERIOD)), *times)
    assert silence.silent([STREAM], start, end) == (("gate",) if silent else ())


def test_before_its_first_event_a_source_is_silent_since_the_first_of_any() -> None:
    silence = heard(SourceSilence(sources(gate=PERIOD)), (0, "other"), (11, "gate"), (12, "gate"))
    assert silence.silent([STREAM], 5, 11) == ("gate",)
    assert silence.silent([STREAM], 11, 20) == ()


def test_nothing_is_silent_before_the_first_reading() -> None:
    assert SourceSilence(sources(gate=PERIOD)).silent([STREAM], 0, 1_000) == ()


def test_only_sources_with_a_period_and_of_the_streams_count() -> None:
    silence = heard(SourceSilence(sources(b=PERIOD, a=PERIOD, calm=0)), (0, "calm"))
    assert silence.silent([STREAM], 0, 100) == ("a", "b")
    assert silence.silent(["cart.place"], 0, 100) == ()
    assert silence.watches([STREAM, "x"])
    assert not silence.watches(["cart.place"])


def test_cutting_the_readings_changes_nothing() -> None:
    times = [(time, "gate") for time in (0, 3, 20, 25, 60)]
    whole = heard(SourceSilence(sources(gate=PERIOD)), *times)
    single = SourceSilence(sources(gate=PERIOD))
    single.reach_back(1_000)
    for item in times:
        heard(single, item)
    for end in range(1, 90):
        assert whole.silent([STREAM], end - 5, end) == single.silent([STREAM], end - 5, end)


@pytest.mark.slow
def test_old_gaps_are_forgotten() -> None:
    silence = SourceSilence(sources(gate=PERIOD))
    silence.reach_back(20)
    for time in range(0, 100_000, 11):
        heard(silence, (time, "gate"))
    assert len(silence.states["gate"].gaps) < 20
    assert silence.silent([STREAM], 99_900, 99_950) == ("gate",)


def test_a_source_whose_period_changed_is_watched_from_the_watermark_on() -> None:
    before = heard(SourceSilence(sources(gate=PERIOD, door=PERIOD)), (0, "gate"), (50, "gate"))
    after = SourceSilence(sources(gate=5, door=PERIOD, fresh=PERIOD))
    after.restore(before.states, 50)
    assert after.silent([STREAM], 0, 54) == ("door",)
    assert after.silent([STREAM], 0, 56) == ("door", "gate")
    assert after.silent([STREAM], 0, 61) == ("door", "fresh", "gate")


@pytest.mark.parametrize(
    ("conditions", "watched"),
    [
        ("A is inside R\n  A is not within 5m of B", ("gate",)),
        ("A is inside R FOLLOWED-BY B is not inside R", ("gate",)),
        ("A is inside R\n  A is not beside 2m of K", ("gate",)),
        ("A is inside R\n  A is not within 5m of B\n  when unsure fire", ()),
        ("A is inside R FOLLOWED-BY B is inside R", ()),
        ("A is inside R\n  K is not parked R", ()),
    ],
)
def test_a_plan_is_in_doubt_only_by_sources_of_its_absent_terms(
    conditions: str, watched: tuple[str, ...]
) -> None:
    text = (
        "concepts\n  person A\n  person B\n  cart K\n  room R\n"
        f"conditions\n  {conditions}\nactions\n  look\n"
    )
    plan = compile_policy(text, name="p", ontology=ONTOLOGY, window_ms=100).plan
    assert watched_sources(plan, sources(gate=PERIOD, calm=0)) == watched
