"""A real, tiny HTTP server for tests: gives one document, or misbehaves as told. [PO-2]

A conftest takes the fixture with `from support.servers.rows import rows_server`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class RowsServer:
    """Listens on a free port of the loopback; `asked` holds the headers of each request."""

    def __init__(self) -> None:
        self.body = b"[]"
        self.tag = ""
        """Sent as ETag, and answered with 304 when it comes back."""
        self.status = 200
        self.pause_after = -1
        """So many bytes of the body are sent at once, the rest only when `go_on` is set."""
        self.cut_after = -1
        """The connection ends after so many bytes of the body."""
        self.go_on = threading.Event()
        self.headers: dict[str, str] = {}
        self.asked: list[dict[str, str]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="rows-server", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where the document is."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/rows"

    def stop(self) -> None:
        """Lets go of whoever waits, and closes the port."""
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        rows = self

        class Handler(BaseHTTPRequestHandler):
            """Answers one request."""

            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                rows.asked.append({name.lower(): value for name, value in self.headers.items()})
                rows._answer(self)

            def log_message(self, *_arguments: Any) -> None:
                """Nothing is printed."""

        return Handler

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        body = self.body  # a test may set another one meanwhile
        same = bool(self.tag) and handler.headers.get("If-None-Match") == self.tag
        handler.send_response(304 if same else self.status)
        if self.tag:
            handler.send_header("ETag", self.tag)
        for name, value in self.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(0 if same else len(body)))
        handler.end_headers()
        if same:
            return
        try:
            self._send(handler, body)
        except OSError:
            return  # the other side hung up: what some tests are about

    def _send(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        sent = len(body)
        if self.cut_after >= 0:
            handler.wfile.write(body[: self.cut_after])
            return
        if self.pause_after >= 0:
            sent = self.pause_after
            handler.wfile.write(body[:sent])
            handler.wfile.flush()
            self.go_on.wait()
            body = self.body
        else:
            sent = 0
        handler.wfile.write(body[sent:])


@pytest.fixture
def rows_server() -> Iterator[RowsServer]:
    """A server of one test's own; starting it takes a millisecond."""
    server = RowsServer()
    try:
        yield server
    finally:
        server.stop()
