"""Fuses in stores: they blow before or after the n-th write, as a kill -9 would hit it. [CO-10]"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

WRITES = ("append", "put", "delete", "apply")
"""The methods of log and record stores after which something is durable."""


class Killed(BaseException):
    """The process ends here."""


class Fuse:
    """Counts the writes of all stores it is built into; nothing is written once it has blown."""

    def __init__(self, at: int, *, after: bool, kill: Callable[[], None] | None = None) -> None:
        """`at`: which write, from 1; `kill`: what ends the process, None = `Killed` is raised."""
        self._at, self._after, self._kill = at, after, kill
        self.writes, self.blown = 0, False

    def build_into(self, store: Any) -> None:
        """Every write of this object (or class) goes through the fuse."""
        for name in WRITES:
            if hasattr(store, name):
                setattr(store, name, self._guarded(getattr(store, name)))

    def _guarded(self, write: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(write)
        def guarded(*arguments: Any, **named: Any) -> Any:
            if self.blown:
                raise Killed
            self.writes += 1
            is_it = self.writes == self._at
            if is_it and not self._after:
                self._blow()
            result = write(*arguments, **named)
            if is_it:
                self._blow()
            return result

        return guarded

    def _blow(self) -> None:
        self.blown = True
        if self._kill is not None:
            self._kill()
        raise Killed
