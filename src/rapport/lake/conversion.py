"""Lakes of earlier versions become Delta tables. [LK-1]

Those had folders of Parquet files (`bronze/channel=X/day=D/type=T/*.parquet`), a manifest and a
journal of their own. The rows of bronze are appended to new tables in the order of positions; the
types of its columns have changed, so files are written anew. Silver and gold are made again from
bronze by their jobs. Former files are moved to `former/`, where nothing reads them any more. A
conversion that was killed goes on where it was: the commit of each file carries its last position.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rapport.core.errors import Conflict, Corrupt, InvalidInput
from rapport.core.event import Gap
from rapport.lake.bronze import WRITER, bronze_rows, ensure_bronze, write_gaps
from rapport.lake.places import BRONZE, GOLD, SILVER, Lake

FORMER = "former"
_MANIFEST = "manifest.json"
_RANGE = re.compile(r"(\d{20})-(\d{20})(?:\.\d+)?\.parquet\Z")
_ROWS_AT_ONCE = 1_000_000
_OF_SILVER = ("quarantined", "_manifest.json", "_waiting.json", "_ids")


class _Progress(msgspec.Struct):
    exported: int = 0
    pending: int = 0
    gaps: list[Gap] = []


class _Manifest(msgspec.Struct):
    channels: dict[str, _Progress] = {}


class ConversionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was converted."""

    tables: int = 0
    rows: int = 0
    positions: dict[str, int] = {}
    former: str = ""
    """Where the former files are; delete them when you are content."""


def convert_lake(place: Lake | Path | str) -> ConversionResult:
    """Converts a lake on a local disk. Raises InvalidInput for one that is not of the former
    format, Corrupt for a damaged file of it.
    """
    lake = Lake.at(place)
    if lake.path is None or not (lake.path / _MANIFEST).exists():
        raise InvalidInput(
            f"{lake.uri} is no lake of an earlier version",
            code="lake.nothing_to_convert",
            hint="rapport pipeline tables lists its tables",
        )
    root, manifest = lake.path, _read_manifest(lake.path / _MANIFEST)
    rows = 0
    for channel, progress in sorted(manifest.channels.items()):
        if progress.pending > progress.exported:
            raise Conflict(
                f"an export of {channel!r} was not finished",
                code="lake.unfinished_export",
                hint="run rapport pipeline export with the earlier version once, then convert",
            )
        rows += _convert_channel(lake, channel, progress)
    _move_former(root)
    return ConversionResult(
        tables=len(manifest.channels),
        rows=rows,
        positions={name: one.exported for name, one in manifest.channels.items()},
        former=str(root / FORMER),
    )


def _convert_channel(lake: Lake, channel: str, progress: _Progress) -> int:
    table = ensure_bronze(lake, channel)
    if progress.gaps:
        write_gaps(lake, channel, progress.exported, progress.gaps)
    done, rows = table.progress(WRITER) or 0, 0
    for portion, reached in _portions(_files(lake, channel), done, progress.exported):
        table.append(portion, progress={WRITER: reached}, after={WRITER: done})
        rows, done = rows + portion.num_rows, reached
    if done < progress.exported:  # the last positions had no events
        table.commit([], progress={WRITER: progress.exported}, after={WRITER: done})
    return rows


def _portions(
    files: list[tuple[int, int, Path]], done: int, until: int
) -> Iterator[tuple[pa.Table, int]]:
    """Rows after a position, in steps that end where no later file reaches back, and the position
    that each reaches.
    """
    waiting: list[pa.Table] = []
    count = 0
    for number, (_first, last, path) in enumerate(files):
        if last > done:
            rows = _read(path)
            position = rows["position"].cast(pa.int64())
            after = pc.and_(pc.greater(position, done), pc.less_equal(position, until))
            waiting.append(rows.filter(after))
            count += waiting[-1].num_rows
        reached = max(one[1] for one in files[: number + 1])
        is_end = number + 1 == len(files)
        if waiting and (is_end or (count >= _ROWS_AT_ONCE and files[number + 1][0] > reached)):
            whole = bronze_rows(pa.concat_tables(waiting)).sort_by("position")
            yield whole, min(reached, until)
            waiting, count = [], 0


def _files(lake: Lake, channel: str) -> list[tuple[int, int, Path]]:
    assert lake.path is not None
    found = []
    for folder in (lake.path / BRONZE).glob("channel=*"):
        if unquote(folder.name.removeprefix("channel=")) == channel:
            for path in folder.rglob("*.parquet"):
                named = _RANGE.match(path.name)
                if named is not None and not path.name.startswith((".", "_")):
                    found.append((int(named[1]), int(named[2]), path))
    return sorted(found)


def _read(path: Path) -> pa.Table:
    names = ["position", "received", "time", "source", "id", "type", "subject", "headers", "data"]
    try:
        rows = pq.ParquetFile(path).read(columns=names)
    except (pa.ArrowInvalid, OSError, EOFError) as error:
        raise Corrupt(
            f"{path} cannot be read: {error}",
            code="lake.bad_file",
            hint="put a sound copy in its place, or move it out of the lake, then convert again",
        ) from None
    plain = [
        column.cast(field.type.value_type) if pa.types.is_dictionary(field.type) else column
        for column, field in zip(rows.columns, rows.schema, strict=True)
    ]
    return pa.table(plain, names=rows.schema.names)


def _read_manifest(path: Path) -> _Manifest:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Manifest)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, OSError) as error:
        raise Corrupt(
            f"the manifest {path} cannot be read: {error}", code="lake.bad_manifest"
        ) from None


def _move_former(root: Path) -> None:
    """Takes everything of the former format out of the way, the manifest last: while it is there,
    the conversion is not done.
    """
    former = root / FORMER
    former.mkdir(exist_ok=True)
    moved = [
        *(root / BRONZE).glob("channel=*"),
        *(root / SILVER).glob("stream=*"),
        *(root / SILVER / name for name in _OF_SILVER),
        *(root / GOLD).glob("grid=*"),
        *(root / GOLD).glob("*.parquet"),
        root / GOLD / "detected",
        *(path for path in root.glob(".*") if path.name in (".lock", ".work", ".index", ".report")),
    ]
    for path in moved:
        if path.exists() and not (path / "_delta_log").exists():
            target = former / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
    (root / _MANIFEST).rename(former / _MANIFEST)
