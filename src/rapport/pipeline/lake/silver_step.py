"""One step of silver: a stretch of bronze becomes rows, whole or not at all. [PI-3, PI-10]

Prepared by tasks, freed of repetitions, marked with what is known about each reading, and put in
place together with the manifest that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from rapport.core.errors import Corrupt, Problem
from rapport.core.times import format_time
from rapport.pipeline.lake.bronze_files import FileFault, bronze_rows
from rapport.pipeline.lake.journal import Work
from rapport.pipeline.lake.manifest import SilverManifest, Unread, manifest_path
from rapport.pipeline.lake.places import (
    DAY_MS,
    DETECTED,
    QUARANTINED,
    SIDECAR,
    SILVER,
    data_files,
    day_folder,
    day_number,
    day_numbers,
    folder_day,
    free_name,
    stream_folders,
    table_folder,
)
from rapport.pipeline.lake.sidecars import (
    read_notes,
    write_notes,
)
from rapport.pipeline.lake.silver_duplicates import drop_repeated, read_columns
from rapport.pipeline.lake.silver_findings import (
    Findings,
    Verdict,
    read_detections,
    read_quarantine,
)
from rapport.pipeline.lake.silver_ids import IdIndex, correction_keys, reading_keys, save
from rapport.pipeline.lake.silver_marks import Group, Marked, find_marks, with_marks
from rapport.pipeline.lake.silver_notes import find_conflicts, table_notes
from rapport.pipeline.lake.silver_parts import (
    Part,
    PartDone,
    PartTask,
    Spoiled,
    run_part,
    write_file,
    write_part,
)
from rapport.pipeline.lake.silver_portions import Portions
from rapport.pipeline.lake.silver_rows import (
    CORRECTED,
    LATE,
)
from rapport.pipeline.lake.silver_tasks import Lot, lots_again, lots_of, make_tasks
from rapport.pipeline.lake.spread import spread
from rapport.policy.ontology import Ontology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS, DETECTIONS, QUARANTINE = "events", "detections", "quarantine"
TAKEN_FROM = (EVENTS, DETECTIONS, QUARANTINE)
WAITING = "_waiting.json"

_SLACK_MS = 3_600_000
"""A clock that was set back by less does not make a verdict miss its reading."""


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """Positions after one up to another of each channel; or files that could not be read before."""

    ranges: dict[str, tuple[int, int]]
    again: list[Unread] = []


class StepDone(msgspec.Struct, kw_only=True):
    """What one step did."""

    readings: int = 0
    quarantined: int = 0
    detections: int = 0
    duplicates: int = 0
    late: int = 0
    corrected: int = 0
    set_aside: int = 0
    rewritten: int = 0
    files: int = 0


class SilverStep:
    """One step under way; made anew for each."""

    def __init__(
        self,
        work: Work,
        manifest: SilverManifest,
        index: IdIndex,
        ontology: Ontology,
        spark: SparkSession | None,
        now_ms: int,
    ) -> None:
        self._work, self._lake, self._manifest, self._index = work, work.lake, manifest, index
        self._ontology, self._spark = ontology, spark
        self._day = format_time(now_ms)[:10]
        self._conflicts = find_conflicts(self._lake, ontology)
        self._groups: set[Group] = set()
        self._verdicts = read_waiting(self._lake)
        self.done = StepDone()

    def take(self, stretch: Stretch) -> StepDone:
        """Takes the stretch; when this returns it is in silver for good."""
        parts = self._readings(stretch)
        parts += self._findings(stretch, DETECTIONS, DETECTED, read_detections)
        parts += self._findings(stretch, QUARANTINE, QUARANTINED, read_quarantine)
        parts, self.done.duplicates = drop_repeated(parts, self._index, self._lake)
        if stretch.again:
            self._groups |= self._corrected_before(parts)
        parts = self._mark(parts)
        self._count(parts)
        name, replaced = self._add_keys(parts)
        self._place(parts)
        self._work_out_waiting()
        self._write_manifest()
        self._work.commit()
        if name:
            self._index.changed(name, replaced)
        return self.done

    def _readings(self, stretch: Stretch) -> list[Part]:
        tasks = make_tasks(self._lots(stretch, EVENTS), lambda: self._work.path("parts"))
        work = partial(_run_part, ontology=self._ontology, conflicts=self._conflicts)
        results: list[PartDone] = spread(self._spark, work, tasks, doing="making silver")
        for task, done in zip(tasks, results, strict=True):
            self._note(EVENTS, done.positions, done.received)
            self._groups |= {(one.source, one.original) for one in done.corrections}
            for bad in done.spoiled:
                self._leave(EVENTS, Path(bad.file), task.after, task.upto, bad)
        if EVENTS in stretch.ranges:
            self._manifest.taken(EVENTS).position = stretch.ranges[EVENTS][1]
        return [part for done in results for part in done.parts]

    def _findings(
        self,
        stretch: Stretch,
        channel: str,
        table: str,
        read: Callable[[pa.RecordBatch], Findings],
    ) -> list[Part]:
        """What a channel of the node tells; there is mostly little of it, so it is read here."""
        portions = Portions(table, read, lambda: self._work.path("parts"))
        for lot in self._lots(stretch, channel):
            for path in lot.files:
                try:
                    told = portions.take(bronze_rows(path, lot.after, lot.upto))
                except FileFault as fault:
                    self._leave(channel, path, lot.after, lot.upto, fault)
                    continue
                self._note(channel, told.rows, told.received)
                self._verdicts += told.verdicts
        if channel in stretch.ranges:
            self._manifest.taken(channel).position = stretch.ranges[channel][1]
        return portions.finish()

    def _lots(self, stretch: Stretch, channel: str) -> list[Lot]:
        again = list(lots_again(self._lake, channel, stretch.again))
        if channel not in stretch.ranges:
            return again
        return [*again, *lots_of(self._lake, channel, *stretch.ranges[channel])]

    def _note(self, channel: str, rows: int, received: int) -> None:
        taken = self._manifest.taken(channel)
        taken.rows += rows
        taken.received = max(taken.received, received)

    def _leave(
        self, channel: str, path: Path, after: int, upto: int, why: Spoiled | FileFault
    ) -> None:
        """A file that could not be read is tried again when it has changed."""
        size, changed = file_mark(path)
        self._manifest.unread.append(
            Unread(
                channel=channel,
                file=str(path.relative_to(self._lake)),
                after=after,
                upto=upto,
                size=size,
                changed_ns=changed,
                code=why.code,
                message=why.message,
                hint=why.hint,
            )
        )

    def _corrected_before(self, parts: Sequence[Part]) -> set[Group]:
        """Readings found only now that others stand in for already."""
        groups: set[Group] = set()
        for part in parts:
            if part.table in (QUARANTINED, DETECTED):
                continue
            rows = read_columns(Path(part.path), ["event_source", "id"])
            known, _days = self._index.days_of(correction_keys(rows["event_source"], rows["id"]))
            for row in np.unique(known).tolist():
                groups.add((rows["event_source"][row].as_py(), rows["id"][row].as_py()))
        return groups

    def _mark(self, parts: list[Part]) -> list[Part]:
        """Says of each reading what became of it, also of those that silver had before."""
        if not self._verdicts and not self._groups:
            return parts
        own = {Path(part.path): part for part in parts if part.table not in (QUARANTINED, DETECTED)}
        files = [*self._files_concerned(), *own]
        marked = find_marks(files, self._verdicts, self._groups)
        self._verdicts = [one for one in self._verdicts if one not in marked.met]
        for path in marked.files() - own.keys():
            self._rewrite(path, marked)
        changed = {
            str(path): write_part(part, with_marks(path, marked))
            for path, part in own.items()
            if path in marked.files()
        }
        self.done.late, self.done.corrected = marked.count(LATE), marked.count(CORRECTED)
        self.done.set_aside = sum(map(len, marked.gone.values()))
        kept = [changed.get(part.path, part) for part in parts]
        return [part for part in kept if part.rows]

    def _files_concerned(self) -> list[Path]:
        """Files of silver that may hold a reading that a verdict or a correction is about: by its
        day where time and id are all that is told of it, else only where its keys are.
        """
        late = np.array([one.time for one in self._verdicts if one.kind == "late"], np.int64)
        days = set(day_numbers(late).tolist())
        aside = {(one.source, one.id) for one in self._verdicts if one.kind == "aside"}
        if self._groups or aside:
            named = zip(*sorted(self._groups | aside), strict=True)
            sources, ids = (pa.array(column, pa.string()) for column in named)
            keys = np.concatenate((reading_keys(sources, ids), correction_keys(sources, ids)))
            days |= set(self._index.days_of(keys)[1].tolist())
        folders = stream_folders(self._lake)
        return [
            path
            for folder in folders
            for day in sorted(days)
            for path in data_files(day_folder(folder, day))
        ]

    def _rewrite(self, path: Path, marked: Marked) -> None:
        table = with_marks(path, marked)
        self.done.rewritten += 1
        if not table.num_rows:
            self._work.remove(path.parent, [path.name])
            return
        prepared = self._work.path(path.name)
        write_file(table, prepared)
        self._work.place(prepared, path)

    def _count(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if part.table == QUARANTINED:
                self.done.quarantined += part.rows
            elif part.table == DETECTED:
                self.done.detections += part.rows
            else:
                self.done.readings += part.rows
        self.done.files = len(parts)

    def _add_keys(self, parts: Sequence[Part]) -> tuple[str, list[str]]:
        keys, days = [], []
        for part in parts:
            own = [np.load(part.keys_path)]
            if part.corrections:
                rows = read_columns(Path(part.path), ["event_source", "corrects"]).drop_null()
                own.append(correction_keys(rows["event_source"], rows["corrects"]))
            keys += own
            days.append(np.full(sum(map(len, own)), part.day, np.int32))
        if not keys:
            return "", []
        sorted_keys, sorted_days, replaced = self._index.merged(
            np.concatenate(keys), np.concatenate(days)
        )
        name = self._index.next_name()
        for kind, values in (("keys", sorted_keys), ("days", sorted_days)):
            prepared = self._work.path(f"{name}.{kind}")
            save(prepared, values)
            self._work.place(prepared, self._index.path(name, kind))
        if replaced:
            files = [f"{old}.{kind}" for old in replaced for kind in ("keys", "days")]
            self._work.remove(self._index.path(name, "keys").parent, files)
        return name, replaced

    def _place(self, parts: Sequence[Part]) -> None:
        taken: dict[Path, set[str]] = {}
        for part in parts:
            folder = day_folder(table_folder(self._lake, part.table), part.day)
            names = taken.setdefault(folder, {path.name for path in data_files(folder)})
            # What was held back comes from two channels, which count their positions alike.
            name = free_name(part.first, part.last, names)
            names.add(name)
            self._work.place(Path(part.path), folder / name)
        for table in sorted({part.table for part in parts}):
            self._note_table(table)

    def _note_table(self, table: str) -> None:
        folder = table_folder(self._lake, table)
        before = read_notes(folder, table)
        after = table_notes(before, table, self._ontology, self._day)
        if after != before:
            prepared = self._work.path(SIDECAR)
            write_notes(prepared, after)
            self._work.place(prepared, folder / SIDECAR)

    def _work_out_waiting(self) -> None:
        """Verdicts whose reading has not come yet wait; not when newer ones have come, unless it
        may stand in a file that could not be read.
        """
        taken, days = self._manifest.taken(EVENTS).received, self._unread_days()
        waiting = [
            one
            for one in self._verdicts
            if one.received + _SLACK_MS >= taken or one.received // DAY_MS in days
        ]
        if waiting == read_waiting(self._lake):
            return
        prepared = self._work.path(WAITING)
        prepared.write_bytes(msgspec.json.encode(waiting))
        self._work.place(prepared, self._lake / SILVER / WAITING)

    def _unread_days(self) -> set[int]:
        """Days on which the node may have judged readings that could not be read: that of their
        receiving, and the next.
        """
        unread = [Path(one.file) for one in self._manifest.unread if one.channel == EVENTS]
        numbers = [day_number(folder_day(file.parent)) for file in unread]
        return {day + more for day in numbers if day is not None for more in (0, 1)}

    def _write_manifest(self) -> None:
        prepared = self._work.path(manifest_path(self._lake).name)
        prepared.write_bytes(msgspec.json.format(msgspec.json.encode(self._manifest), indent=2))
        self._work.place(prepared, manifest_path(self._lake))


def file_mark(path: Path) -> tuple[int, int]:
    """Size and time of change, by which a file is known to have been mended."""
    try:
        told = path.stat()
    except OSError:
        return -1, 0
    return told.st_size, told.st_mtime_ns


def read_waiting(lake: Path) -> list[Verdict]:
    """Verdicts that wait for their readings."""
    path = lake / SILVER / WAITING
    if not path.exists():
        return []
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Verdict])
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"{path} cannot be read: {error}",
            code="lake.bad_manifest",
            hint="make silver again: rapport pipeline silver --rebuild",
        ) from None


def _run_part(task: PartTask, *, ontology: Ontology, conflicts: Mapping[str, Problem]) -> PartDone:
    return run_part(task, ontology, conflicts)
