"""What a checkpoint says of itself is checked before a query starts."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rapport.core.errors import Conflict, Corrupt
from rapport.pipeline.streaming.live_query import (
    FILE,
    LiveCheckpoint,
    read_checkpoint,
    write_checkpoint,
)

MADE = LiveCheckpoint(
    site="here", buckets=2, keys=(2, 0), after=7, began=1_000, start={"events": 7, "detections": 0}
)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "checkpoint"
    assert read_checkpoint(directory, "here") is None
    write_checkpoint(directory, MADE)
    assert read_checkpoint(directory, "here") == MADE


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"site": "there"}, "live.other_site"),
        ({"form": 99}, "live.other_version"),
        ({"snapshot": 1}, "live.other_version"),
    ],
)
def test_one_that_does_not_fit_is_refused_with_what_to_do(
    tmp_path: Path, change: dict[str, object], code: str
) -> None:
    write_checkpoint(tmp_path, msgspec.structs.replace(MADE, **change))
    with pytest.raises(Conflict) as caught:
        read_checkpoint(tmp_path, "here")
    assert caught.value.code == code
    assert "new checkpoint" in caught.value.hint


def test_damage_and_the_checkpoint_of_another_query_are_refused(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    with pytest.raises(Conflict, match="another query"):
        read_checkpoint(tmp_path, "here")
    (tmp_path / FILE).write_bytes(b"{")
    with pytest.raises(Corrupt):
        read_checkpoint(tmp_path, "here")
