"""Raw history is read from the files that are named, and written where it is told to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rapport.pipeline.mediation.mediated_files import REJECTED, mediate_files
from rapport.site.raw_files import EnvelopeFields
from support.varied.mediated_rows import varied_sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def test_names_of_files_and_folders_are_no_patterns(spark: SparkSession, tmp_path: Path) -> None:
    meanings = varied_sources(1, forms=1, events=0).meanings
    folder = tmp_path / "from [1]"
    folder.mkdir()
    for name in ("day*.parquet", "day1.parquet"):
        pq.write_table(pa.table({"nobody": ["knows", "this"]}), folder / name)
    into = tmp_path / "into {2}"
    files = {EnvelopeFields(source="fields0"): [folder / "day*.parquet"]}
    done = mediate_files(spark, meanings, files, into)
    assert sum(done.rejected.values()) == 2
    written = [pq.read_table(path) for path in (into / REJECTED).glob("*.parquet")]
    assert sum(rows.num_rows for rows in written) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [folder.name, into.name]
