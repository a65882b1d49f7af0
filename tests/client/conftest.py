"""A small HTTP sink that answers as told, for what a real node does seldom."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

Answer = tuple[int, dict[str, str], Any]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # publishers do hang up
            super().handle_error(request, client_address)


class TellingSink:
    """Listens on loopback; `answer` decides about each batch, `stored` has what was taken."""

    def __init__(self) -> None:
        self.stored: list[dict[str, Any]] = []
        self.requests: list[list[dict[str, Any]]] = []
        self.tokens: list[str] = []
        self.answer: Callable[[list[dict[str, Any]]], Answer | None] = lambda _batch: None
        self.server = _Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()

    def take(self, batch: list[dict[str, Any]], token: str) -> Answer:
        self.requests.append(batch)
        self.tokens.append(token)
        told = self.answer(batch)
        if told is not None:
            return told
        self.stored += batch
        return 200, {}, {"positions": [1] * len(batch), "duplicates": 0}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        sink = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                try:
                    batch = json.loads(body)
                except ValueError:
                    self.reply(400, {}, {"title": "event.bad_data", "detail": "not JSON"})
                    return
                self.reply(*sink.take(batch, self.headers.get("Authorization", "")))

            def reply(self, status: int, headers: dict[str, str], body: Any) -> None:
                raw = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(raw))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, format: str, *args: Any) -> None:
                return

        return Handler


@pytest.fixture
def sink() -> Iterator[TellingSink]:
    telling = TellingSink()
    yield telling
    telling.close()
