"""Silver: mediated readings, typed, each once, with what became of them; and gold's detections.
[PI-3, PI-10]

`update_silver` takes what bronze has beyond the last run, in steps of bounded size. Each step is
announced, carried out and confirmed (`journal.py`); a kill between any two loses and doubles
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rapport.channel.export.lake_export import Manifest, read_manifest
from rapport.core.errors import Conflict, Problem
from rapport.kernel.clock import Clock, SystemClock
from rapport.pipeline.lake.bronze_files import (
    FileFault,
    bronze_files,
    foreign_file,
    rows_up_to,
    strange_files,
)
from rapport.pipeline.lake.journal import Step, Work, changing, no_step
from rapport.pipeline.lake.locks import moving
from rapport.pipeline.lake.manifest import SilverManifest, Taken, Unread, read_silver_manifest
from rapport.pipeline.lake.places import DETECTED, GOLD, SILVER
from rapport.pipeline.lake.silver_ids import IdIndex
from rapport.pipeline.lake.silver_step import (
    TAKEN_FROM,
    SilverStep,
    StepDone,
    Stretch,
    file_mark,
)
from rapport.policy.ontology import Ontology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_PER_STEP = 1_000_000
"""Positions of a channel per step: about 100 MB of the driver's memory, and at most so much to do
again after a kill."""


class SilverDone(msgspec.Struct, frozen=True, kw_only=True):
    """What one run did; `problems` name what could not be taken, and wait for somebody."""

    readings: int = 0
    quarantined: int = 0
    detections: int = 0
    duplicates: int = 0
    late: int = 0
    corrected: int = 0
    set_aside: int = 0
    files: int = 0
    steps: int = 0
    missing: int = 0
    """Events that the export wrote and no file has any more."""
    positions: dict[str, int] = {}
    problems: tuple[Problem, ...] = ()


class SilverDue(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would take."""

    positions: dict[str, int]
    """Positions per channel that silver has not taken."""
    files: int
    again: tuple[str, ...] = ()
    """Files that could not be read and have changed since."""


Progress = Callable[[int, int], None]
"""Positions taken, and how many there are to take."""


def update_silver(
    spark: SparkSession | None,
    lake: Path,
    ontology: Ontology,
    *,
    clock: Clock | None = None,
    rows_per_step: int = ROWS_PER_STEP,
    rebuild: bool = False,
    progress: Progress | None = None,
    at_step: Step = no_step,
) -> SilverDone:
    """Takes what bronze has beyond the last run into silver and `gold/detected`, exactly once.

    Without Spark the work is done in this process: the same result, for a small lake the quicker
    way. `rebuild` makes silver anew from bronze, refused when bronze no longer has everything. A
    file that cannot be read is named in `problems` and tried again when it has changed. Raises
    Conflict while another job works on the lake, or before `rebuild` while somebody reads it or
    exports into it; Corrupt for a damaged manifest or index, or when a damaged file of silver
    would cost exactness.
    """
    with changing(lake, at_step) as work:
        if rebuild:
            _clear(work)
        run = _Run(work, spark, ontology, clock or SystemClock(), rows_per_step, progress)
        return run.run()


def silver_due(lake: Path) -> SilverDue:
    """What `update_silver` would take now; changes nothing."""
    manifest, exported = read_silver_manifest(lake), read_manifest(lake)
    ranges = _ranges(manifest, exported)
    files = [path for name, span in ranges.items() for path in bronze_files(lake, name, *span)]
    return SilverDue(
        positions={name: upto - after for name, (after, upto) in ranges.items()},
        files=len(files),
        again=tuple(one.file for one in manifest.unread if _has_changed(lake, one)),
    )


