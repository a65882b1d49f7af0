from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pyarrow as pa
import pytest

from rapport.core.errors import (
    Corrupt,
    InvalidInput,
    NotAllowed,
    NotAuthenticated,
    Unavailable,
    UnknownName,
)
from rapport.pipeline.datasource import locations
from rapport.pipeline.datasource.append import AppendCounts, AppendTarget, append_rows
from rapport.pipeline.datasource.locations import NodeApi, SiteFiles, spans_of
from rapport.pipeline.datasource.offsets import ChannelSpan, PositionRange
from rapport.pipeline.datasource.rows import row_batches

pytestmark = pytest.mark.slow

Node = tuple[Path, str]


def place(node: Node, key: str = "all") -> NodeApi:
    return NodeApi(node[1], str(node[0] / f"{key}.key"), 500)


def rows(first: int, last: int) -> pa.Table:
    numbers = list(range(first, last + 1))
    return pa.table(
        {
            "source": ["spark"] * len(numbers),
            "id": [f"r{n}" for n in numbers],
            "type": [f"t{n % 3}" for n in numbers],
            "time": [1_000 + n for n in numbers],
            "headers": pa.array(
                [[("cause", f"e{n}")] if n % 2 else [] for n in numbers],
                pa.map_(pa.string(), pa.string()),
            ),
            "data": [f'{{"n": {n}, "text": "Ærø"}}' for n in numbers],
        }
    )


def all_rows(opened, channel: str, after: int, through: int) -> list[dict]:
    chunks = opened.chunks(
        PositionRange(channel, after, through), (), bare=False, passes_damage=False
    )
    return [row for batch in row_batches(chunks, channel) for row in batch.to_pylist()]


def test_a_door_gives_what_the_files_hold(node: Node, monkeypatch) -> None:
    monkeypatch.setattr(locations, "_FIRST_STEP", 7)
    assert append_rows(AppendTarget(place(node), "found"), rows(1, 60)) == AppendCounts(60, 0)
    with place(node).opened() as door, SiteFiles(str(node[0])).opened() as files:
        assert spans_of(door, ["found"], streaming=False) == {"found": ChannelSpan(1, 60)}
        assert files.span("found") == ChannelSpan(1, 60)
        for after, through in ((0, 60), (5, 6), (13, 41)):
            assert all_rows(door, "found", after, through) == all_rows(
                files, "found", after, through
            )


def test_writing_again_through_a_door_changes_nothing(node: Node) -> None:
    target = AppendTarget(place(node), "again")
    assert append_rows(target, rows(1, 2_500)) == AppendCounts(2_500, 0)
    assert append_rows(target, rows(1, 2_600)) == AppendCounts(2_600, 2_500)
    with place(node).opened() as door:
        assert door.span("again") == ChannelSpan(1, 2_600)


def test_results_reach_the_channels_of_the_node_only_from_who_may_change_it(node: Node) -> None:
    assert append_rows(AppendTarget(place(node), "detections"), rows(1, 2)) == AppendCounts(2, 0)
    assert append_rows(AppendTarget(place(node), "detections"), rows(2, 3)) == AppendCounts(2, 1)
    with pytest.raises(NotAllowed):
        append_rows(AppendTarget(place(node, "few"), "detections"), rows(1, 2))
    with pytest.raises(NotAllowed) as caught:
        append_rows(AppendTarget(place(node), "policies"), rows(1, 2))
    assert caught.value.code == "channel.reserved"


def test_the_site_of_a_node_that_is_elsewhere_is_locked(node: Node) -> None:
    target = AppendTarget(SiteFiles(str(node[0])), "found", patience_ms=100)
    with pytest.raises(Unavailable) as caught:
        append_rows(target, rows(1, 2))
    assert caught.value.code == "store.locked"


