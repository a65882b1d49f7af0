"""`rapport context broker` as a child process, to be killed or stopped while it works. [CX-3]"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from rapport.core.errors import Unavailable
from rapport.transport.addresses import format_address, parse_address
from rapport.transport.base import Address

_UP = re.compile(r"(?:context broker|ensemble node) is up: (\S+)")
_START_SECONDS, _STOP_SECONDS = 60, 30


class BrokerProcess:
    """A broker on the loopback; started again it has the same address and directory.

    Calls block: from an event loop use a thread. As a context manager it leaves no process behind.
    """

    def __init__(
        self,
        *,
        join: tuple[Address, ...] = (),
        directory: Path | None = None,
        keys: Path | None = None,
        options: tuple[str, ...] = (),
        listen: Address = ("127.0.0.1", 0),
        inside: tuple[str, ...] = (),
        program: tuple[str, ...] = ("rapport.cli.main", "context", "broker"),
    ) -> None:
        """`inside`: the words of a command that runs it elsewhere, such as in a network namespace;
        `program`: a module, and its first words, that stands in for `rapport context broker`.
        """
        self._join, self._directory, self._keys = join, directory, keys
        self._options, self._inside, self._program = options, inside, program
        self._process: subprocess.Popen[str] | None = None
        self.address = listen
        """Where it listens; with port 0 a free one from the first start on."""
        self._is_up = False
        self.told: list[str] = []
        """What it wrote to stderr."""

    def start(self) -> Self:
        """Returns when it hears; raises Unavailable when it ends before."""
        self._is_up = False
        process = self._process = subprocess.Popen(
            self._command(),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NO_COLOR": "1"},
        )
        ready = threading.Event()
        self._listener = threading.Thread(target=self._listen, args=(process, ready), daemon=True)
        self._listener.start()
        if not ready.wait(_START_SECONDS) or not self._is_up:
            self.kill()
            raise Unavailable("".join(self.told[-20:]), code="testing.broker_did_not_start")
        return self

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None, "start() comes first"
        return self._process.pid

    def is_running(self) -> bool:
        """Whether it was started and did not end."""
        return self._process is not None and self._process.poll() is None

    def say(self, line: str) -> None:
        """Writes a line to its stdin, for programs that listen there."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def kill(self) -> int:
        """SIGKILL: nothing is finished; returns the exit code."""
        assert self._process is not None
        self._process.kill()
        return self._ended()

    def stop(self) -> int:
        """SIGTERM: it leaves in order; returns the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._ended()

    def __enter__(self) -> Self:
        return self.start() if self._process is None else self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def _command(self) -> list[str]:
        command = [*self._inside, sys.executable, "-m", *self._program]
        command += ["--listen", format_address(self.address), *self._options]
        for other in self._join:
            command += ["--join", format_address(other)]
        if self._directory is not None:
            command += ["--directory", str(self._directory)]
        if self._keys is not None:
            command += ["--keys", str(self._keys)]
        return command

    def _ended(self) -> int:
        process = self._process
        assert process is not None
        assert process.stderr is not None
        code = process.wait(timeout=_STOP_SECONDS)
        self._listener.join()
        process.stderr.close()
        assert process.stdin is not None
        process.stdin.close()
        return code

    def _listen(self, process: subprocess.Popen[str], ready: threading.Event) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.told.append(line)
            if found := _UP.search(line):
                self.address = parse_address(found[1])
                self._is_up = True
                ready.set()
        ready.set()
