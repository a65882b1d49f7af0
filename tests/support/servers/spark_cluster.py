"""A real Spark cluster on loopback for tests: a master, workers and a Connect server as processes
that can be killed. [PI-10, PI-11]
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from rapport.core.errors import Unavailable
from rapport.kernel.java import find_java, java_home
from support.servers.spark import QUICK_JAVA

_START_SECONDS, _END_SECONDS = 90, 20
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"


class JavaProcess:
    """One program of Spark, ready when it has written what it is waited for.

    `told` is all it wrote; `found` what the pattern's group matched.
    """

    def __init__(self, arguments: list[str], environment: dict[str, str], ready: str) -> None:
        """Raises Unavailable when it ends or is not ready in time."""
        self._ready, self._pattern = threading.Event(), re.compile(ready)
        self.found, self.told = "", list[str]()
        # A session of its own: whatever it starts can be ended with it.
        self._process = subprocess.Popen(
            arguments,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        if not self._ready.wait(_START_SECONDS) or not self.found:
            self.kill()
            raise Unavailable("".join(self.told[-30:]), code="testing.spark_did_not_start")

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL for it and what it started; returns when it is gone."""
        for pid in [*descendants(self.pid), self.pid]:
            kill_process(pid)
        self._process.wait(timeout=_END_SECONDS)
        self._listener.join(timeout=_END_SECONDS)
        if self._process.stderr is not None:
            self._process.stderr.close()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.told.append(line)
            match = self._pattern.search(line)
            if match is not None and not self.found:
                self.found = match[match.lastindex or 0]
                self._ready.set()
        self._ready.set()


class SparkCluster:
    """A master and workers of one core each, on free ports of the loopback.

    As a context manager it leaves neither process nor directory behind.
    """

    def __init__(self, *, workers: int = 2, memory: str = "600m") -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="rapport-cluster-"))
        self._memory, self._wanted = memory, workers
        self._environment = _environment(self._directory)
        self.master: JavaProcess | None = None
        self.workers: list[JavaProcess] = []

    @property
    def url(self) -> str:
        """The address of the master."""
        assert self.master is not None, "the cluster is not up"
        return self.master.found

    def __enter__(self) -> Self:
        options = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        started = r"Starting Spark master at (spark://[\d.]+:\d+)"
        try:
            self.master = self._start(_MASTER, options, started)
            for _number in range(self._wanted):
                self.add_worker()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def add_worker(self) -> JavaProcess:
        """One more; returns when the master knows it."""
        work = self._directory / f"worker-{len(self.workers)}"
        options = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0", "--cores", "1"]
        options += ["--memory", self._memory, "--work-dir", str(work), self.url]
        self.workers.append(self._start(_WORKER, options, "(Successfully registered with master)"))
        return self.workers[-1]

    def executors(self) -> list[int]:
        """The Java processes that workers have started for an application."""
        own = {worker.pid for worker in self.workers}
        return [pid for parent in own for pid in children_of(parent)]

    def python_workers(self) -> list[int]:
        """The Python processes in which tasks run."""
        daemons = [pid for one in self.executors() for pid in children_of(one)]
        return [pid for daemon in daemons for pid in children_of(daemon)]

    def _start(self, program: str, options: list[str], ready: str) -> JavaProcess:
        return JavaProcess(
            [str(spark_home() / "bin" / "spark-class"), program, *options],
            self._environment,
            ready,
        )

    def _end(self) -> None:
        for process in (*self.workers, *filter(None, [self.master])):
            process.kill()
        shutil.rmtree(self._directory, ignore_errors=True)


class ConnectServer:
    """A Spark Connect server with a local Spark behind it, on a free port of the loopback."""

    def __init__(self, *, master: str = "local[2]") -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="rapport-connect-"))
        self._master = master
        self._process: JavaProcess | None = None

    @property
    def url(self) -> str:
        """Where thin clients reach it."""
        assert self._process is not None, "the server is not up"
        return f"sc://127.0.0.1:{self._process.found}"

    def __enter__(self) -> Self:
        options = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": (self._directory / "warehouse").as_uri(),
        }
        given = [part for name, value in options.items() for part in ("--conf", f"{name}={value}")]
        arguments = [str(spark_home() / "bin" / "spark-submit"), "--class", _CONNECT]
        arguments += ["--master", self._master, "--driver-memory", "512m"]
        arguments += ["--driver-java-options", QUICK_JAVA, *given, "spark-internal"]
        started = r"Spark Connect server started at:? .*?:(\d+)"
        environment = _environment(self._directory) | {"SPARK_DAEMON_MEMORY": "600m"}
        self._process = JavaProcess(arguments, environment, started)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.kill()
        shutil.rmtree(self._directory, ignore_errors=True)


def spark_home() -> Path:
    """Where pyspark has its programs."""
    import importlib.util

    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise Unavailable("there is no pyspark", code="testing.no_spark")
    return Path(found.origin).parent


def _environment(directory: Path) -> dict[str, str]:
    """What a machine of a cluster has: a Java, and this Python with the package."""
    home = java_home(find_java(os.environ), directory)
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(directory),
        "JAVA_HOME": str(home),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "SPARK_LOG_DIR": str(directory),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_NO_DAEMONIZE": "1",
    }


def children_of(parent: int) -> list[int]:
    """The processes that this one has started and that still run, oldest first."""
    return sorted(pid for pid, other in _parents() if other == parent)


def descendants(pid: int) -> list[int]:
    """Children, and theirs, the youngest first."""
    found = [one for child in children_of(pid) for one in (child, *descendants(child))]
    return found[::-1]


def kill_process(pid: int) -> None:
    """SIGKILL; one that has gone already is no fault."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            # The name in brackets may hold anything: what counts stands behind the last one.
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                yield int(entry.name), int(parent)
