"""`rapport up` as a child process, to be killed or stopped while it works. [UX-5]"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

from rapport.core.errors import Unavailable
from rapport.kernel.clock import SystemClock

_ADDRESS = re.compile(r"rapport is up: http://([\d.]+):(\d+)")
_START_SECONDS, _STOP_SECONDS, _LAST_LINES_SECONDS = 60, 30, 10


class NodeProcess:
    """A node on a free port of the loopback; started again it goes on with the same data.

    `doors` is where it listens now, None while it is down; `told` is all it wrote to stderr. Calls
    block: from an event loop use a thread. As a context manager it leaves no process behind.
    """

    def __init__(
        self, site: Path, *, program: Path | None = None, flags: tuple[str, ...] = ()
    ) -> None:
        """`program`: a script that stands in for `rapport up` and says as it does where it
        listens; it is given the site. `flags`: more of them for `rapport up`.
        """
        self._site, self._clock = site, SystemClock()
        up = [sys.executable, "-m", "rapport.cli.main", "up", *flags, "--port", "0", "--site"]
        self._command = [*up, str(site)] if program is None else _command_of(program, site)
        self._process: subprocess.Popen[str] | None = None
        self.doors: tuple[str, int] | None = None
        self.told: list[str] = []

    def __enter__(self) -> NodeProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def start(self) -> None:
        """Returns when its doors are open; raises Unavailable when it ends before."""
        process = self._process = subprocess.Popen(
            self._command,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NO_COLOR": "1"},
        )
        ready = threading.Event()
        self._listener = threading.Thread(target=self._listen, args=(process, ready), daemon=True)
        self._listener.start()
        if not ready.wait(_START_SECONDS) or self.doors is None:
            self.kill()
            raise Unavailable("".join(self.told[-20:]), code="testing.node_did_not_start")

    @property
    def pid(self) -> int:
        """Its process."""
        return self._running().pid

    def kill(self) -> int:
        """SIGKILL: nothing is finished; returns the exit code."""
        self.doors = None
        process = self._running()
        process.kill()
        return self._ended(process)

    def stop(self) -> tuple[int, float]:
        """SIGTERM: exit code, and the seconds it took."""
        self.doors = None
        began_ns = self._clock.steady_ns()
        process = self._running()
        process.terminate()
        try:
            return self._ended(process), (self._clock.steady_ns() - began_ns) / 1e9
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def wait(self) -> int:
        """Returns its exit code when it has ended by itself."""
        self.doors = None
        return self._ended(self._running())

    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None, "start() comes first"
        return self._process

    def _ended(self, process: subprocess.Popen[str]) -> int:
        code = process.wait(timeout=_STOP_SECONDS)
        # A child that outlives a killed node (its pipeline) keeps the pipe open.
        self._listener.join(timeout=_LAST_LINES_SECONDS)
        if not self._listener.is_alive():
            assert process.stderr is not None
            process.stderr.close()
        return code

    def _listen(self, process: subprocess.Popen[str], ready: threading.Event) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.told.append(line)
            if found := _ADDRESS.search(line):
                self.doors = (found[1], int(found[2]))
                ready.set()
        ready.set()


def _command_of(program: Path, site: Path) -> list[str]:
    return [sys.executable, str(program), str(site)]
