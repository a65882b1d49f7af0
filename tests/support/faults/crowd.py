"""Publishers and readers of a node that is killed again and again. For tests. [CH-3, CH-5, CH-6,
CH-7, CH-9, CH-12]

Each notes what it was promised or what it has got; the test compares that with the log.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
from itertools import count
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from rapport.client import Listener, ListenerSettings, Publisher, PublisherSettings
from rapport.kernel.clock import Chance

CHANNEL = "lab"
_PAUSE_SECONDS = 0.02
_BETWEEN_SECONDS = 0.03
_MOST_AT_ONCE = 50


def post(url: str, path: str, body: Any) -> Any:
    """What the node answered, None when it did not (or not with 200)."""
    place = urlsplit(url)
    assert place.hostname is not None
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=10)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        raw = answer.read()
        return json.loads(raw) if answer.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class OutboxUser:
    """A program with the publisher agent: what `publish` accepted counts as acknowledged."""

    def __init__(self, name: str, url: str, outbox: Path, chance: Chance) -> None:
        self._name, self._chance = name, chance
        settings = PublisherSettings(
            first_pause_ms=20, longest_pause_ms=100, most_events=30, segment_bytes=20_000
        )
        self.publisher = Publisher(outbox, url, channel=CHANNEL, source=name, settings=settings)
        self.acknowledged: list[str] = []

    def run(self, stop: threading.Event) -> None:
        """See Worker."""
        for number in count(len(self.acknowledged)):
            many = [
                {"type": "t", "id": f"{self._name}-{number}-{place}", "data": {"n": number}}
                for place in range(self._chance.randint(1, 4))
            ]
            self.acknowledged += self.publisher.publish_many(many)
            if stop.wait(_BETWEEN_SECONDS):
                return


class PlainUser:
    """A small device with ids of its own: asks again what got no answer, or gives it up by
    chance.
    """

    def __init__(self, name: str, url: str, chance: Chance) -> None:
        self._name, self._url, self._chance = name, url, chance
        self._numbers = count()
        self.acknowledged: list[str] = []

    def run(self, stop: threading.Event) -> None:
        """See Worker."""
        while not stop.wait(_BETWEEN_SECONDS):
            number = next(self._numbers)
            ids = [f"{self._name}-{number}-{n}" for n in range(self._chance.randint(1, 4))]
            events = [{"source": self._name, "type": "t", "id": id, "data": {}} for id in ids]
            while not stop.is_set():
                if post(self._url, f"/channels/{CHANNEL}/events", events) is not None:
                    self.acknowledged += ids
                    break
                if self._chance.randint(0, 3) == 0:
                    break
                stop.wait(_PAUSE_SECONDS)


class TokenReader:
    """Reads by query and token and keeps what it got together with the token, in a file of its own:
    one line is one set, so results and place are durable together or not at all.

    Now and then it crashes: before it keeps a set, in the middle of a line, or after it. And it
    asks for old sets again: they must be what they were.
    """

    def __init__(self, url: str, file: Path, chance: Chance) -> None:
        self._url, self._file, self._chance = url, file, chance
        self.crashes = self.compared = 0
        self.sets: list[dict[str, Any]] = []
        self._file.touch()

    @property
    def found(self) -> list[str]:
        """Ids, in the order they were kept."""
        return [id for one in self.sets for id in one["ids"]]

    def run(self, stop: threading.Event) -> None:
        """See Worker."""
        self._recover()
        while not stop.is_set():
            if self._chance.randint(0, 9) == 0:
                self._compare()
            if not self._step():
                stop.wait(_PAUSE_SECONDS)

    def _step(self) -> bool:
        """Asks once and keeps what came; whether to go on at once."""
        last = self.sets[-1] if self.sets else None
        if last is None:
            asked: dict[str, Any] = {"query": {}, "max_messages": _MOST_AT_ONCE}
        elif last["next"] is None:
            asked = {"token": last["token"], "seen": True, "wait_ms": 100}
        else:
            asked = {"token": last["next"]}
        batch = self._request(asked)
        if batch is None:
            return False
        if asked.get("seen"):
            last = {**last, "next": batch["next_token"]} if last else {}
            self.sets[-1] = last  # kept with the next set; after a crash it is asked for again
            return batch["next_token"] is not None
        assert not batch["gone"]
        kept = {
            "token": batch["current_token"],
            "ids": [event["id"] for event in batch["events"]],
            "next": batch["next_token"],
        }
        if not kept["ids"]:
            return False
        self._keep(kept)
        return True

    def _request(self, asked: dict[str, Any]) -> Any:
        return post(self._url, f"/channels/{CHANNEL}/requests", asked)

    def _keep(self, one: dict[str, Any]) -> None:
        line = json.dumps(one).encode() + b"\n"
        crash = self._chance.randint(0, 11)
        if crash != 0:
            cut = self._chance.randint(1, len(line) - 1) if crash == 1 else len(line)
            with self._file.open("ab") as file:
                file.write(line[:cut])
                file.flush()
                os.fsync(file.fileno())
        if crash <= 2:
            self.crashes += 1
            self._recover()
        else:
            self.sets.append(one)

    def _recover(self) -> None:
        """Begins anew with what the file says; half a line is cut off."""
        raw = self._file.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        if whole != raw:
            with self._file.open("r+b") as file:
                file.truncate(len(whole))
        self.sets = [json.loads(line) for line in whole.splitlines()]

    def _compare(self) -> None:
        if not self.sets:
            return
        old = self.sets[self._chance.randint(0, len(self.sets) - 1)]
        batch = self._request({"token": old["token"]})
        if batch is not None:
            self.compared += 1
            assert [event["id"] for event in batch["events"]] == old["ids"], "another set came"


class SocketReader:
    """Reads over a WebSocket and begins again, by token or by position, when the node has gone."""

    def __init__(self, url: str, by: Literal["token", "position"]) -> None:
        self._url = f"{url.replace('http', 'ws', 1)}/channels/{CHANNEL}/socket"
        self._by = by
        self._token, self._position = "", 0
        self.found: list[str] = []
        self.connections = 0
        self.broken: Exception | None = None
        """How a connection last ended."""

    def run(self, stop: threading.Event) -> None:
        """See Worker."""
        while not stop.is_set():
            try:
                with connect(self._url, open_timeout=5, close_timeout=1) as socket:
                    self.connections += 1
                    socket.send(json.dumps({"subscribe": self._subscription()}))
                    self._follow(socket, stop)
            except (OSError, EOFError, WebSocketException) as error:
                self.broken = error
                stop.wait(_PAUSE_SECONDS)

    def _follow(self, socket: ClientConnection, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                text = socket.recv(timeout=0.1)
            except TimeoutError:
                continue  # nothing new
            self._take(text)

    def _subscription(self) -> dict[str, Any]:
        wanted: dict[str, Any] = {"id": "r", "max_batch": _MOST_AT_ONCE}
        if self._by == "token" and self._token:
            return {**wanted, "token": self._token}
        return {**wanted, "after": self._position}

    def _take(self, text: str | bytes) -> None:
        frame = json.loads(text)
        assert "error" not in frame, frame
        if "batch" in frame:
            self.found += [event["id"] for event in frame["batch"]]
            self._token, self._position = frame["next_token"], frame["position"]


class ListeningProgram:
    """The listener agent, pulling; closed and opened again on its directory with each run."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url, self._directory = url, directory
        self.found: list[str] = []

    def run(self, stop: threading.Event) -> None:
        """See Worker."""
        settings = ListenerSettings(
            batch_events=_MOST_AT_ONCE, first_pause_ms=20, longest_pause_ms=100, wait_seconds=0.3
        )
        with Listener(self._url, CHANNEL, directory=self._directory, settings=settings) as listener:
            while not stop.is_set():
                pulled = listener.pull(_MOST_AT_ONCE, timeout=0.1)
                self.found += [received.event.id for received in pulled]
