"""Recorded events as Parquet. [PO-2]"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from rapport.core.errors import Problem, SiteError
from rapport.policy.recorded.columns import convert_columns, in_ms
from rapport.policy.recorded.rows import (
    CellError,
    FieldMapping,
    Report,
    as_batch,
    check_fields,
    row_values,
)


def parquet_batches(
    path: Path, wanted: FieldMapping, report: Report, groups: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, or of some of its row groups that follow each other; `line` of a problem
    is the row, counted from 1.
    """
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            check_fields(path, wanted, file.schema_arrow.names, line=0)
            before = range(0 if not groups else groups[0])
            done = sum(file.metadata.row_group(number).num_rows for number in before)
            columns = list(dict.fromkeys(wanted.fields()))
            for rows in file.iter_batches(columns=columns, row_groups=groups):
                yield usable_rows(path, wanted, rows, done, file.schema_arrow.names, report)
                done += len(rows)
    except pa.ArrowInvalid as error:
        message = f"this is not a Parquet file: {error}"
        raise SiteError(
            [Problem(file=path.name, code="events.bad_file", message=message)]
        ) from None


def usable_rows(
    path: Path,
    wanted: FieldMapping,
    rows: pa.RecordBatch,
    done: int,
    names: list[str],
    report: Report,
) -> pa.RecordBatch:
    """The usable of some rows of a file, `done` rows after its beginning; the others are reported.
    `names` are all columns of the file.
    """
    converted = convert_columns(rows, wanted)
    if converted is not None:
        return converted
    good: list[tuple[Any, ...]] = []
    columns = [in_ms(rows.column(field)).to_pylist() for field in wanted.fields()]
    for place, cells in enumerate(zip(*columns, strict=True)):
        try:
            good.append(row_values(wanted, [_plain(cell) for cell in cells]))
        except CellError as error:
            column = names.index(error.field) + 1
            report(
                Problem(
                    file=path.name,
                    line=done + place + 1,
                    column=column,
                    code=error.code,
                    message=error.message,
                    hint=error.hint,
                )
            )
    return as_batch(wanted, good)


def _plain(cell: Any) -> Any:
    return cell.isoformat() if isinstance(cell, datetime) else cell