def test_the_node_of_a_site_is_found_where_the_site_says(node: Node, monkeypatch) -> None:
    monkeypatch.setenv("RAPPORT_PORT", node[1].rpartition(":")[2])
    monkeypatch.setenv("RAPPORT_TOKEN_FILE", "all.key")
    assert append_rows(AppendTarget(SiteFiles(str(node[0])), "beside"), rows(1, 2)) == AppendCounts(
        2, 0
    )


def test_another_sites_node_is_left_alone(node: Node, site: Path, monkeypatch) -> None:
    monkeypatch.setenv("RAPPORT_PORT", node[1].rpartition(":")[2])
    assert append_rows(AppendTarget(SiteFiles(str(site)), "mine"), rows(1, 2)) == AppendCounts(2, 0)
    with place(node).opened() as door:
        assert "mine" not in door.names()


def test_wrong_keys_are_told(node: Node, tmp_path: Path) -> None:
    with NodeApi(node[1]).opened() as door, pytest.raises(NotAuthenticated) as caught:
        door.names()
    assert "key_file" in caught.value.hint or caught.value.hint
    wrong = tmp_path / "wrong.key"
    wrong.write_text("x" * 30)
    with NodeApi(node[1], str(wrong)).opened() as door, pytest.raises(NotAuthenticated):
        door.names()
    with place(node, "few").opened() as door, pytest.raises(NotAllowed):
        spans_of(door, ["found"], streaming=False)
    with place(node).opened() as door, pytest.raises(UnknownName) as unknown:
        spans_of(door, ["fond"], streaming=False)
    assert unknown.value.nearest[0] == "found"
    with place(node, "few").opened() as door, pytest.raises(NotAllowed):
        all_rows(door, "found", 0, 5)
    with (
        pytest.raises(InvalidInput, match=r"no\.key") as unread,
        NodeApi(node[1], str(tmp_path / "no.key")).opened(),
    ):
        raise AssertionError
    assert unread.value.code == "source.no_key"


def test_a_node_that_stays_away_is_told_after_the_patience() -> None:
    with NodeApi("http://127.0.0.1:1", "", 300).opened() as door:
        began = time.monotonic()
        with pytest.raises(Unavailable) as caught:
            door.names()
    assert 0.25 < time.monotonic() - began < 10
    assert caught.value.code == "node.unreachable"
    assert "0.3 s" in caught.value.hint


class _Server(HTTPServer):
    answers: list[tuple[int, bytes]]


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = self.server.answers.pop(0)  # type: ignore[attr-defined]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        return


@pytest.fixture
def server() -> Iterator[_Server]:
    server = _Server(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_node_that_comes_back_is_waited_for(server: _Server) -> None:
    server.answers = [(503, b""), (429, b""), (200, b'{"node": "n", "channels": ["a"]}')]
    url = f"http://127.0.0.1:{server.server_port}"
    with NodeApi(url, "", 10_000).opened() as door:
        assert door.names() == ["a"]


def test_who_is_no_node_is_told(server: _Server) -> None:
    server.answers = [(200, b"<html>Welcome</html>"), (200, b'{"events": [{"id": 1}]}')]
    url = f"http://127.0.0.1:{server.server_port}"
    with NodeApi(url, "", 100).opened() as door:
        with pytest.raises(Corrupt) as caught:
            door.names()
        assert caught.value.code == "http.strange_answer"
        with pytest.raises(Corrupt):
            all_rows(door, "a", 0, 1)


def test_answers_that_are_too_large_are_asked_for_in_halves(node: Node, monkeypatch) -> None:
    append_rows(AppendTarget(place(node), "large"), rows(1, 40))
    monkeypatch.setattr(locations, "_MOST_ANSWER_BYTES", 3_000)
    with place(node).opened() as door:
        assert len(all_rows(door, "large", 0, 40)) == 40
    monkeypatch.setattr(locations, "_MOST_ANSWER_BYTES", 100)
    with place(node).opened() as door, pytest.raises(Corrupt, match="larger than any"):
        all_rows(door, "large", 0, 40)
