"""Small files are joined, old days go, and what the next layer has not taken stays. [PI-3, LK-9]"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.kernel.clock import ManualClock
from rapport.lake.maintenance import (
    CONFIRM_MS,
    MOST_AWAY_MS,
    ClockSeen,
    compact,
    days_kept,
    expire,
    look,
    read_rules,
)

DAY = 86_400_000
YEARS = 3 * 365 * DAY
ALL = {"events": 3}
"""The positions up to which silver has everything."""


@pytest.fixture
def days(filled: Any) -> Any:
    """Three days of bronze, an event of `events` and one of `raw.a` each."""
    for number in range(3):
        filled.append("raw.a", f"r{number}")
        filled.append("events", str(number))
        filled.export()
        asyncio.run(filled.clock.advance(DAY))
    return filled


def kept(filled: Any, channel: str) -> list[str]:
    files = filled.lake.open("bronze", channel).files()
    return sorted(str(file.partition["day"]) for file in files)


def test_small_files_become_one_with_the_same_rows(filled: Any) -> None:
    for number in range(6):
        filled.append("events", f"e{number}", f"f{number}")
        filled.export()
    table = filled.lake.open("bronze", "events")
    before = table.refresh().read().sort_by("position")
    old = {file.uri for file in table.files()}
    assert compact(filled.path, dry_run=True).files_after == 6
    done = compact(filled.path)
    assert (done.tables, done.files_before, done.files_after) == (1, 6, 1)
    assert table.refresh().read().sort_by("position").equals(before)
    assert all(map(os.path.exists, old))  # a reader that began before goes on
    assert compact(filled.path, kept_hours=0).deleted == 6
    assert not any(map(os.path.exists, old))
    assert table.refresh().read().sort_by("position").equals(before)
    filled.append("events", "later")
    filled.export()
    assert filled.lake.open("bronze", "events").progress("export") == 13


def test_few_files_stay(days: Any) -> None:
    assert compact(days.path).tables == 0


def test_days_older_than_the_rule_go(days: Any) -> None:
    done = expire(days.path, {"bronze": 2}, taken=ALL, clock=days.clock)
    assert done.tables == {"bronze/events": 1, "bronze/raw.a": 1}
    assert kept(days, "events") == kept(days, "raw.a") == ["2026-03-03", "2026-03-04"]


def test_tables_without_a_rule_keep_everything(days: Any) -> None:
    expire(days.path, {"bronze/raw.*": 0}, taken=ALL, clock=days.clock)
    assert kept(days, "raw.a") == []
    assert len(kept(days, "events")) == 3


def test_what_silver_has_not_taken_stays(days: Any) -> None:
    done = expire(days.path, {"bronze": 0}, taken={"events": 1}, clock=days.clock)
    assert list(done.waiting) == ["bronze/events"]
    assert kept(days, "events") == ["2026-03-03", "2026-03-04"]
    assert expire(days.path, {"bronze": 0}, taken=ALL, clock=days.clock).waiting == {}
    assert kept(days, "events") == []


def test_a_dry_run_removes_nothing(days: Any) -> None:
    assert expire(days.path, {"bronze": 0}, taken=ALL, clock=days.clock, dry_run=True).files == 6
    assert len(kept(days, "events")) == 3


@pytest.mark.parametrize("rule", ["bronze", "=3", "bronze/x=-1", "bronze=soon", "lead=3"])
def test_a_rule_that_cannot_be_meant_is_refused(rule: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_rules([rule])
    assert caught.value.code == "lake.bad_rule"


@pytest.mark.parametrize(
    "rules",
    [
        {"bronze": 7, "bronze/raw.*": 30, "bronze/raw.a": 90},
        {"bronze/raw.a": 90, "bronze/raw.a*": 30},
        {"bronze/raw*": 30, "bronze/raw.a": 90},
    ],
)
def test_a_rule_for_one_table_counts_before_a_rule_for_several(rules: dict[str, int]) -> None:
    assert days_kept("bronze/raw.a", rules) == 90


def test_a_clock_that_jumps_ahead_for_a_moment_lets_nothing_go(days: Any) -> None:
    rules = {"bronze": 30}
    assert expire(days.path, rules, taken=ALL, clock=days.clock).files == 0
    for _again in range(3):  # also a service that is started again and again meanwhile
        later = ManualClock(days.clock.now_ms() + YEARS)
        jumped = expire(days.path, rules, taken=ALL, clock=later)
        assert jumped.files == 0
        assert "clock" in jumped.waiting["bronze/events"]
    assert expire(days.path, rules, taken=ALL, clock=days.clock).waiting == {}
    assert len(kept(days, "events")) == 3


def test_a_clock_that_stays_ahead_is_believed(days: Any) -> None:
    expire(days.path, {"bronze": 30}, taken=ALL, clock=days.clock)
    later = ManualClock(days.clock.now_ms() + YEARS)
    assert expire(days.path, {"bronze": 30}, taken=ALL, clock=later, dry_run=True).files == 0
    assert expire(days.path, {"bronze": 30}, taken=ALL, clock=later).files == 0
    asyncio.run(later.advance(CONFIRM_MS))
    assert expire(days.path, {"bronze": 30}, taken=ALL, clock=later).files == 6
    assert kept(days, "events") == []


def test_a_lake_that_nobody_swept_before_goes_by_its_own_age(days: Any) -> None:
    logs = days.path.rglob("_delta_log")
    changed = max(int(path.stat().st_mtime * 1_000) for path in logs)
    rules = {"bronze": (changed - days.clock.now_ms()) // DAY + 30}
    assert expire(days.path, rules, taken=ALL, clock=ManualClock(changed + YEARS)).files == 0
    assert expire(days.path, {"bronze": 2}, taken=ALL, clock=days.clock).files == 2


@given(
    st.lists(st.tuples(st.integers(0, 3 * DAY), st.sampled_from([0, 0, YEARS, -DAY])), max_size=30)
)
def test_no_single_look_at_a_clock_that_is_years_ahead_is_believed(
    looks: list[tuple[int, int]],
) -> None:
    """However often it jumps, as long as two looks in a row do not agree on it."""
    true_ms, seen, was_ahead = YEARS, ClockSeen(YEARS), False
    for passed, ahead in looks:
        true_ms += passed % MOST_AWAY_MS
        ahead = 0 if was_ahead and ahead == YEARS else ahead
        was_ahead = ahead == YEARS
        seen = look(seen, true_ms + ahead)
        assert seen.believed_ms <= true_ms
