"""How far the micro-batches of a stream go; without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from rapport.pipeline.datasource.offsets import ChannelSpan
from rapport.pipeline.datasource.rows import CHANNEL_SCHEMA
from rapport.pipeline.datasource.source_options import source_options

datasource = pytest.importorskip("rapport.pipeline.datasource.source")
ReadMaxRows = pytest.importorskip("pyspark.sql.streaming.datasource").ReadMaxRows


class Reader(datasource.ChannelStreamReader):  # type: ignore[misc, name-defined]
    """Of a log that is described, not there."""

    def __init__(self, spans: dict[str, ChannelSpan], schema: pa.Schema = CHANNEL_SCHEMA) -> None:
        options = source_options({"site": "x", "channels": ",".join(spans)})
        super().__init__(options, schema)
        self.spans = spans

    def _spans(self) -> dict[str, ChannelSpan]:
        return self.spans


def test_what_the_log_has_let_go_of_takes_no_batches() -> None:
    reader = Reader(
        {"events": ChannelSpan(80_000_001, 80_500_000), "detections": ChannelSpan(1, 40)}
    )
    begin = {"events": 10, "detections": 20}
    limit = ReadMaxRows(1_000)
    reached = reader.latestOffset(begin, limit)
    assert 80_000_000 < reached["events"] <= 80_001_000
    assert reached["events"] - 80_000_000 + reached["detections"] - 20 == 1_000
    pieces = [part.value for part in reader.partitions(begin, reached)]
    own = [piece for piece in pieces if piece.channel == "events"]
    assert (own[0].after, own[-1].through) == (10, reached["events"])


def test_a_channel_that_was_let_go_of_as_a_whole_is_passed() -> None:
    reader = Reader({"events": ChannelSpan(501, 500)})
    assert reader.latestOffset({"events": 10}, ReadMaxRows(7)) == {"events": 500}
