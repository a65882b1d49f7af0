"""Readers that stop reading: the node's memory stays bounded, nobody else waits for them, and they
go on where they stopped. [CH-12, CH-14]
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from support.faults.crowd import CHANNEL, post
from support.faults.rounds import wait_until
from support.processes.node import NodeProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks into /proc"),
]

SITE = '[site]\nname = "lab"\n\n[concepts.sample.attributes]\nmass = "number"\n'
EVENT_BYTES, BATCH, WARM_UP, MORE = 10_000, 100, 20, 60
SLOW_SOCKETS, SLOW_STREAMS, SLOW_POLLS = 8, 8, 8
MOST_GROWTH_MB = 40
"""60 MB are published while the slow ones sleep; all 24 of them together would need 1,440."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    (tmp_path / "site.toml").write_text(SITE)
    with NodeProcess(tmp_path) as node:
        node.start()
        yield node


def url_of(node: NodeProcess) -> str:
    assert node.doors is not None
    return f"http://{node.doors[0]}:{node.doors[1]}"


def memory_mb(node: NodeProcess) -> float:
    status = Path(f"/proc/{node.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1_024


def publish(node: NodeProcess, number: int) -> None:
    events = [
        {"source": "s", "type": "t", "id": f"{number}-{n}", "data": "x" * EVENT_BYTES}
        for n in range(BATCH)
    ]
    assert post(url_of(node), f"/channels/{CHANNEL}/events", events) is not None


def slow_socket(node: NodeProcess, stack: ExitStack) -> ClientConnection:
    """Subscribes, reads one frame and stops: what comes then fills the connection and no more."""
    url = url_of(node).replace("http", "ws")
    opened = stack.enter_context(
        connect(
            f"{url}/channels/{CHANNEL}/socket",
            max_queue=1,
            max_size=None,
            ping_interval=None,
            close_timeout=0.1,
        )
    )
    opened.send(json.dumps({"subscribe": {"id": "a", "max_batch": BATCH}}))
    assert "subscribed" in json.loads(opened.recv(timeout=20))
    return opened


def slow_request(node: NodeProcess, path: str, method: str = "GET", body: bytes = b"") -> Any:
    """Sends a request and never reads the answer."""
    assert node.doors is not None
    opened = socket.create_connection(node.doors, timeout=20)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    opened.sendall(head.encode() + body)
    return opened


class QuickReader:
    """A reader beside them; counts what it gets."""

    def __init__(self, url: str) -> None:
        self._url, self.read, self._token = url, 0, ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asked: dict[str, Any] = {"query": {}, "max_messages": 500, "wait_ms": 200}
        while not self._stop.is_set():
            batch = post(self._url, f"/channels/{CHANNEL}/requests", asked)
            if batch is None:
                continue
            self.read += len(batch["events"])
            if batch["next_token"] is None:
                asked = {"token": batch["current_token"], "seen": True, "wait_ms": 200}
            else:
                asked = {"token": batch["next_token"]}

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def positions_of(opened: ClientConnection, until: int) -> tuple[list[int], str]:
    """What a socket gives from now on up to a position, and the last token."""
    found: list[int] = []
    while True:
        frame = json.loads(opened.recv(timeout=30))
        found += [event["position"] for event in frame["batch"]]
        if found and found[-1] >= until:
            return found, frame["next_token"]


def test_readers_that_stop_reading_cost_a_bounded_memory_and_hold_up_nobody(
    node: NodeProcess,
) -> None:
    with ExitStack() as stack:
        for number in range(WARM_UP):
            publish(node, number)
        sockets = [slow_socket(node, stack) for _ in range(SLOW_SOCKETS)]
        stream = f"/channels/{CHANNEL}/stream"
        poll = f"/channels/{CHANNEL}/events?limit=1000"
        for _ in range(SLOW_STREAMS):
            stack.callback(slow_request(node, stream).close)
        for _ in range(SLOW_POLLS):
            stack.callback(slow_request(node, poll).close)
        quick = QuickReader(url_of(node))
        stack.callback(quick.close)
        assert wait_until(lambda: quick.read >= WARM_UP * BATCH, 30)
        before = memory_mb(node)
        for number in range(WARM_UP, WARM_UP + MORE):
            publish(node, number)
        last = (WARM_UP + MORE) * BATCH
        assert wait_until(lambda: quick.read >= last, 30), "others wait for those who sleep"
        grown = memory_mb(node) - before
        assert grown < MOST_GROWTH_MB, f"{grown:.0f} MB more"
        assert quick.read == last
        found, _token = positions_of(sockets[0], last)
        assert found == list(range(1, last + 1)), "the sleeper goes on where it stopped"
        print(f"{before:.0f} MB before, {grown:+.0f} MB after {MORE} MB published")


def test_a_reader_cut_off_in_its_sleep_goes_on_by_its_token_without_loss(node: NodeProcess) -> None:
    with ExitStack() as stack:
        for number in range(5):
            publish(node, number)
        opened = slow_socket(node, stack)
        first = json.loads(opened.recv(timeout=20))
        for number in range(5, 15):
            publish(node, number)
        opened.socket.shutdown(socket.SHUT_RDWR)  # what lay in its buffers is gone with it
        url = url_of(node).replace("http", "ws")
        again = stack.enter_context(
            connect(f"{url}/channels/{CHANNEL}/socket", max_size=None, ping_interval=None)
        )
        again.send(json.dumps({"subscribe": {"id": "a", "token": first["next_token"]}}))
        assert "subscribed" in json.loads(again.recv(timeout=20))
        found, _token = positions_of(again, 15 * BATCH)
        seen = [event["position"] for event in first["batch"]]
        assert seen + found == list(range(1, 15 * BATCH + 1))


def test_requests_that_never_come_to_an_end_hold_up_nobody(node: NodeProcess) -> None:
    assert node.doors is not None
    with ExitStack() as stack:
        for _ in range(50):
            opened = stack.enter_context(socket.create_connection(node.doors, timeout=20))
            opened.sendall(b"POST /channels/lab/events HTTP/1.1\r\nHost: localhost\r\nContent-")
        publish(node, 0)
        connection = http.client.HTTPConnection(*node.doors, timeout=20)
        connection.request("GET", "/readyz")
        assert connection.getresponse().status == 200
        connection.close()
