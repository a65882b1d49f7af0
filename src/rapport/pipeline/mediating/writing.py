"""What raw history means, written to files: readings by stream, and what has no meaning with the
reasons. [ME-14, PI-4]
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rapport.core.errors import Conflict, InvalidInput
from rapport.lake.places import Lake
from rapport.pipeline.errors import spark_errors
from rapport.pipeline.lake.spark_tables import bronze_channels, read_bronze, spark_path
from rapport.pipeline.mediating.expressions import Mediated, mediated
from rapport.pipeline.mediating.meanings import Meanings
from rapport.pipeline.mediating.recorded import mediated_files
from rapport.site.raw_files import Naming

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READINGS, REJECTED = "readings", "rejected"
_RAW = "raw."


class MediatedHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What became of raw history."""

    into: str
    readings: dict[str, int]
    """How many of each stream."""
    rejected: dict[str, int]
    """How many events had no meaning, by source and reason."""
    by_columns: int
    """Readings of which Spark's own columns were certain; Python was asked about the others."""


def mediate_lake(
    spark: SparkSession,
    meanings: Meanings,
    lake: Path,
    into: Path,
    *,
    sources: Sequence[str] | None = None,
) -> MediatedHistory:
    """Mediates the raw events of a lake's bronze again, by what `meanings` say now.

    Raises Conflict when `into` holds something, InvalidInput when there are no raw events, and what
    `expressions.mediated` raises.
    """
    names = [f"{_RAW}{name}" for name in sources] if sources else [f"{_RAW}*"]
    if not bronze_channels(Lake.at(lake), names):
        raise InvalidInput(
            f"there are no raw events of {', '.join(sources or ('any source',))} in {lake}",
            code="mediate.no_raw_events",
            hint="rapport pipeline export fills the lake of a site",
        )
    with spark_errors("mediating the lake"):
        found = mediated(
            spark, read_bronze(spark, Lake.at(lake), *names), meanings, sources=sources
        )
        return _written(found, into)


def mediate_files(
    spark: SparkSession,
    meanings: Meanings,
    files: Mapping[Naming, Sequence[Path]],
    into: Path,
) -> MediatedHistory:
    """Mediates recorded raw files, by whose they are; raises what `recorded.mediated_files` raises,
    and Conflict when `into` holds something.
    """
    with spark_errors("mediating recorded files"):
        frames = [
            mediated_files(
                spark, meanings, naming.source, paths, id=naming.id, time=naming.time
            ).outcomes
            for naming, paths in files.items()
        ]
        whole = frames[0]
        for each in frames[1:]:
            whole = whole.unionByName(each)
        return _written(Mediated(whole, dict(meanings.ontology.streams())), into)


def _written(found: Mediated, into: Path) -> MediatedHistory:
    """Writes beside and renames: the folder is there whole, or not at all."""
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise Conflict(
            f"{into} holds something already",
            code="mediate.not_empty",
            hint="name a folder that is not there yet",
        )
    beside = into.with_name(f".{into.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    outcomes = found.outcomes.persist()
    kept = Mediated(outcomes, found.streams)
    try:
        told = _counted(outcomes, into)
        for stream in told.readings:
            _write(kept.stream(stream), beside / READINGS / f"stream={stream}")
        if told.rejected:
            _write(kept.rejected, beside / REJECTED)
    finally:
        outcomes.unpersist()
    beside.mkdir(parents=True, exist_ok=True)
    if into.exists():
        into.rmdir()
    beside.rename(into)
    return told


def _write(rows: DataFrame, folder: Path) -> None:
    rows.write.parquet(spark_path(str(folder.resolve()), pattern=False))


def _counted(outcomes: DataFrame, into: Path) -> MediatedHistory:
    groups = outcomes.groupBy("stream", "source", "reason", "native").count().collect()
    readings: dict[str, int] = {}
    rejected: dict[str, int] = {}
    by_columns = 0
    for row in groups:
        if row["reason"] is None:
            readings[row["stream"]] = readings.get(row["stream"], 0) + row["count"]
            by_columns += row["count"] if row["native"] else 0
        else:
            why = f"{row['source']}: {row['reason']}"
            rejected[why] = rejected.get(why, 0) + row["count"]
    return MediatedHistory(
        into=str(into),
        readings=dict(sorted(readings.items())),
        rejected=dict(sorted(rejected.items())),
        by_columns=by_columns,
    )
