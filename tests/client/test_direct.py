"""Direct mode: publisher and program with nothing in between. [CH-8]"""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import pytest

from rapport.channel.agents import direct
from rapport.channel.agents.direct import MOST_BODY_BYTES
from rapport.client import DirectSink, Event, Publisher, PublisherSettings
from rapport.core.errors import InvalidInput, StoreUnavailable

pytestmark = pytest.mark.slow

QUICK = PublisherSettings(first_pause_ms=5, longest_pause_ms=20, most_events=7)


class Program:
    """Remembers what it was given; fails or refuses as told."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.failures = 0
        self.refused: set[int] = set()

    def handle(self, events: list[Event]) -> None:
        if self.failures:
            self.failures -= 1
            raise ZeroDivisionError("not now")
        values = [event.payload() for event in events]
        if self.refused & set(values):
            raise InvalidInput("that one never", code="program.no")
        self.got += values


def publisher_to(directory: Path, url: str, **more: Any) -> Publisher:
    return Publisher(directory / "outbox", url, channel="c", source="s", settings=QUICK, **more)


def post(
    url: str, body: bytes, path: str = "/channels/c/events", **headers: str
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    told = json.loads(answer.read())
    connection.close()
    return answer.status, told


def test_events_reach_the_program_in_order_also_when_its_handler_fails_for_a_while(tmp_path):
    program = Program()
    program.failures = 1
    with (
        DirectSink(tmp_path / "sink", program.handle, channel="c", token="t") as sink,
        publisher_to(tmp_path, sink.url, token="t") as publisher,
    ):
        publisher.publish_many({"type": "t", "data": n} for n in range(50))
        assert publisher.flush(15)
        assert sink.handled == 50
    assert program.got == list(range(50))


def test_an_event_that_the_program_refuses_is_kept_by_the_publisher(tmp_path):
    program = Program()
    program.refused = {3, 30}
    with (
        DirectSink(tmp_path / "sink", program.handle, channel="c") as sink,
        publisher_to(tmp_path, sink.url) as publisher,
    ):
        publisher.publish_many({"type": "t", "data": n} for n in range(40))
        assert publisher.flush(15)
        assert [one.reason.code for one in publisher.rejected()] == ["program.no"] * 2
    assert program.got == [n for n in range(40) if n not in program.refused]


def test_what_was_handled_before_a_restart_is_not_handled_again(tmp_path, monkeypatch):
    monkeypatch.setattr(direct, "_SEGMENT_BYTES", 300)
    program = Program()
    for run in range(4):
        with DirectSink(tmp_path / "sink", program.handle, channel="c") as sink:
            for number in range(10):
                event = {"id": f"{run}-{number}", "source": "s", "type": "t", "data": number}
                numbered = event | {"publisher": "p", "epoch": "1", "sequence": str(number)}
                other = event | {"publisher": "q", "epoch": str(run), "sequence": "1"}
                post(sink.url, json.dumps([numbered]).encode())
                post(sink.url, json.dumps([other | {"id": f"q{run}"}]).encode())
    assert program.got == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0]
    files = [file for file in (tmp_path / "sink").rglob("*.log")]
    assert sum(file.stat().st_size for file in files) < 2_000, "old marks are let go of"


def test_events_without_numbers_are_told_apart_by_their_id(tmp_path):
    program = Program()
    one = {"id": "1", "source": "s", "type": "t", "data": 1}
    with DirectSink(tmp_path / "sink", program.handle, channel="c") as sink:
        assert post(sink.url, json.dumps(one).encode()) == (
            200,
            {"positions": [1], "duplicates": 0},
        )
        both = json.dumps([one, one | {"id": "2"}, one | {"id": "2"}]).encode()
        assert post(sink.url, both) == (200, {"positions": [0, 2, 0], "duplicates": 2})
    assert program.got == [1, 1]


def test_strangers_and_nonsense_are_turned_away(tmp_path):
    program = Program()
    good = b'{"id":"1","source":"s","type":"t"}'
    with DirectSink(tmp_path / "sink", program.handle, channel="c", token="t") as sink:
        known = {"Authorization": "Bearer t"}
        assert post(sink.url, good)[0] == 401
        assert post(sink.url, good, Authorization="Bearer x")[0] == 401
        assert post(sink.url, good, Origin="http://evil.example", **known)[0] == 403
        assert post(sink.url, good, "/channels/d/events", **known)[0] == 404
        assert post(sink.url, b"{", **known)[0] == 400
        assert post(sink.url, b'[{"id":"1"}]', **known)[0] == 400
        assert post(sink.url, b"", **known | {"Content-Length": "99999999"})[0] == 413
        assert post(sink.url, b"", **known | {"Content-Length": "-5"})[0] == 400
        assert program.got == []
        assert post(sink.url, good, **known)[0] == 200


def test_a_sink_open_to_others_needs_a_token_and_a_directory_of_its_own(tmp_path):
    with pytest.raises(InvalidInput) as caught:
        DirectSink(tmp_path / "sink", print, channel="c", host="0.0.0.0")
    assert caught.value.code == "settings.open_door"
    with DirectSink(tmp_path / "sink", print, channel="c") as first:
        with pytest.raises(StoreUnavailable):
            DirectSink(tmp_path / "sink", print, channel="c")
        port = int(first.url.rpartition(":")[2])
        with pytest.raises(StoreUnavailable, match="cannot listen"):
            DirectSink(tmp_path / "other", print, channel="c", port=port)


def test_who_sends_too_much_is_told_so_after_sending(tmp_path):
    """Closing the connection before would look like a program that is away."""
    with DirectSink(tmp_path / "sink", Program().handle, channel="c") as sink:
        status, told = post(sink.url, b"x" * (MOST_BODY_BYTES + 1_000_000))
        assert (status, told["title"]) == (413, "input.too_large")
