"""Many small files become few large ones; readers see the old files or the new ones. [PI-3, PI-10]

A partition's folder is prepared anew aside, with the large files and links to those that stay, and
exchanged with the present one in a single step. Nothing else changes: same rows, same columns, the
order of positions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rapport.channel.export.lake_export import read_manifest
from rapport.channel.export.parquet_files import BRONZE, ROW_GROUP, make_directory, partition_name
from rapport.core.errors import Problem
from rapport.pipeline.lake.bronze_files import FileFault, bad_file
from rapport.pipeline.lake.journal import Step, Work, changing, no_step
from rapport.pipeline.lake.locks import moving
from rapport.pipeline.lake.manifest import read_silver_manifest
from rapport.pipeline.lake.places import (
    GOLD,
    SILVER,
    data_files,
    free_name,
    leaf_folders,
    position_range,
)

LARGE_BYTES = 64 * 1024 * 1024
"""A file of this size is left as it is, and a merged one is closed: large enough to be read at
full speed, small enough to be one task's work."""
FEWEST = 4
"""Fewer small files in a folder are not worth a rewrite."""


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """What a compaction did, or with `dry_run` would do."""

    folders: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    repeated: int = 0
    """Rows that stood twice at one position and now stand once."""
    problems: tuple[Problem, ...] = ()


class _Merged(msgspec.Struct, frozen=True):
    files: int
    bytes: int
    repeated: int


Progress = Callable[[int, int], None]


def compact(
    lake: Path,
    *,
    fewest: int = FEWEST,
    large_bytes: int = LARGE_BYTES,
    dry_run: bool = False,
    progress: Progress | None = None,
    at_step: Step = no_step,
) -> Compacted:
    """Merges the small files of every folder of bronze, silver and `gold` that has at least
    `fewest` of them; a folder at a time, each safe against a kill.

    Files that cannot be read stay as they are and are named. Exports go on except for the moment
    of an exchange. Raises Conflict while another job works on the lake, or somebody reads it under
    `locks.reading`.
    """
    with changing(lake, at_step) as work:
        run = _Run(work, fewest, large_bytes, dry_run)
        folders = [
            folder for layer in (BRONZE, SILVER, GOLD) for folder in leaf_folders(lake / layer)
        ]
        for number, folder in enumerate(folders, 1):
            run.look(folder)
            if progress is not None:
                progress(number, len(folders))
        return run.result()


class _Run:
    """One compaction under way."""

    def __init__(self, work: Work, fewest: int, large_bytes: int, dry_run: bool) -> None:
        self._work, self._fewest, self._large = work, max(fewest, 2), large_bytes
        self._dry_run = dry_run
        self._done = Compacted()
        self._problems: list[Problem] = []
        channels = read_manifest(work.lake).channels.items()
        self._exported = {partition_name("channel", name): one.exported for name, one in channels}
        unread = read_silver_manifest(work.lake).unread
        self._awaited = {work.lake / one.file for one in unread}
        """Files that silver will look for under their names."""

    def look(self, folder: Path) -> None:
        """Compacts the folder if it is worth it."""
        if any(path.is_dir() for path in folder.iterdir()):
            return  # no partition: result tables of gold, or strange files, lie beside folders
        small = [path for path in data_files(folder) if self._may_go(path)]
        sound = [path for path in small if self._is_sound(path)]
        if len(sound) < self._fewest:
            return
        before = sum(path.stat().st_size for path in sound)
        merged = _Merged(1, before, 0) if self._dry_run else self._merge(folder, sound)
        done = self._done
        self._done = msgspec.structs.replace(
            done,
            folders=done.folders + 1,
            files_before=done.files_before + len(sound),
            files_after=done.files_after + merged.files,
            bytes_before=done.bytes_before + before,
            bytes_after=done.bytes_after + merged.bytes,
            repeated=done.repeated + merged.repeated,
        )

    def result(self) -> Compacted:
        """What was done."""
        return msgspec.structs.replace(self._done, problems=tuple(self._problems))

    def _may_go(self, path: Path) -> bool:
        """Whether a file is small, ours, of no export that is still to be confirmed, and not one
        that silver could not read: mended, it is taken by its name.
        """
        held = position_range(path)
        if held is None or path.stat().st_size >= self._large or path in self._awaited:
            return False
        channel = next((part for part in path.parts if part.startswith("channel=")), None)
        return channel is None or held[1] <= self._exported.get(channel, 0)

    def _is_sound(self, path: Path) -> bool:
        try:
            pq.read_metadata(path)
        except (pa.ArrowInvalid, OSError, EOFError) as error:
            self._tell(bad_file(path, error))
            return False
        return True

    def _tell(self, fault: FileFault) -> None:
        self._problems.append(
            Problem(
                file=str(fault.path.relative_to(self._work.lake)),
                severity="warning",
                code=fault.code,
                message=fault.message,
                hint=fault.hint,
            )
        )

    def _merge(self, folder: Path, files: Sequence[Path]) -> _Merged:
        prepared = self._work.path(folder.name)
        make_directory(prepared)
        repeated, going = 0, {path.name for path in files}
        stay = {path.name for path in folder.iterdir()} - going
        try:
            for lot in _lots(files, self._large):
                repeated += merge_files(lot, prepared, stay)
        except FileFault as fault:
            # Damage that only reading shows: the folder stays as it is.
            self._tell(fault)
            return _Merged(len(files), sum(path.stat().st_size for path in files), 0)
        made = [path.stat().st_size for path in prepared.iterdir()]
        with moving(self._work.lake):
            for path in folder.iterdir():
                if path.name not in going:
                    os.link(path, prepared / path.name)
            self._work.exchange(prepared, folder, {path.name for path in folder.iterdir()})
            self._work.commit()
        return _Merged(len(made), sum(made), repeated)


