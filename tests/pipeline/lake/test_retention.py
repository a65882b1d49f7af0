"""Old days go; what the next layer has not taken stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import Conflict, InvalidInput
from rapport.core.event import Event
from rapport.kernel.clock import ManualClock
from rapport.pipeline.lake.believed_day import CONFIRM_MS, MOST_AWAY_MS, Seen, look
from rapport.pipeline.lake.files import write_gold
from rapport.pipeline.lake.retention import days_kept, expire, read_rules
from rapport.pipeline.lake.silver import update_silver
from rapport.policy.ontology import Ontology

Reading = Callable[..., Event]
DAY = 86_400_000


@pytest.fixture
def days(filled: Any, given_reading: Reading, begin: int) -> Any:
    """Three days of bronze, an event of `events` and one of `raw.a` each."""
    for number in range(3):
        filled.append("raw.a", given_reading(f"r{number}", begin + number * DAY))
        filled.fill(given_reading(str(number), begin + number * DAY))
        asyncio.run(filled.clock.advance(DAY))
    return filled


def kept(filled: Any, folder: str) -> list[str]:
    found = (filled.path / folder).rglob("*.parquet")
    return sorted({part[4:] for path in found for part in path.parts if part.startswith("day=")})


def test_days_older_than_the_rule_go(days: Any, ontology: Ontology) -> None:
    update_silver(None, days.path, ontology)
    done = expire(days.path, {"bronze": 2, "silver": 1}, clock=days.clock)
    assert done.tables == {
        "bronze/events": 1,
        "bronze/raw.a": 1,
        "silver/person.position": 2,
    }
    assert kept(days, "bronze") == ["2026-03-03", "2026-03-04"]
    assert kept(days, "silver") == ["2026-03-04"]
    assert not (days.path / "bronze/channel=events/day=2026-03-02").exists()


def test_tables_without_a_rule_keep_everything(days: Any, ontology: Ontology) -> None:
    update_silver(None, days.path, ontology)
    expire(days.path, {"bronze/raw.*": 0}, clock=days.clock)
    assert kept(days, "bronze/channel=raw.a") == []
    assert len(kept(days, "bronze/channel=events")) == 3
    assert len(kept(days, "silver")) == 3


def test_what_silver_has_not_taken_stays(days: Any, ontology: Ontology) -> None:
    done = expire(days.path, {"bronze": 0}, clock=days.clock)
    assert list(done.waiting) == ["bronze/events"]
    assert len(kept(days, "bronze/channel=events")) == 3
    update_silver(None, days.path, ontology)
    assert expire(days.path, {"bronze": 0}, clock=days.clock).waiting == {}
    assert kept(days, "bronze/channel=events") == []


def test_a_day_with_a_file_that_could_not_be_read_stays(days: Any, ontology: Ontology) -> None:
    file = min((days.path / "bronze/channel=events").rglob("*.parquet"))
    whole = file.read_bytes()
    file.write_bytes(b"")
    update_silver(None, days.path, ontology)
    done = expire(days.path, {"bronze/events": 0}, clock=days.clock)
    assert "could not be read" in done.waiting["bronze/events"]
    assert kept(days, "bronze/channel=events") == ["2026-03-02"]
    file.write_bytes(whole)
    update_silver(None, days.path, ontology)
    expire(days.path, {"bronze/events": 0}, clock=days.clock)
    assert kept(days, "bronze/channel=events") == []
    assert list(days.states()) == ["0", "1", "2"]


def test_a_day_whose_damaged_file_was_moved_aside_goes_like_any_other(
    days: Any, ontology: Ontology
) -> None:
    """As the hint says; nothing that is still there waits for anybody."""
    file = min((days.path / "bronze/channel=events").rglob("*.parquet"))
    copy = file.with_name(f"{1:020d}-{1:020d}.2.parquet")
    copy.write_bytes(file.read_bytes())
    file.write_bytes(b"")
    update_silver(None, days.path, ontology)
    file.rename(days.path / "aside")
    done = expire(days.path, {"bronze/events": 0}, clock=days.clock)
    assert done.waiting == {}
    assert kept(days, "bronze/channel=events") == []


def test_silver_is_not_made_anew_when_bronze_has_lost_days(days: Any, ontology: Ontology) -> None:
    update_silver(None, days.path, ontology)
    expire(days.path, {"bronze/events": 1}, clock=days.clock)
    with pytest.raises(Conflict) as caught:
        update_silver(None, days.path, ontology, rebuild=True)
    assert caught.value.code == "lake.cannot_rebuild"
    assert len(days.rows()) == 3


def test_a_kill_leaves_no_empty_folders_of_days(days: Any, ontology: Ontology) -> None:
    class Killed(Exception):
        pass

    def kill(step: str) -> None:
        if step == "moved away":
            raise Killed

    update_silver(None, days.path, ontology)
    with pytest.raises(Killed):
        expire(days.path, {"bronze": 2}, clock=days.clock, at_step=kill)
    expire(days.path, {"bronze": 2}, clock=days.clock)
    assert not list(days.path.rglob("day=2026-03-02/type=*"))
    assert not list((days.path / "bronze").glob("*/day=2026-03-02"))


def test_a_dry_run_removes_nothing(days: Any, ontology: Ontology) -> None:
    update_silver(None, days.path, ontology)
    assert expire(days.path, {"bronze": 0}, clock=days.clock, dry_run=True).files == 6
    assert len(kept(days, "bronze")) == 3


def test_the_name_of_a_folder_around_the_lake_is_no_day_of_it(
    new_lake: Any, given_reading: Reading, ontology: Ontology, tmp_path: Path
) -> None:
    """Such as that of a backup."""
    copy = new_lake(tmp_path / "day=2020-01-01" / "lake")
    copy.fill(given_reading("a"))
    update_silver(None, copy.path, ontology)
    table = write_gold(copy.path, "deliveries", pa.table({"message": ["m1"]}))
    assert expire(copy.path, {"gold": 30}, clock=copy.clock).files == 0
    assert table.exists()


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


def test_a_day_with_the_longest_names_goes_like_any_other(
    filled: Any, given_reading: Reading, begin: int, ontology: Ontology
) -> None:
    channel = "raw." + "c" * 100
    filled.append(channel, given_reading("0", begin, stream="s" * 256))
    filled.export()
    asyncio.run(filled.clock.advance(3 * DAY))
    assert expire(filled.path, {"bronze": 1}, clock=filled.clock).files == 1
    assert kept(filled, "bronze") == []
    update_silver(None, filled.path, ontology)  # and the lake can be worked on


YEARS = 3 * 365 * DAY


def test_a_clock_that_jumps_ahead_for_a_moment_lets_nothing_go(
    days: Any, ontology: Ontology
) -> None:
    update_silver(None, days.path, ontology)
    rules = {"bronze": 30, "silver": 30}
    assert expire(days.path, rules, clock=days.clock).files == 0
    for _again in range(3):  # also a service that is started again and again meanwhile
        jumped = expire(days.path, rules, clock=ManualClock(days.clock.now_ms() + YEARS))
        assert jumped.files == 0
        assert "clock" in jumped.waiting["bronze/events"]
    assert expire(days.path, rules, clock=days.clock).waiting == {}
    assert len(kept(days, "bronze")) == len(kept(days, "silver")) == 3


def test_a_clock_that_stays_ahead_is_believed(days: Any, ontology: Ontology) -> None:
    update_silver(None, days.path, ontology)
    expire(days.path, {"bronze": 30}, clock=days.clock)
    later = ManualClock(days.clock.now_ms() + YEARS)
    assert expire(days.path, {"bronze": 30}, clock=later, dry_run=True).files == 0
    assert expire(days.path, {"bronze": 30}, clock=later).files == 0
    asyncio.run(later.advance(CONFIRM_MS))
    assert expire(days.path, {"bronze": 30}, clock=later).files == 6
    assert kept(days, "bronze") == []


def test_a_lake_that_nobody_swept_before_goes_by_its_own_age(days: Any, ontology: Ontology) -> None:
    update_silver(None, days.path, ontology)
    changed = max(int(path.stat().st_mtime * 1_000) for path in days.path.rglob("day=*"))
    rules = {"bronze": (changed - days.clock.now_ms()) // DAY + 30}
    assert expire(days.path, rules, clock=ManualClock(changed + YEARS)).files == 0
    assert expire(days.path, {"bronze": 2}, clock=days.clock).files == 2


@given(
    st.lists(st.tuples(st.integers(0, 3 * DAY), st.sampled_from([0, 0, YEARS, -DAY])), max_size=30)
)
def test_no_single_look_at_a_clock_that_is_years_ahead_is_believed(
    looks: list[tuple[int, int]],
) -> None:
    """However often it jumps, as long as two looks in a row do not agree on it."""
    true_ms, seen, was_ahead = YEARS, Seen(YEARS), False
    for passed, ahead in looks:
        true_ms += passed % MOST_AWAY_MS
        ahead = 0 if was_ahead and ahead == YEARS else ahead
        was_ahead = ahead == YEARS
        seen = look(seen, true_ms + ahead)
        assert seen.believed_ms <= true_ms