class _Run:
    """One run under way."""

    def __init__(
        self,
        work: Work,
        spark: SparkSession | None,
        ontology: Ontology,
        clock: Clock,
        rows_per_step: int,
        progress: Progress | None,
    ) -> None:
        self._work, self._lake, self._spark = work, work.lake, spark
        self._ontology, self._clock, self._rows = ontology, clock, rows_per_step
        self._progress = progress or (lambda _taken, _all: None)
        self._manifest = read_silver_manifest(self._lake)
        self._exported = read_manifest(self._lake)
        self._index = IdIndex(self._lake)
        self._total = StepDone()
        self._steps = 0

    def run(self) -> SilverDone:
        ranges = _ranges(self._manifest, self._exported)
        everything = sum(upto - after for after, upto in ranges.values())
        again = [one for one in self._manifest.unread if _has_changed(self._lake, one)]
        if again:
            self._manifest.unread = [one for one in self._manifest.unread if one not in again]
            self._take(Stretch(ranges={}, again=again))
        taken = 0
        while ranges := _ranges(self._manifest, self._exported):
            part = {
                name: (after, min(upto, after + self._rows))
                for name, (after, upto) in ranges.items()
            }
            self._take(Stretch(ranges=part))
            taken += sum(upto - after for after, upto in part.values())
            self._progress(taken, everything)
        return self._result()

    def _take(self, stretch: Stretch) -> None:
        step = SilverStep(
            self._work,
            self._manifest,
            self._index,
            self._ontology,
            self._spark,
            self._clock.now_ms(),
        )
        done = step.take(stretch)
        self._steps += 1
        for name in StepDone.__struct_fields__:
            setattr(self._total, name, getattr(self._total, name) + getattr(done, name))

    def _result(self) -> SilverDone:
        strange = [path for name in TAKEN_FROM for path in strange_files(self._lake, name)]
        faults = [foreign_file(path, "its name tells no positions") for path in strange]
        problems = [one.as_problem() for one in self._manifest.unread]
        problems += [
            Problem(severity="warning", code=fault.code, message=fault.message, hint=fault.hint)
            for fault in faults
        ]
        missing = self._missing()
        if missing:
            problems.append(_missing_problem(missing))
        total = msgspec.structs.asdict(self._total)
        del total["rewritten"]
        return SilverDone(
            **total,
            steps=self._steps,
            missing=missing,
            positions={name: one.position for name, one in self._manifest.channels.items()},
            problems=tuple(problems),
        )

    def _missing(self) -> int:
        """Events that were exported and not found; 0 where the export did not count them."""
        missing = 0
        for name in TAKEN_FROM:
            written = self._exported.progress(name).rows
            if written is not None:
                missing += max(0, written - self._manifest.taken(name).rows)
        return missing


def _missing_problem(missing: int) -> Problem:
    return Problem(
        severity="warning",
        code="lake.missing_rows",
        message=f"{missing} events that were exported are in no file that can be read",
        hint="put the missing files back, then: rapport pipeline silver --rebuild",
    )


def _ranges(manifest: SilverManifest, exported: Manifest) -> dict[str, tuple[int, int]]:
    """What is to be taken of each channel; channels without anything new are left out."""
    found = {}
    for name in TAKEN_FROM:
        after, upto = manifest.taken(name).position, exported.progress(name).exported
        if upto > after:
            found[name] = (after, upto)
    return found


def _has_changed(lake: Path, unread: Unread) -> bool:
    mark = file_mark(lake / unread.file)
    return mark[0] >= 0 and mark != (unread.size, unread.changed_ns)


def _clear(work: Work) -> None:
    """Takes silver and its detections away, to be made anew; refused when bronze has lost days."""
    lake = work.lake
    manifest = read_silver_manifest(lake)
    if manifest.expired:
        raise _cannot_rebuild(
            f"days before {manifest.expired} have expired; silver is all there is of them"
        )
    for name in TAKEN_FROM:
        _refuse_less(lake, name, manifest.taken(name))
    for folder in (lake / SILVER, lake / GOLD / DETECTED):
        kept = [path for path in folder.rglob("*") if path.is_file()] if folder.exists() else []
        for parent in sorted({path.parent for path in kept}, reverse=True):  # deepest first
            work.remove(parent, [path.name for path in kept if path.parent == parent])
    with moving(lake):
        work.commit()


def _refuse_less(lake: Path, channel: str, taken: Taken) -> None:
    """Refuses when files that silver was made of are gone or damaged: nothing else has their
    events.
    """
    found, faults = 0, list[FileFault]()
    for path in bronze_files(lake, channel, 0, taken.position):
        try:
            found += rows_up_to(path, taken.position)
        except FileFault as fault:
            faults.append(fault)
    if found >= taken.rows:
        return
    why = faults[0].message if faults else f"files of {channel!r} are missing"
    raise _cannot_rebuild(
        f"{why}; put it back, or move the folder silver aside to go without these events"
    )


def _cannot_rebuild(hint: str) -> Conflict:
    return Conflict(
        "bronze no longer has everything that silver was made of",
        code="lake.cannot_rebuild",
        hint=hint,
    )
