"""Which interceptors there are, in which order, and which work on a channel. Pure. [CH-10]"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import count

from rapport.channel.checking import check_reader_name
from rapport.channel.intercept.following import reader_of
from rapport.channel.intercept.interceptor import Declared, Standing
from rapport.channel.intercept.keeping import INTERCEPTED
from rapport.core.errors import DuplicateName, UnknownName


class Roster:
    """Interceptors by name. The chain of a channel is looked up once, until something changes."""

    def __init__(self) -> None:
        self._standing: dict[str, Standing] = {}
        self._chains: dict[str, tuple[Standing, ...]] = {}
        self._changing: set[str] = set()
        """Names that are just being added or removed."""

    def __contains__(self, name: str) -> bool:
        return name in self._standing

    def __len__(self) -> int:
        return len(self._standing)

    def names(self) -> list[str]:
        """Of all of them."""
        return list(self._standing)

    def put(self, standing: Standing) -> None:
        """Adds one, or another in its place."""
        self._standing[standing.declared.name] = standing
        self._chains.clear()

    def drop(self, name: str) -> None:
        """Takes one out."""
        del self._standing[name]
        self._chains.clear()

    def in_order(self) -> list[Standing]:
        """All of them, as events pass them."""
        return sorted(
            self._standing.values(), key=lambda one: (one.declared.order, one.declared.name)
        )

    def chain(self, channel: str) -> tuple[Standing, ...]:
        """Those that work on a channel, in order."""
        found = self._chains.get(channel)
        if found is None:
            found = tuple(
                one
                for one in self.in_order()
                if channel != INTERCEPTED and fnmatchcase(channel, one.declared.channels)
            )
            self._chains[channel] = found
        return found

    def order(self, before: str) -> float:
        """A place at the end, or right before another one; raises UnknownName."""
        orders = [one.declared.order for one in self.in_order()]
        if not before:
            return (orders[-1] if orders else 0.0) + 1.0
        if before not in self._standing:
            raise UnknownName("interceptor", before, self.names())
        place = self._standing[before].declared.order
        lower = [order for order in orders if order < place]
        return (lower[-1] + place) / 2 if lower else place - 1.0

    def check_new(self, declared: Declared) -> None:
        """Raises InvalidInput for a name that cannot be one, DuplicateName for one in use."""
        check_reader_name(reader_of(declared.name))
        if declared.name in self._standing or declared.name in self._changing:
            raise DuplicateName(
                f"there is an interceptor named {declared.name!r}", code="interceptor.duplicate"
            )

    def known(self, name: str) -> Standing:
        """Raises UnknownName, also for one that is just being removed."""
        standing = self._standing.get(name)
        if standing is None or name in self._changing:
            raise UnknownName("interceptor", name, self.names())
        return standing

    @contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """Nobody else adds or removes this one meanwhile."""
        self._changing.add(name)
        try:
            yield
        finally:
            self._changing.discard(name)

    def free_name(self, kind: str) -> str:
        """A name that nobody has."""
        taken = self._standing.keys() | self._changing
        return next(name for n in count(1) if (name := f"{kind}-{n}") not in taken)
