"""Old days of the lake go; never what the next layer has not taken yet. [PI-3, PI-10]

A rule is a table and a number of days, such as `bronze/raw.*=30`. Days of bronze count from
receiving, days of silver and gold from event time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from rapport.channel.export.lake_export import read_manifest
from rapport.channel.export.parquet_files import BRONZE
from rapport.core.errors import InvalidInput
from rapport.kernel.clock import Clock, SystemClock
from rapport.pipeline.lake.believed_day import keep_seen, look, read_seen, why_not_believed
from rapport.pipeline.lake.journal import Step, Work, changing, no_step
from rapport.pipeline.lake.locks import moving
from rapport.pipeline.lake.manifest import (
    SilverManifest,
    manifest_path,
    read_silver_manifest,
)
from rapport.pipeline.lake.places import (
    DAY_MS,
    GOLD,
    SILVER,
    data_files,
    day_number,
    folder_day,
    leaf_folders,
    position_range,
)
from rapport.pipeline.lake.silver import CHANNELS as TAKEN_FROM


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """What went, or with `dry_run` would go."""

    folders: int = 0
    files: int = 0
    bytes: int = 0
    tables: dict[str, int] = {}
    """Files per table."""
    waiting: dict[str, str] = {}
    """Tables with days that are old enough but must stay, and why."""


def read_rules(texts: list[str]) -> dict[str, int]:
    """Rules as people write them.

    >>> read_rules(["bronze/raw.*=30", "silver=365"])
    {'bronze/raw.*': 30, 'silver': 365}
    """
    rules: dict[str, int] = {}
    for text in texts:
        table, _, days = text.rpartition("=")
        if not table or not days.isdecimal() or table.split("/")[0] not in (BRONZE, SILVER, GOLD):
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
    lake: Path,
    rules: Mapping[str, int],
    *,
    clock: Clock | None = None,
    dry_run: bool = False,
    at_step: Step = no_step,
) -> Expired:
    """Removes the days that are older than the rules say; tables without a rule keep everything.

    A day of bronze that silver is made of stays until silver has taken all of it, also what could
    not be read yet. While the clock is far ahead of what was known of it, nothing goes by the new
    time; see believed_day. Raises Conflict while another job works on the lake or somebody reads
    it.
    """
    with changing(lake, at_step) as work:
        return _Run(work, rules, (clock or SystemClock()).now_ms(), dry_run).run()


class _Run:
    """One sweep under way."""

    def __init__(self, work: Work, rules: Mapping[str, int], now_ms: int, dry_run: bool) -> None:
        self._work, self._lake, self._rules = work, work.lake, rules
        self._now_ms, self._dry_run = now_ms, dry_run
        self._silver = read_silver_manifest(self._lake)
        self._exported = read_manifest(self._lake)
        self._done = Expired()
        self._tables: dict[str, int] = {}
        self._waiting: dict[str, str] = {}

    def run(self) -> Expired:
        layers = (BRONZE, SILVER, GOLD)
        folders = [one for layer in layers for one in leaf_folders(self._lake / layer)]
        seen = look(read_seen(self._lake, _last_change_ms(folders)), self._now_ms)
        if not self._dry_run:
            keep_seen(self._lake, seen)
        for folder in folders:
            table = table_of(folder.relative_to(self._lake))
            if self._is_old(folder, table, seen.believed_ms):
                self._let_go(folder, table)
            elif seen.ahead_ms and self._is_old(folder, table, self._now_ms):
                self._waiting[table] = why_not_believed(seen)
        return msgspec.structs.replace(self._done, tables=self._tables, waiting=self._waiting)

    def _is_old(self, folder: Path, table: str, now_ms: int) -> bool:
        days = days_kept(table, self._rules)
        day = day_number(folder_day(folder.relative_to(self._lake)))
        return days is not None and day is not None and day < now_ms // DAY_MS - days

    def _let_go(self, folder: Path, table: str) -> None:
        why = self._why_stay(folder, table)
        if why:
            self._waiting[table] = why
            return
        files = [path for path in folder.iterdir() if path.is_file()]
        done = self._done
        self._done = msgspec.structs.replace(
            done,
            folders=done.folders + 1,
            files=done.files + len(files),
            bytes=done.bytes + sum(path.stat().st_size for path in files),
        )
        self._tables[table] = self._tables.get(table, 0) + len(files)
        if self._dry_run:
            return
        with moving(self._lake):
            self._work.remove(folder, [path.name for path in files])
            if table.startswith(f"{BRONZE}/") and _channel(table) in TAKEN_FROM:
                self._remember(folder_day(folder))
            self._work.commit()

    def _why_stay(self, folder: Path, table: str) -> str:
        """Why a folder of bronze may not go yet; empty when it may."""
        if not table.startswith(f"{BRONZE}/"):
            return ""
        channel = _channel(table)
        limit = self._exported.progress(channel).exported
        if channel in TAKEN_FROM:
            limit = min(limit, self._silver.taken(channel).position)
            unread = [self._lake / one.file for one in self._silver.unread]
            if any(path.parent == folder and path.exists() for path in unread):
                return "a file there could not be read yet"
        for path in data_files(folder):
            held = position_range(path)
            if held is None:
                return f"{path.name} is no file of the lake"
            if held[1] > limit:
                return "silver has not taken all of it; run rapport pipeline silver"
        return ""

    def _remember(self, day: str) -> None:
        """Silver can no longer be made anew."""
        silver: SilverManifest = self._silver
        silver.expired = max(silver.expired, day)
        prepared = self._work.path("manifest.json")
        prepared.write_bytes(msgspec.json.format(msgspec.json.encode(silver), indent=2))
        self._work.place(prepared, manifest_path(self._lake))


def table_of(folder: Path) -> str:
    """The table that a folder below the lake belongs to.

    >>> table_of(Path("bronze/channel=events/day=2026-03-02/type=x"))
    'bronze/events'
    >>> table_of(Path("silver/stream=a.b/day=2026-03-02")), table_of(Path("gold/detected/day=x"))
    ('silver/a.b', 'gold/detected')
    """
    if len(folder.parts) < 2:
        return str(folder)
    layer, name = folder.parts[:2]
    return f"{layer}/{re.sub('^(channel|stream|grid)=', '', name)}"


def _last_change_ms(folders: list[Path]) -> int:
    return max((int(folder.stat().st_mtime * 1_000) for folder in folders), default=0)


def _channel(table: str) -> str:
    return table.partition("/")[2]


def _fits(table: str, rule: str) -> bool:
    if rule.endswith("*"):
        return table.startswith(rule[:-1])
    return table == rule or table.startswith(f"{rule}/")
