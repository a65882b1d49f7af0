"""Machines that are none: network namespaces on one switch, with real loss and real cuts. [CX-4,
CX-5]

Only for root on Linux; `why_not` says what is missing. Loss is done in the kernel by a filter of
four instructions on each port of the switch, so that programs run as they are.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from types import TracebackType
from typing import Self

from rapport.core.errors import Unavailable

_WHERE = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
"""Administrators' programs are not on everybody's path."""
_TC = which("tc", path=_WHERE) or "tc"
_NEW_NETWORK = 0x40000000
_DROP, _PASS, _RANDOM = 2, 0, 0xFFFFF038
"""What the filter returns, and where a classic BPF program finds a random number."""


def why_not() -> str:
    """Why there are no namespaces here; empty where there are."""
    if os.name != "posix" or os.geteuid() != 0:
        return "only root makes network namespaces"
    missing = [name for name in ("ip", "tc") if which(name, path=_WHERE) is None]
    if missing:
        return f"there is no {' and no '.join(missing)}"
    try:
        with Machines(2, name="probe") as machines:
            machines.lose(0.5)
    except Unavailable as error:
        return f"namespaces, bridges or filters are not allowed: {error.message}"
    return ""


class Machines:
    """`count` namespaces, each with an address on one network: 10.77.0.1 and on.

    Nothing of it is seen outside: the switch is in a namespace of its own.
    """

    def __init__(self, count: int, *, name: str = "machine") -> None:
        self.count = count
        self._name = f"rapport-{name}-{os.getpid()}"
        self._switch = f"{self._name}-switch"

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # With its namespace each interface goes; what was not made need not go.
        for name in [self.name(number) for number in range(self.count)] + [self._switch]:
            if _path(name).exists():
                _run("ip", "netns", "delete", name)

    def name(self, number: int) -> str:
        """Of the namespace."""
        return f"{self._name}-{number}"

    def host(self, number: int) -> str:
        """Its address."""
        return f"10.77.0.{number + 1}"

    def inside(self, number: int) -> tuple[str, ...]:
        """The words before a command that is to run there."""
        return ("ip", "netns", "exec", self.name(number))

    @contextmanager
    def entered(self, number: int) -> Iterator[None]:
        """Sockets that this thread opens meanwhile are there, and stay there."""
        with Path("/proc/thread-self/ns/net").open() as home, _path(self.name(number)).open() as it:
            _enter(it.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())

    def lose(self, share: float) -> None:
        """Each packet from any of them is lost with this probability."""
        least = min(int((1 - share) * 0x1_0000_0000), 0xFFFF_FFFF)
        program = f"4,32 0 0 {_RANDOM},53 0 1 {least},6 0 0 {_DROP},6 0 0 {_PASS}"
        for number in range(self.count):
            port = f"port{number}"
            _run("ip", "netns", "exec", self._switch, _TC, "filter", "del", "dev", port, "ingress")
            if share:
                filtering = (_TC, "filter", "add", "dev", port, "ingress")
                bytecode = ("bpf", "direct-action", "bytecode", program)
                _run("ip", "netns", "exec", self._switch, *filtering, *bytecode)

    def cut(self, *groups: Sequence[int]) -> None:
        """Each group of at most two is on a switch of its own."""
        for bridge, group in zip(("one", "two"), groups, strict=True):
            for number in group:
                self._on_switch("link", "set", f"port{number}", "master", bridge)

    def heal(self) -> None:
        """All on one switch again."""
        for number in range(self.count):
            self._on_switch("link", "set", f"port{number}", "master", "one")

    def _build(self) -> None:
        _run("ip", "netns", "add", self._switch)
        for bridge in ("one", "two"):
            self._on_switch("link", "add", bridge, "type", "bridge", "forward_delay", "0")
            self._on_switch("link", "set", bridge, "up")
        for number in range(self.count):
            self._add(number)

    def _add(self, number: int) -> None:
        name, port = self.name(number), f"port{number}"
        _run("ip", "netns", "add", name)
        pair = ("type", "veth", "peer", "name", "eth0", "netns", name)
        self._on_switch("link", "add", port, *pair)
        self._on_switch("link", "set", port, "master", "one", "up")
        tc = (_TC, "qdisc", "add", "dev", port, "clsact")
        _run("ip", "netns", "exec", self._switch, *tc)
        _run("ip", "-n", name, "address", "add", f"{self.host(number)}/24", "dev", "eth0")
        _run("ip", "-n", name, "link", "set", "eth0", "up")
        _run("ip", "-n", name, "link", "set", "lo", "up")

    def _on_switch(self, *words: str) -> None:
        _run("ip", "-n", self._switch, *words)


def _path(name: str) -> Path:
    return Path("/run/netns", name)


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _NEW_NETWORK) != 0:
        raise Unavailable(os.strerror(ctypes.get_errno()), code="testing.no_namespace")


def _run(*words: str) -> None:
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise Unavailable(f"{' '.join(words)}: {ended.stderr.strip()}", code="testing.no_namespace")
