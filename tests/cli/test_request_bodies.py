"""Much to publish goes in requests that a node takes, and a bad line is told by its number."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.cli import node_api
from rapport.cli.main import run
from rapport.cli.node_api import MOST_AT_ONCE, MOST_BYTES, request_bodies


def test_large_lines_go_in_several_requests() -> None:
    parts = [b'"%b"' % (b"x" * 1_000_000)] * 10
    bodies = list(request_bodies(parts))
    assert sum(count for count, _body in bodies) == 10
    assert all(len(body) <= MOST_BYTES + MOST_AT_ONCE for _count, body in bodies)


@given(st.lists(st.integers(0, 10**6), max_size=50), st.integers(1, 9), st.integers(1, 40))
def test_every_line_is_sent_once_in_order(numbers: list[int], most: int, most_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_api, "MOST_AT_ONCE", most)
        patch.setattr(node_api, "MOST_BYTES", most_bytes)
        bodies = list(request_bodies([str(number).encode() for number in numbers]))
    sent = [msgspec.json.decode(body) for _count, body in bodies]
    assert [len(each) for each in sent] == [count for count, _body in bodies]
    assert [number for each in sent for number in each] == numbers
    assert all(len(each) <= most for each in sent)


def test_a_bad_line_is_told_by_its_number_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text('\n\n{"a": 1}\n\nnope\n')
    assert run(["publish", str(file), "--channel", "mine", "--site", str(tmp_path)]) == 2
    assert "events.jsonl:5: not JSON" in "".join(capsys.readouterr().err.split("\n"))
