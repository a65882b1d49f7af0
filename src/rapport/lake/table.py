"""One Delta table at any URI: schema with units, files, commits, care. [LK-1, LK-2, LK-9]

The protocol is that of `deltalake` (delta-rs). Writers, be they a node or executors of Spark, first
write Parquet files into the table's folder with `write_files`; nobody sees them until one commit
names them all. A commit can carry how far its writer is (`progress`): the same step committed twice
is refused, so whatever is killed or repeated, each row is in the table once.

On a local disk a file is durable before the commit that names it, and the commit when `commit`
returns; object stores promise that by themselves.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from rapport.core.errors import Conflict, Corrupt, StoreUnavailable, Unsupported
from rapport.kernel.files import sync_path

if TYPE_CHECKING:
    import pyarrow.dataset as ds  # brings pandas, which a node does without

ROW_GROUP = 65_536
"""Rows of a Parquet row group, which readers decode at once."""
TARGET_BYTES = 128 * 1024 * 1024
"""Size of files that compaction aims at."""
CONCURRENT_WRITER = "lake.concurrent_writer"
KEPT_HOURS = 168
"""How long files stay on disk that no version in use names any more: a reader that began before a
compaction goes on to its end."""
_REPLACE_TRIES = 5
_ONCE = 0
"""Retries of a commit that removes files: none, so that whatever was committed since the snapshot
refuses it. delta-rs (1.6.6) looks for files that both removed, but passes over a compaction: its
joined file would stay, and every row of it be there twice."""
_SETTINGS = {"delta.checkpointInterval": "100", "delta.logRetentionDuration": "interval 30 days"}
_WITHOUT_STATISTICS = ("data", "headers", "data_bytes", "reason", "message", "hint")
_LONGEST_TEXT = 64


class NewFile(msgspec.Struct, frozen=True):
    """A written file that a commit is to name; what executors return to the driver."""

    path: str
    size: int
    rows: int
    partition: dict[str, str | None]
    statistics: str


class TableFile(msgspec.Struct, frozen=True):
    """A file of the table's present version; `low` and `high` bound the values of columns whose
    statistics the log has."""

    path: str
    uri: str
    size: int
    rows: int
    partition: dict[str, Any]
    low: dict[str, Any]
    high: dict[str, Any]


class Table:
    """A table at a URI, at the version it had when it was opened or last refreshed."""

    def __init__(self, uri: str, options: Mapping[str, str] | None = None) -> None:
        """`options`: those of the object store, as delta-rs names them."""
        self.uri, self._options = uri.rstrip("/"), dict(options or {})
        with _faults(self.uri):
            self._delta = _library().DeltaTable(self.uri, storage_options=self._options or None)

    # --- opening ---

    @staticmethod
    def exists(uri: str, options: Mapping[str, str] | None = None) -> bool:
        with _faults(uri):
            found: bool = _library().DeltaTable.is_deltatable(uri, dict(options or {}) or None)
            return found

    @classmethod
    def ensure(
        cls,
        uri: str,
        schema: pa.Schema,
        *,
        partition_by: Sequence[str] = (),
        description: str = "",
        options: Mapping[str, str] | None = None,
    ) -> Table:
        """Opens a table, makes it where there is none, and adds columns and units that it lacks. A
        changed unit or a new column is a version of its own; files stay as they are. Raises
        Conflict for a column of another type.
        """
        if not cls.exists(uri, options):
            _make_folder(uri)
            library = _library()
            try:
                with _faults(uri):
                    library.DeltaTable.create(
                        uri,
                        schema=schema,
                        mode="ignore",
                        partition_by=list(partition_by),
                        description=description or None,
                        configuration=_SETTINGS,
                        storage_options=dict(options or {}) or None,
                    )
            except library.exceptions.CommitFailedError:
                if not cls.exists(uri, options):  # otherwise another process was quicker
                    raise
            _sync_commits(uri, 0)
        table = cls(uri, options)
        table._evolve(schema)
        return table

    def refresh(self) -> Table:
        """Moves to the newest version."""
        with _faults(self.uri):
            self._delta.update_incremental()
        return self

    # --- what is in it ---

    @property
    def version(self) -> int:
        return int(self._delta.version())

    @property
    def schema(self) -> pa.Schema:
        """The columns; units and other notes are in the fields' metadata."""
        return pa.schema(self._delta.schema())

    @property
    def partition_by(self) -> list[str]:
        return list(self._delta.metadata().partition_columns)

    @property
    def description(self) -> str:
        return str(self._delta.metadata().description or "")

    def unit(self, column: str) -> str:
        """The unit of a column's values, empty without one."""
        notes: dict[bytes, bytes] = self.schema.field(column).metadata or {}
        return notes.get(b"unit", b"").decode()

    def progress(self, writer: str) -> int | None:
        """How far a writer is by its last commit; None before its first."""
        found = self._delta.transaction_version(writer)
        return None if found is None else int(found)

    def rows(self) -> int:
        return sum(file.rows for file in self.files())

    def files(self, **bounds: tuple[Any, Any]) -> list[TableFile]:
        """The files of this version, by path. `bounds` leave out those that hold no value in
        [low, high] of a column, by partition or statistics; None bounds nothing.
        """
        actions = pa.table(self._delta.get_add_actions(flatten=True)).to_pylist()
        found = [_table_file(self.uri, action) for action in actions]
        for column, (low, high) in bounds.items():
            found = [file for file in found if _may_hold(file, column, low, high)]
        return sorted(found, key=lambda file: file.path)

    def dataset(self) -> ds.Dataset:
        """All rows for Arrow, which leaves out files and row groups that a filter cannot want."""
        with _faults(self.uri):
            return self._delta.to_pyarrow_dataset()

    def read(
        self, columns: Sequence[str] | None = None, where: pc.Expression | None = None
    ) -> pa.Table:
        with _faults(self.uri):
            return self.dataset().to_table(list(columns) if columns else None, filter=where)

    # --- writing ---

    def commit(
        self,
        new: Sequence[NewFile],
        *,
        removed: Sequence[TableFile] = (),
        progress: Mapping[str, int] | None = None,
        after: Mapping[str, int] | None = None,
    ) -> int:
        """Makes files part of the table, and takes others out of it, in one step; returns the
        version. `after` is the progress that the new rows continue (0: none). Raises Conflict when
        a writer's progress is another one, when another process has committed the progress of the
        same writer since this table was opened or refreshed, or anything if files are removed.
        """
        # The protocol refuses what was committed after this snapshot, not what the snapshot itself
        # has: each commit moves the snapshot, perhaps past the commit of another process.
        for writer, position in (after or {}).items():
            if (self.progress(writer) or 0) != position:
                raise self._concurrent_writer(f"{writer} is at {self.progress(writer)}")
        return self._write(new, "append", self._delta.schema(), progress or {}, removed=removed)

    def rewrite(
        self,
        new: Sequence[NewFile],
        schema: pa.Schema,
        *,
        progress: Mapping[str, int],
        notes: Mapping[str, str],
    ) -> int:
        """Replaces all files and the schema in one step, for values that change with their unit;
        `notes` are in the commit. Returns the version; raises Conflict like `commit`.
        """
        wanted = _library().Schema.from_arrow(schema)
        return self._write(new, "overwrite", wanted, progress, notes=notes)

    def _write(
        self,
        new: Sequence[NewFile],
        mode: str,
        schema: Any,
        progress: Mapping[str, int],
        *,
        removed: Sequence[TableFile] = (),
        notes: Mapping[str, str] | None = None,
    ) -> int:
        library, now_ms, before = _library(), time.time_ns() // 1_000_000, self.version
        actions: list[Any] = [
            library.transaction.AddAction(
                file.path, file.size, file.partition, now_ms, True, file.statistics
            )
            for file in new
        ]
        actions += [
            library.transaction.RemoveAction(
                file.path, True, now_ms, file.size, _partition_texts(file.partition)
            )
            for file in removed
        ]
        properties = library.CommitProperties(
            max_commit_retries=_ONCE if removed or mode == "overwrite" else None,
            custom_metadata=dict(notes) if notes is not None else None,
            app_transactions=[
                library.Transaction(writer, position, now_ms)
                for writer, position in progress.items()
            ],
        )
        try:
            with _faults(self.uri):
                self._delta.create_write_transaction(
                    actions, mode, schema, self.partition_by, commit_properties=properties
                )
        except library.exceptions.CommitFailedError as error:
            raise self._concurrent_writer(str(error)) from None
        self.refresh()
        _sync_commits(self.uri, before + 1, self.version)
        return self.version

    def _concurrent_writer(self, reason: str) -> Conflict:
        return Conflict(
            f"another process has written into {self.uri} meanwhile: {reason}",
            code=CONCURRENT_WRITER,
            hint="it goes on from there; run this again",
        )

    def append(
        self,
        rows: pa.Table,
        *,
        progress: Mapping[str, int] | None = None,
        after: Mapping[str, int] | None = None,
    ) -> int:
        """Writes and commits rows; returns the version."""
        new = write_files(self.uri, rows, self.partition_by, self._options)
        return self.commit(new, progress=progress, after=after)

    def replace(self, rows: pa.Table, progress: Mapping[str, int] | None = None) -> int:
        """Replaces all rows: a reader sees the old or the new ones."""
        new = write_files(self.uri, rows, self.partition_by, self._options)
        return self.replace_files(new, progress)

    def replace_files(
        self, new: Sequence[NewFile], progress: Mapping[str, int] | None = None
    ) -> int:
        """Makes files the whole content; a compaction at the same time takes its turn."""
        for _try in range(_REPLACE_TRIES):
            try:
                return self.commit(new, removed=self.refresh().files(), progress=progress)
            except Conflict as error:
                refused = error
        raise refused

    # --- care ---

    def compact(self, **partition: str) -> dict[str, Any]:
        """Joins small files; rows and progress stay. Streams over the table see no new rows."""
        filters = [(column, "=", value) for column, value in partition.items()]
        with _faults(self.uri):
            done: dict[str, Any] = self._delta.optimize.compact(
                filters or None,
                target_size=TARGET_BYTES,
                writer_properties=_library().WriterProperties(
                    compression="ZSTD", max_row_group_size=ROW_GROUP
                ),
            )
        self.refresh()
        return done

    def vacuum(self, kept_hours: int = KEPT_HOURS, *, dry_run: bool = False) -> list[str]:
        """Deletes files that no version of the last hours names; returns their names."""
        with _faults(self.uri):
            gone: list[str] = self._delta.vacuum(
                kept_hours, dry_run=dry_run, enforce_retention_duration=False, full=True
            )
            if not dry_run:
                self._delta.create_checkpoint()
                self._delta.cleanup_metadata()
        return gone

    def _evolve(self, schema: pa.Schema) -> None:
        has = self.schema
        for field in schema:
            if field.name in has.names and not _is_same_type(has.field(field.name), field):
                raise Conflict(
                    f"column {field.name!r} of {self.uri} is {has.field(field.name).type}, "
                    f"not {field.type}",
                    code="lake.other_type",
                    hint="give the attribute another name, or make the table anew",
                )
        added = [field for field in schema if field.name not in has.names]
        before = self.version
        with _faults(self.uri):
            if added:
                wanted = _library().Schema.from_arrow(pa.schema(added))
                self._delta.alter.add_columns(list(wanted.fields))
            for field in schema:
                if field.name in has.names and field.metadata:
                    known = has.field(field.name).metadata or {}
                    notes = {key: value for key, value in field.metadata.items()}
                    if any(known.get(key) != value for key, value in notes.items()):
                        texts = {key.decode(): value.decode() for key, value in notes.items()}
                        self._delta.alter.set_column_metadata(field.name, texts)
        self.refresh()
        _sync_commits(self.uri, before + 1, self.version)


