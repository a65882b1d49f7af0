"""Care of the lake: small files joined, old days gone, files that nobody names deleted.
[PI-3, PI-10, LK-9]

Everything is a commit, so readers and other writers go on meanwhile. Days of bronze count from
receiving, days of silver and gold from event time; a rule is a table and a number of days, such as
`bronze/raw.*=30`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec

from rapport.core.errors import Conflict, InvalidInput, RapportError
from rapport.core.times import format_time
from rapport.kernel.clock import Clock, SystemClock
from rapport.kernel.files import write_atomically
from rapport.kernel.telemetry import get_logger
from rapport.lake.catalogue import lake_tables
from rapport.lake.places import BRONZE, LAYERS, Lake
from rapport.lake.table import KEPT_HOURS, TARGET_BYTES, Table, TableFile

FEWEST = 4
"""Fewer small files of one day are not worth a rewrite."""
MOST_AWAY_MS = 48 * 3_600_000
"""So far ahead of the last time that was believed is what a service that was off looks like."""
CONFIRM_MS = 30 * 60_000
"""How long a time further ahead must have stood, at least two looks at it apart."""
SILVER_TAKES = ("events", "detections", "quarantine")
"""Channels that silver is made of."""
_NOTE = ".clock.json"
_log = get_logger(__name__)


class CompactionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a compaction did, or with `dry_run` would do."""

    tables: int = 0
    files_before: int = 0
    files_after: int = 0
    deleted: int = 0
    """Files that no version of the last days names."""
    waiting: dict[str, str] = {}
    """Tables that could not be compacted now, and why."""


class ExpiryResult(msgspec.Struct, frozen=True, kw_only=True):
    """What went, or with `dry_run` would go."""

    files: int = 0
    rows: int = 0
    tables: dict[str, int] = {}
    """Files per table."""
    waiting: dict[str, str] = {}
    """Tables with days that are old enough but must stay, and why."""


def compact(
    lake: Lake | Path | str,
    *,
    fewest: int = FEWEST,
    kept_hours: int = KEPT_HOURS,
    dry_run: bool = False,
) -> CompactionResult:
    """Joins the small files of every day that has at least `fewest` of them, and deletes files that
    no version of the last `kept_hours` names.
    """
    joined = join_files(lake, fewest=fewest, dry_run=dry_run)
    cleaned = vacuum(lake, kept_hours=kept_hours, dry_run=dry_run)
    return msgspec.structs.replace(
        joined, deleted=cleaned.deleted, waiting=joined.waiting | cleaned.waiting
    )


def join_files(
    lake: Lake | Path | str, *, fewest: int = FEWEST, dry_run: bool = False
) -> CompactionResult:
    """Joins the small files of every day that has at least `fewest` of them; deletes none."""
    lake = Lake.at(lake)
    tables = before = after = 0
    waiting: dict[str, str] = {}
    for one in lake_tables(lake):
        table = lake.open(one.layer, one.table)
        had = len(table.files())
        try:
            due = _days_with_small_files(table, fewest)
            for day in due if not dry_run else ():
                table.compact(**({"day": day} if day else {}))
            tables += bool(due)
        except RapportError as error:
            waiting[one.name] = error.message
        before, after = before + had, after + len(table.files())
    return CompactionResult(tables=tables, files_before=before, files_after=after, waiting=waiting)


def vacuum(
    lake: Lake | Path | str, *, kept_hours: int = KEPT_HOURS, dry_run: bool = False
) -> CompactionResult:
    """Deletes files that no version of the last `kept_hours` names."""
    lake, deleted = Lake.at(lake), 0
    waiting: dict[str, str] = {}
    for one in lake_tables(lake):
        try:
            deleted += len(lake.open(one.layer, one.table).vacuum(kept_hours, dry_run=dry_run))
        except RapportError as error:
            waiting[one.name] = error.message
    return CompactionResult(deleted=deleted, waiting=waiting)


def _days_with_small_files(table: Table, fewest: int) -> list[str]:
    """The days worth a rewrite; an empty text stands for a table without days."""
    small: dict[str, int] = {}
    for file in table.files():
        if file.size < TARGET_BYTES // 2:
            day = file.partition.get("day")
            name = day.isoformat() if isinstance(day, date) else ""
            small[name] = small.get(name, 0) + 1
    return sorted(day for day, count in small.items() if count >= max(fewest, 2))


# --- retention ------------------------------------------------------------------------------------


def read_rules(texts: list[str]) -> dict[str, int]:
    """Rules as people write them.

    >>> read_rules(["bronze/raw.*=30", "silver=365"])
    {'bronze/raw.*': 30, 'silver': 365}
    """
    rules: dict[str, int] = {}
    for text in texts:
        table, _, days = text.rpartition("=")
        if not table or not days.isdecimal() or table.split("/")[0] not in LAYERS:
            raise InvalidInput(
                f"{text!r} is not a rule of retention",
                code="lake.bad_rule",
                hint="write a layer or table and days, such as bronze/raw.*=30 or silver=365",
            )
        rules[table] = int(days)
    return rules