def merge_files(files: Sequence[Path], folder: Path, taken: Container[str] = ()) -> int:
    """Writes the rows of the files as one, in the order of positions, under a name that is not
    `taken`; returns how many rows that stood twice at one position were left out. Raises FileFault.

    Columns are those of all files together, the wider type where they differ.
    """
    schemas = [_schema(path) for path in files]
    try:
        schema = pa.unify_schemas(schemas, promote_options="permissive").remove_metadata()
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise bad_file(files[-1], f"its columns do not fit those beside it: {error}") from None
    ranges = [held for path in files if (held := position_range(path)) is not None]
    first, last = min(held[0] for held in ranges), max(held[1] for held in ranges)
    path = folder / free_name(first, last, taken)
    repeated = 0
    words = repeating_columns(schema)
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=words) as writer:
        for lot in _touching(files):
            rows = pa.concat_tables([_read(one, schema) for one in lot])
            rows, again = _in_order(rows) if len(lot) > 1 else (rows, 0)
            repeated += again
            writer.write_table(rows, row_group_size=ROW_GROUP)
    return repeated


def _lots(files: Sequence[Path], large_bytes: int) -> Iterator[list[Path]]:
    """Neighbours whose sizes together make up about one large file; those that share positions are
    not parted."""
    lot: list[Path] = []
    size = 0
    for together in _touching(files):
        if lot and size >= large_bytes:
            yield lot
            lot, size = [], 0
        lot += together
        size += sum(path.stat().st_size for path in together)
    yield lot


def _touching(files: Sequence[Path]) -> Iterator[list[Path]]:
    """Files whose positions overlap come together; mostly each comes alone."""
    lot: list[Path] = []
    end = -1
    for path in files:
        held = position_range(path)
        assert held is not None
        if lot and held[0] > end:
            yield lot
            lot = []
        lot.append(path)
        end = max(end, held[1])
    if lot:
        yield lot


def _in_order(rows: pa.Table) -> tuple[pa.Table, int]:
    """The rows by position; of several at one position of a channel the first."""
    places = pa.table({"position": rows["position"], "channel": _channels(rows)})
    order = pc.sort_indices(places, sort_keys=[("position", "ascending"), ("channel", "ascending")])
    rows, places = rows.take(order), places.take(order).combine_chunks()
    again = pa.array([True] * max(rows.num_rows - 1, 0))
    for column in places.columns:
        values = column.combine_chunks()
        again = pc.and_(again, pc.equal(values[1:], values[:-1]))
    kept = pa.concat_arrays([pa.array([True] * min(rows.num_rows, 1)), pc.invert(again)])
    return rows.filter(kept), rows.num_rows - (pc.sum(kept).as_py() or 0)


def _channels(rows: pa.Table) -> pa.ChunkedArray:
    """Whose positions they are: what was held back was told by more than one channel."""
    if "channel" not in rows.schema.names:
        return pa.chunked_array([pa.repeat("", rows.num_rows)])
    return pc.fill_null(rows["channel"].cast(pa.string()), "")


def _schema(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path).remove_metadata()
    except (pa.ArrowInvalid, OSError, EOFError) as error:
        raise bad_file(path, error) from None


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    try:
        rows = pq.read_table(path, partitioning=None)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, EOFError) as error:
        raise bad_file(path, error) from None
    columns = [
        rows[field.name].cast(field.type)
        if field.name in rows.schema.names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def repeating_columns(schema: pa.Schema) -> list[str]:
    """The columns worth a dictionary: words that repeat, unlike ids and numbers."""
    return [
        field.name
        for field in schema
        if field.name != "id"
        and (pa.types.is_string(field.type) or pa.types.is_dictionary(field.type))
    ]