def write_files(
    uri: str,
    rows: pa.Table,
    partition_by: Sequence[str],
    options: Mapping[str, str] | None = None,
) -> list[NewFile]:
    """Writes rows into a table's folder, a file for each partition; a commit has to name them.
    Files that are never named are deleted by `vacuum`.
    """
    return [
        _write_file(uri, part, values, options)
        for values, part in _partitions(rows, list(partition_by))
        if part.num_rows
    ]


def replace_rows(
    uri: str,
    rows: pa.Table,
    options: Mapping[str, str] | None = None,
    progress: Mapping[str, int] | None = None,
) -> None:
    """Makes rows the whole content of a table, which is made where there is none."""
    schema = pa.schema([pa.field(one.name, one.type, metadata=one.metadata) for one in rows.schema])
    Table.ensure(uri, schema, options=options).replace(rows.cast(schema), progress)


def field(name: str, kind: pa.DataType, *, unit: str = "", meaning: str = "") -> pa.Field:
    """A column with the notes that people and jobs read."""
    notes = {key: text for key, text in (("unit", unit), ("comment", meaning)) if text}
    return pa.field(name, kind, metadata=notes or None)


def local_path(uri: str) -> Path | None:
    """The path of a table on a local disk; None for other stores."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(uri) if not parts.scheme or "://" not in uri else None


# --- files ----------------------------------------------------------------------------------------


def _write_file(
    uri: str, rows: pa.Table, values: dict[str, Any], options: Mapping[str, str] | None
) -> NewFile:
    texts = _partition_texts(values)
    folder = "/".join(_folder_name(column, text) for column, text in texts.items())
    name = f"part-{uuid4()}.zstd.parquet"
    path = f"{folder}/{name}" if folder else name
    words = [one.name for one in rows.schema if one.name != "id" and _is_word(one.type)]
    options_of_file: dict[str, Any] = {
        "compression": "zstd",
        "use_dictionary": words,
        "row_group_size": ROW_GROUP,
    }
    root = local_path(uri)
    footers: list[pq.FileMetaData] = []
    try:
        if root is not None:
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(rows, target, metadata_collector=footers, **options_of_file)
            sync_path(target)
            sync_path(target.parent)
            size = target.stat().st_size
        else:
            system = _file_system(uri, options)
            pq.write_table(
                rows, path, filesystem=system, metadata_collector=footers, **options_of_file
            )
            size = int(system.get_file_info(path).size)
    except OSError as error:
        raise _unavailable(uri, error) from None
    statistics = json.dumps(_statistics(rows, footers[0]))
    return NewFile(path, size, rows.num_rows, texts, statistics)


def _partitions(rows: pa.Table, columns: list[str]) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    if not columns:
        yield {}, rows
        return
    first, rest = columns[0], columns[1:]
    values = rows[first]
    for value in pc.unique(values).to_pylist():
        chosen = pc.is_null(values) if value is None else pc.equal(values, pa.scalar(value))
        part = rows.filter(chosen).drop_columns([first]) if len(rows) else rows
        for more, own in _partitions(part, rest):
            yield {first: value, **more}, own


def _partition_texts(values: Mapping[str, Any]) -> dict[str, str | None]:
    return {
        column: None
        if value is None
        else value.isoformat()
        if isinstance(value, date)
        else str(value)
        for column, value in values.items()
    }


def _folder_name(column: str, text: str | None) -> str:
    # As Hive and Delta name it; what file systems may not have is encoded.
    value = "__HIVE_DEFAULT_PARTITION__" if text is None else quote(text, safe=" -_.~")
    return f"{column}={value[:200]}"


def _statistics(rows: pa.Table, footer: pq.FileMetaData) -> dict[str, Any]:
    """What the log tells of a file, so that readers can leave it out: from the footer, which
    writing has computed anyway."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number in range(footer.num_columns):
        name = footer.schema.column(number).path
        if name in _WITHOUT_STATISTICS or name not in rows.schema.names:
            continue
        found = [
            footer.row_group(group).column(number).statistics
            for group in range(footer.num_row_groups)
        ]
        if any(one is None for one in found):
            continue
        nulls[name] = sum(one.null_count or 0 for one in found)
        bounded = [one for one in found if one.has_min_max]
        if len(bounded) == len(found) and bounded:
            least = _stated(min(one.min for one in bounded))
            most = _stated(max(one.max for one in bounded))
            if least is not None and most is not None:
                low[name], high[name] = least, most
    return {"numRecords": rows.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def _stated(value: Any) -> Any:
    """A bound as JSON; None for what cannot be one."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else None  # neither infinite nor NaN
    return value if isinstance(value, str) and len(value) <= _LONGEST_TEXT else None


def _table_file(uri: str, action: dict[str, Any]) -> TableFile:
    chosen: dict[str, dict[str, Any]] = {"partition": {}, "min": {}, "max": {}}
    for name, value in action.items():
        head, _, column = name.partition(".")
        if column and head in chosen and (value is not None or head == "partition"):
            chosen[head][column] = value
    path = action["path"]
    return TableFile(
        path=path,
        uri=f"{uri}/{path}",
        size=int(action["size_bytes"]),
        rows=int(action["num_records"] or 0),
        partition=chosen["partition"],
        low=chosen["min"],
        high=chosen["max"],
    )


def _may_hold(file: TableFile, column: str, low: Any, high: Any) -> bool:
    if column in file.partition:
        least = most = file.partition[column]
        if least is None:
            return low is None and high is None
    else:
        least, most = file.low.get(column), file.high.get(column)
    if low is not None and most is not None and most < low:
        return False
    return not (high is not None and least is not None and least > high)


def _is_word(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_dictionary(kind))


def _is_same_type(known: pa.Field, wanted: pa.Field) -> bool:
    def plain(kind: pa.DataType) -> str:
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if pa.types.is_map(kind):
            return "map"
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return "list"
        return str(kind).replace("large_", "").replace("_view", "")

    return plain(known.type) == plain(wanted.type)


# --- disks and faults -----------------------------------------------------------------------------


def _file_system(uri: str, options: Mapping[str, str] | None) -> pa_fs.FileSystem:
    from deltalake.fs import DeltaStorageHandler

    return pa_fs.PyFileSystem(DeltaStorageHandler(uri, dict(options or {}) or None))


def _make_folder(uri: str) -> None:
    root = local_path(uri)
    if root is None:
        return
    try:
        missing = [one for one in (root, *root.parents) if not one.exists()]
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in missing:
            sync_path(folder.parent)
    except OSError as error:
        raise _unavailable(uri, error) from None


def _sync_commits(uri: str, first: int, last: int | None = None) -> None:
    """Makes commits durable on a local disk; delta-rs leaves that to the system."""
    root = local_path(uri)
    if root is None:
        return
    log = root / "_delta_log"
    for version in range(first, (first if last is None else last) + 1):
        path = log / f"{version:020d}.json"
        if path.exists():
            sync_path(path)
    sync_path(log)


class _faults:
    """Errors of the library become ours, with the table's name."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            return
        from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

        if isinstance(error, CommitFailedError):
            return
        if isinstance(error, TableNotFoundError):
            raise Corrupt(
                f"there is no table at {self._uri}",
                code="lake.no_table",
                hint="rapport pipeline tables lists those of the lake",
            ) from None
        if isinstance(error, DeltaError | pa.ArrowInvalid | EOFError):
            raise Corrupt(
                f"{self._uri} cannot be read: {error}",
                code="lake.bad_table",
                hint="a file of it is missing or damaged; its history tells since when",
            ) from None
        if isinstance(error, OSError):
            raise _unavailable(self._uri, error) from None


def _unavailable(uri: str, error: OSError) -> StoreUnavailable:
    why = error.strerror or str(error)
    return StoreUnavailable(f"cannot use {uri}: {why}", code="lake.unavailable")


def _library() -> Any:
    """delta-rs, loaded when a table is first opened: it is large, and an extra."""
    try:
        import deltalake
        import deltalake.exceptions
        import deltalake.transaction
    except ImportError:
        raise Unsupported(
            "a lake without deltalake", hint="add it with: pip install 'rapport[lake]'"
        ) from None
    return deltalake
