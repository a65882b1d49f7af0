"""A real FTP server for tests: pyftpdlib in a process of its own, on a free port of the loopback.
[CO-16]

A conftest takes the fixture with `from support.servers.ftp import ftp_server`.
"""

from __future__ import annotations

import importlib.util
import itertools
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rapport.core.errors import Unavailable
from support.servers.ports import free_port

USER, PASSWORD = "rapport", "let me in"
_START_SECONDS, _PAUSE_SECONDS, _STOP_SECONDS = 20.0, 0.05, 10


class LocalFtpServer:
    """A server whose files lie in `directory`; down and up again it has the same port and files.

    With a certificate and key (one PEM file) it speaks FTPS. Calls block.
    """

    def __init__(self, *, certificate: Path | None = None) -> None:
        if importlib.util.find_spec("pyftpdlib") is None:
            raise Unavailable(
                "pyftpdlib is not installed", code="testing.no_ftp", hint="pip install pyftpdlib"
            )
        self.directory = Path(tempfile.mkdtemp(prefix="rapport-ftp-"))
        self.port = free_port()
        self._certificate = certificate
        self._names = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None

    def new_folder(self) -> Path:
        """An empty folder of one test's own; its name is the path on the server."""
        folder = self.directory / f"folder{next(self._names)}"
        folder.mkdir()
        return folder

    def start(self) -> None:
        """Returns when it greets; a server that is up stays as it is."""
        if self._process is not None:
            return
        # Warnings off: the library is built on a module that Python will drop.
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "pyftpdlib", *self._options()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _look in range(int(_START_SECONDS / _PAUSE_SECONDS)):
            if self._greets():
                return
            threading.Event().wait(_PAUSE_SECONDS)
        self.stop()
        raise Unavailable("the FTP server did not start", code="testing.ftp_did_not_start")

    def stop(self) -> None:
        """Ends it and cuts all connections."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(_STOP_SECONDS)

    def remove(self) -> None:
        """Ends it for good and deletes its files."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _options(self) -> list[str]:
        options = ["--interface", "127.0.0.1", "--port", str(self.port), "--write"]
        options += ["--directory", str(self.directory), "--username", USER, "--password", PASSWORD]
        if self._certificate is not None:
            options += ["--tls", "--certfile", str(self._certificate)]
            options += ["--keyfile", str(self._certificate)]
            options += ["--tls-control-required", "--tls-data-required"]
        return options

    def _greets(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as probe:
                return probe.recv(3) == b"220"
        except OSError:
            return False


@pytest.fixture(scope="session")
def ftp_server() -> Iterator[LocalFtpServer]:
    """The server of a test run, started by the first test that asks for it."""
    server = LocalFtpServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()
