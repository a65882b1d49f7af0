"""Pieces are written one behind the other, however the system takes them. [CH-13]"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from rapport.store.files import DiskFiles

PIECES = [b"%d," % number for number in range(3_000)]


def written(path: Path, *pieces: bytes) -> bytes:
    file = DiskFiles().open(path)
    try:
        file.write_at(2, *pieces)
        return file.read_at(2, file.size())
    finally:
        file.close()


@pytest.mark.parametrize("count", [0, 1, 2, 1_024, 1_025, 3_000])
def test_all_of_them_stand_there(tmp_path: Path, count: int) -> None:
    assert written(tmp_path / "f", *PIECES[:count]) == b"".join(PIECES[:count])


@pytest.mark.parametrize("taken", [0, 1, 4, 5])
def test_what_the_system_leaves_is_written_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    def takes_few(descriptor: int, pieces: Sequence[bytes], offset: int) -> int:
        return os.pwrite(descriptor, b"".join(pieces)[:taken], offset)

    monkeypatch.setattr(os, "pwritev", takes_few)
    assert written(tmp_path / "f", b"head", b"body") == b"headbody"
