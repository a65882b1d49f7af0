"""Jobs over a history in this process, without Spark: the same two steps, and a scan by Arrow."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rapport.pipeline.history.exchange import (
    EXCHANGE,
    MOST_FILE_ROWS,
    ORDER,
    Job,
    run_parts,
    spread_rows,
    start_rows,
)
from rapport.pipeline.history.files import ReadingsFiles, cannot_read
from rapport.pipeline.history.results import OUTPUT, OutputFiles
from rapport.pipeline.history.scan import FileAt, Scan, _scanned_files, scans_of
from rapport.pipeline.history.tables import Pull

_BATCH = 1_000


class Here:
    """Runs jobs as Spark does."""

    def __init__(self, pull: Pull, batch_rows: int = _BATCH) -> None:
        self._pull, self._batch_rows = pull, batch_rows

    def exchanged(
        self, job: Job, history: ReadingsFiles, chosen: Collection[FileAt] | None = None
    ) -> pa.Table:
        """What crosses the shuffle."""
        rows = [pa.Table.from_batches([start_rows(job)])]
        for scan in scans_of(history, job, chosen):
            files = dict(enumerate(_scanned_files(scan, history, job).values()))
            batches = self._scanned(scan)
            spread = spread_rows(job, files, scan.columns, batches, self._pull, lambda rows: None)
            rows.append(pa.Table.from_batches(spread, schema=EXCHANGE))
        return pa.concat_tables(rows).sort_by([(name, "ascending") for name in ORDER])

    def run(
        self, job: Job, history: ReadingsFiles, chosen: Collection[FileAt] | None = None
    ) -> OutputFiles:
        history.check_unchanged()
        batches = self.exchanged(job, history, chosen).combine_chunks().to_batches(max_chunksize=3)
        made = pa.Table.from_batches(run_parts(job, batches, self._pull), schema=OUTPUT)
        output = OutputFiles.temporary()
        for kind in pc.unique(made["kind"]).to_pylist():
            folder = Path(output.directory) / f"kind={kind}"
            folder.mkdir()
            own = made.filter(pc.equal(made["kind"], kind)).drop_columns("kind")
            pq.write_table(own, folder / "part.parquet")
        return output

    def _scanned(self, scan: Scan) -> Iterator[pa.RecordBatch]:
        for number, path in enumerate(scan.files):
            try:
                table = pq.ParquetFile(path).read()
            except (OSError, pa.ArrowException) as error:
                raise cannot_read(Path(path), error) from None
            first = number * MOST_FILE_ROWS
            places = pa.array(range(first, first + len(table)), pa.int64())
            columns = [table[name] for name in scan.columns]
            names = ["place", *(f"c{at}" for at in range(len(columns)))]
            rows = pa.table([places, *columns], names=names)
            if scan.only_column:
                rows = rows.filter(pc.is_in(table[scan.only_column], pa.array(scan.only)))
            yield from rows.combine_chunks().to_batches(max_chunksize=self._batch_rows)
