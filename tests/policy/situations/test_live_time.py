"""Live, what is due by time alone is told by `advance`, and only then. [SI-11]"""

from __future__ import annotations

import pytest

from rapport.core.detection import Detection
from rapport.policy.compiler.compile import compile_situation
from rapport.policy.runner.local import LocalRunner
from support.judge.holding import Reading
from support.situation_worlds import NAME, ONTOLOGY, SituationTables
from support.varied.worlds import readings_batch

HOUR = 3_600_000
START = 1_704_488_400_000


def runner(situation: str, *, lateness_ms: int = 0, once: str = "") -> LocalRunner:
    text = f"concepts\n  station S\nsituation\n  {situation}\n{once}actions\n  look\n"
    plan = compile_situation(text, name=NAME, ontology=ONTOLOGY).plan
    tables = SituationTables(station={"2": {}}).version().pull
    found = LocalRunner([plan], tables, lateness_ms=lateness_ms, sources=ONTOLOGY.sources)
    assert not found.begin(START)
    return found


def read(one: LocalRunner, after_ms: int, value: float, id: str = "e") -> list[tuple[int, object]]:
    reading = Reading(START + after_ms, id, "station.temperature", "2", (value,), "hut")
    return told(one.feed(readings_batch([reading], ONTOLOGY)))


def told(found: list[Detection]) -> list[tuple[int, object]]:
    """Times after the start: of each beginning, and of each end with its beginning."""
    return [(one.time - START, None if one.began is None else one.began - START) for one in found]


def advance(one: LocalRunner, after_ms: int) -> list[tuple[int, object]]:
    return told(one.advance(START + after_ms))


def test_a_duration_ends_by_time_alone() -> None:
    one = runner("temperature of S above 30 degC for 10 s")
    assert read(one, 1_000, 31.0) == []
    assert advance(one, 1_001) == []
    assert one.pending_until() == START + 11_001
    assert advance(one, 11_000) == []
    assert advance(one, 11_001) == [(11_000, None)]


def test_an_end_is_told_by_the_reading_that_shows_it_once_time_has_passed_it() -> None:
    one = runner("temperature of S above 30 degC")
    assert read(one, 1_000, 31.0) == []
    assert advance(one, 1_001) == [(1_000, None)]
    assert read(one, 2_000, 29.0) == []
    assert advance(one, 2_001) == [(2_000, 1_000)]
    assert one.situations()[NAME].open == 0


def test_silence_counts_from_the_start_and_is_told_without_any_reading() -> None:
    one = runner("no temperature of S for 30 min")
    assert one.pending_until() is not None
    assert advance(one, HOUR // 2) == []
    assert advance(one, HOUR // 2 + 1) == [(HOUR // 2, None)]
    assert one.situations()[NAME].open == 1


def test_a_reading_leaves_its_window_by_time_alone() -> None:
    one = runner("max of temperature of S in the last 10 s above 30 degC")
    read(one, 0, 31.0, "a")
    read(one, 4_000, 29.0, "b")
    assert advance(one, 4_001) == []
    assert advance(one, 10_000) == []
    assert advance(one, 10_001) == [(10_000, 0)]


@pytest.mark.parametrize("lateness_ms", [0, 5_000])
def test_lateness_delays_what_is_told_and_changes_nothing_else(lateness_ms: int) -> None:
    one = runner("temperature of S above 30 degC for 10 s", lateness_ms=lateness_ms)
    found = read(one, 1_000, 31.0)
    found += advance(one, 11_000 + lateness_ms)
    assert found == []
    assert advance(one, 11_001 + lateness_ms) == [(11_000, None)]


def test_a_beginning_that_waits_for_once_per_is_told_when_its_time_has_come() -> None:
    one = runner("temperature of S above 30 degC", once="  at most once per 1 min\n")
    found = read(one, 0, 31.0) + read(one, 1_000, 29.0, "b") + read(one, 2_000, 31.0, "c")
    assert advance(one, 3_000) == []
    assert found == [(0, None), (1_000, 0)]
    assert one.situations()[NAME].pending == 1
    assert advance(one, 60_001) == [(60_000, None)]
    assert one.situations()[NAME] == (1, 0)
