"""The standard library's IMAP client with what it lacks: bounded reading, IDLE, being woken.
[CO-16]

Blocking. Only `imap_mailbox.py` uses it.
"""

from __future__ import annotations

import imaplib
import select
import socket
import ssl
from contextlib import suppress
from typing import Any

_LONGEST_LINE = 10_000_000
"""A search answers with one line: eight bytes for each mail it finds."""
_READ_BYTES = 65_536


class _BoundedImap(imaplib.IMAP4):
    """Reads from the socket itself, so that it knows what has arrived and waits for no more."""

    def __init__(self, *arguments: Any, longest_literal: int, **options: Any) -> None:
        self._received = bytearray()
        self._longest_literal = longest_literal
        super().__init__(*arguments, **options)

    def readline(self) -> bytes:
        """One line with its end; raises `abort` when the server is gone or writes without end."""
        while (end := self._received.find(b"\n")) < 0:
            if len(self._received) > _LONGEST_LINE:
                raise self.abort("the server wrote a line without end")
            self._receive()
        return self._taken(end + 1)

    def read(self, size: int) -> bytes:
        """So many bytes; more than was asked for is refused before it is read."""
        if size > self._longest_literal:
            raise self.abort("the server sent more than was asked for")
        while len(self._received) < size:
            self._receive()
        return self._taken(size)

    def idle(self, seconds: float) -> None:
        """Waits until the server says anything, or so long; the connection can be used after."""
        tag = self._new_tag()
        self.send(tag + b" IDLE\r\n")
        while not (line := self.readline()).startswith(b"+"):
            if line.startswith(tag):
                raise self.error("the server refused to wait")
        self._wait(seconds)
        self.send(b"DONE\r\n")
        while not self.readline().startswith(tag):
            continue  # what it says meanwhile is found by the next look

    def interrupt(self) -> None:
        """From another thread: whoever reads gets `abort`."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def starttls(self, ssl_context: ssl.SSLContext | None = None) -> Any:
        """Encrypts; what came in the clear after the server's word is not its own: refused."""
        answer = super().starttls(ssl_context)
        if self._received:
            raise self.abort("somebody wrote into the connection before it was encrypted")
        return answer

    def _wait(self, seconds: float) -> None:
        if self._received or (isinstance(self.sock, ssl.SSLSocket) and self.sock.pending()):
            return
        waiting = select.poll()
        waiting.register(self.sock, select.POLLIN)
        waiting.poll(seconds * 1_000)

    def _receive(self) -> None:
        arrived = self.sock.recv(_READ_BYTES)
        if not arrived:
            raise self.abort("the server closed the connection")
        self._received += arrived

    def _taken(self, count: int) -> bytes:
        taken = bytes(self._received[:count])
        del self._received[:count]
        return taken


class PlainConnection(_BoundedImap):
    """In the clear, or encrypted later by `starttls`."""


class TlsConnection(_BoundedImap, imaplib.IMAP4_SSL):
    """Encrypted from the first byte."""