def days_kept(table: str, rules: Mapping[str, int]) -> int | None:
    """The days that the narrowest rule for a table says, its own before one for several; None when
    none does.

    >>> rules = {"bronze": 90, "bronze/raw.*": 30}
    >>> [days_kept(table, rules) for table in ("bronze/raw.a", "bronze/events", "gold/x")]
    [30, 90, None]
    """
    fitting = [rule for rule in rules if _fits(table, rule)]
    return rules[max(fitting, key=lambda rule: (rule == table, len(rule)))] if fitting else None


def expire(
    lake: Lake | Path | str,
    rules: Mapping[str, int],
    *,
    taken: Mapping[str, int],
    clock: Clock | None = None,
    dry_run: bool = False,
) -> ExpiryResult:
    """Takes the days out of tables that are older than the rules say; tables without a rule keep
    everything. Files are deleted by the next `compact` after some days.

    `taken`: the positions up to which silver has the channels it is made of; a day of bronze stays
    until silver has all of it. While the clock is far ahead of what was known of it, nothing goes
    by the new time; see `look`.
    """
    lake, now_ms = Lake.at(lake), (clock or SystemClock()).now_ms()
    seen = look(_read_seen(lake, now_ms), now_ms)
    if not dry_run:
        _keep_seen(lake, seen)
    files = rows = 0
    tables: dict[str, int] = {}
    waiting: dict[str, str] = {}
    for one in lake_tables(lake):
        days = days_kept(one.name, rules)
        if days is None:
            continue
        table = lake.open(one.layer, one.table)
        old = _older(table, seen.believed_ms, days)
        if not old and seen.ahead_ms and _older(table, now_ms, days):
            waiting[one.name] = why_not_believed(seen)
        if one.layer == BRONZE and one.table in SILVER_TAKES:
            kept = [
                file for file in old if file.high.get("position", 2**62) > taken.get(one.table, 0)
            ]
            if kept:
                waiting[one.name] = "silver has not taken all of it; run rapport pipeline silver"
                held = {file.partition["day"] for file in kept}
                old = [file for file in old if file.partition["day"] not in held]
        if not old:
            continue
        if not dry_run:
            try:
                table.commit([], removed=old)
            except Conflict as error:
                waiting[one.name] = error.message
                continue
        tables[one.name] = len(old)
        files, rows = files + len(old), rows + sum(file.rows for file in old)
    return ExpiryResult(files=files, rows=rows, tables=tables, waiting=waiting)


def _older(table: Table, now_ms: int, days: int) -> list[TableFile]:
    last = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=now_ms)).date()
    first_kept = last - timedelta(days=days)
    return [
        file
        for file in table.files()
        if isinstance(day := file.partition.get("day"), date) and day < first_kept
    ]


def _fits(table: str, rule: str) -> bool:
    if rule.endswith("*"):
        return table.startswith(rule[:-1])
    return table == rule or table.startswith(f"{rule}/")


# --- the clock that retention believes ------------------------------------------------------------


class ClockSeen(msgspec.Struct, frozen=True):
    """What is known of the clock. Jobs begin and end, so it is kept in the lake."""

    believed_ms: int
    ahead_ms: int = 0
    """The first sight of a time that is not believed yet; 0 when there is none."""


def look(seen: ClockSeen, now_ms: int) -> ClockSeen:
    """What to believe after a look at the clock: one that jumps ahead is believed once it has
    stood. Time that goes back is believed at once: nothing is lost by keeping more. Pure.

    >>> hour = 3_600_000
    >>> ahead = look(ClockSeen(10 * hour), 9_000 * hour)
    >>> ahead.believed_ms // hour, look(ahead, 9_001 * hour).believed_ms // hour
    (10, 9001)
    """
    if now_ms <= seen.believed_ms + MOST_AWAY_MS:
        return ClockSeen(now_ms)
    stood_ms = now_ms - seen.ahead_ms
    if not seen.ahead_ms or not 0 <= stood_ms <= MOST_AWAY_MS:
        return ClockSeen(seen.believed_ms, now_ms)  # a first jump, or another: counts from here
    return ClockSeen(now_ms) if stood_ms >= CONFIRM_MS else seen


def why_not_believed(seen: ClockSeen) -> str:
    """Why days stay; empty when the clock is believed."""
    if not seen.ahead_ms:
        return ""
    return (
        f"the clock says {format_time(seen.ahead_ms)}, and the last time known is "
        f"{format_time(seen.believed_ms)}; if that is right, run it again in half an hour"
    )


def _read_seen(lake: Lake, now_ms: int) -> ClockSeen:
    """What the lake's note says; without one, when the lake last changed."""
    if lake.path is None:
        return ClockSeen(now_ms)  # an object store has a clock of its own
    try:
        return msgspec.json.decode((lake.path / _NOTE).read_bytes(), type=ClockSeen)
    except (OSError, msgspec.DecodeError):
        changed = [
            int(folder.stat().st_mtime * 1_000)
            for layer in LAYERS
            for folder in (lake.path / layer).glob("*/_delta_log")
        ]
        return ClockSeen(max(changed, default=now_ms))


def _keep_seen(lake: Lake, seen: ClockSeen) -> None:
    if lake.path is not None and lake.path.is_dir():
        write_atomically(lake.path / _NOTE, msgspec.json.encode(seen))
