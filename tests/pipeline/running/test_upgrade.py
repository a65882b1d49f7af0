"""What an older or newer version has left behind is used, or refused in words: never half
understood. [PI-10]
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rapport.core.errors import Conflict, Corrupt
from rapport.pipeline.errors import translate
from rapport.pipeline.running.jobs import export_step
from rapport.pipeline.streaming.live_query import (
    FILE,
    LiveCheckpoint,
    read_checkpoint,
    write_checkpoint,
)
from rapport.site.site import load_site

MADE = LiveCheckpoint(site="s", buckets=1, keys=(0,), after=0, began=0, start={})


def altered(path: Path, **values: object) -> None:
    """Writes a JSON file again with other values."""
    told = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode(told | values))


def test_a_live_checkpoint_of_this_version_is_used_and_of_others_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, MADE)
    assert read_checkpoint(tmp_path, "s") == MADE
    for mark in ("form", "snapshot"):
        write_checkpoint(tmp_path, MADE)
        altered(tmp_path / FILE, **{mark: 99})
        with pytest.raises(Conflict, match="made by another version") as caught:
            read_checkpoint(tmp_path, "s")
        assert caught.value.code == "live.other_version"
        assert "new checkpoint directory" in caught.value.hint
    (tmp_path / FILE).write_bytes(b'{"site": "s"')
    with pytest.raises(Corrupt):
        read_checkpoint(tmp_path, "s")


def test_a_lake_of_a_former_version_is_refused_and_left_as_it_is(directory: Path) -> None:
    site = load_site(directory)
    lake = site.data_directory / "lake"
    lake.mkdir(parents=True)
    (lake / "manifest.json").write_bytes(b'{"format": 1, "channels": {}}')
    with pytest.raises(Conflict) as caught:
        export_step(site, lake)
    assert caught.value.code == "lake.former_format"
    assert "rapport pipeline convert" in caught.value.hint
    assert [path.name for path in lake.iterdir()] == ["manifest.json"]


def test_a_checkpoint_that_spark_itself_does_not_understand_is_told() -> None:
    said = "java.lang.IllegalStateException: UnsupportedLogVersion: maximum supported version is v1"
    error = translate(Exception(said), "policies on Spark")
    assert (type(error), error.code) == (Conflict, "live.other_version")
