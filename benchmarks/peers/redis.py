"""Redis Streams with `appendfsync always`, when `redis-server` is installed. [CH-13]

The client speaks the protocol by itself: pipelined XADD, all answers awaited.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers.peer import BATCH
from rapport.core.codec import encode_block
from rapport.core.event import Event

_START_TRIES, _PAUSE_SECONDS = 200, 0.05


class RedisPeer:
    """See Peer. No duplicate check and no index of ids: less work than ours."""

    how = "Redis Streams, appendfsync always, pipelined XADD (no duplicate check)"

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = _connect(path)
        self._answers = self._socket.makefile("rb")

    def another(self) -> RedisPeer:
        """One more connection to the same server."""
        return RedisPeer(self._path)

    def call(self, commands: Sequence[Sequence[str | bytes]]) -> list[Any]:
        """Commands in one pipeline, with all their answers."""
        self._socket.sendall(b"".join(_command(*command) for command in commands))
        return [_read(self._answers) for _ in commands]

    def publish(self, events: list[Event]) -> None:
        """One pipeline; Redis answers after the sync."""
        self._socket.sendall(
            b"".join(_command("XADD", "bench", "*", "e", encode_block([event])) for event in events)
        )
        for _event in events:
            _read(self._answers)

    def read_all(self) -> int:
        """By XRANGE, 1,000 entries a call."""
        found, after = 0, "-"
        while True:
            self._socket.sendall(_command("XRANGE", "bench", after, "+", "COUNT", str(BATCH)))
            entries = _read(self._answers)
            if not entries:
                return found
            found += len(entries)
            after = "(" + entries[-1][0].decode()

    def close(self) -> None:
        """Hangs up."""
        self._answers.close()
        self._socket.close()


@contextmanager
def redis_peer() -> Iterator[RedisPeer | None]:
    """A server of its own; None when there is no redis-server."""
    program = shutil.which("redis-server")
    if program is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="rapport-redis-") as directory:
        place = str(Path(directory) / "socket")
        durable = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
        process = subprocess.Popen(
            [program, "--port", "0", "--unixsocket", place, "--dir", directory, *durable],
            stdout=subprocess.DEVNULL,
        )
        try:
            peer = RedisPeer(place)
            try:
                yield peer
            finally:
                peer.close()
        finally:
            process.terminate()
            process.wait()


def _connect(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    for number in range(_START_TRIES):
        try:
            connection.connect(path)
            return connection
        except OSError:
            if number == _START_TRIES - 1:
                raise
            threading.Event().wait(_PAUSE_SECONDS)
    raise AssertionError("unreachable")


def _command(*parts: str | bytes) -> bytes:
    raw = [part.encode() if isinstance(part, str) else part for part in parts]
    return b"*%d\r\n" % len(raw) + b"".join(b"$%d\r\n%b\r\n" % (len(one), one) for one in raw)


def _read(answers: Any) -> Any:
    line = answers.readline()
    kind, rest = line[:1], line[1:-2]
    if kind == b"$":
        size = int(rest)
        return None if size < 0 else answers.read(size + 2)[:-2]
    if kind == b"*":
        return [_read(answers) for _ in range(max(int(rest), 0))]
    if kind == b"-":
        raise RuntimeError(rest.decode())
    return rest
