"""Media that are added and removed at run time where several engines work: a record for each, which
all of them look at. [CO-17, CO-4]

A process makes the adapter of a record itself, from the kinds that it knows (built in, plugged in,
given when it was opened). A class that was given to one process runs there only: in the others an
`ElsewhereAdapter` stands for it and says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Protocol

import msgspec

from rapport.communication.adapters.base import OtherEngineAdapter, OutputAdapter
from rapport.communication.aside import run_aside
from rapport.core.errors import RapportError, Unavailable
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.store.base import RecordStore

ANNOUNCED = "communication.adapters"
_MOST = 10_000
_log = get_logger(__name__)

MakeAdapter = Callable[[str], OutputAdapter]
"""The adapter of a name; raises a RapportError where its kind is not known."""


class Announced(msgspec.Struct, frozen=True, array_like=True):
    """What the record of an adapter says."""

    by: str
    """The process that announced it."""
    at_ms: int


class Held(Protocol):
    """The adapters of this process: `Outputs`."""

    @property
    def names(self) -> Collection[str]:
        """Those that are there."""

    async def carry(self, adapter: OutputAdapter) -> None:
        """Adds one."""

    async def let_go(self, name: str) -> None:
        """Removes one."""


class Registrations:
    """See Carrier. Looks at the records every `every_ms`; one read each time."""

    def __init__(
        self,
        records: RecordStore,
        clock: Clock,
        held: Held,
        make: MakeAdapter,
        carry: Callable[[OutputAdapter], Awaitable[None]],
        *,
        instance: str,
        every_ms: int,
    ) -> None:
        """`carry`: that of `Sharing`."""
        self._records, self._clock, self._held, self._make = records, clock, held, make
        self._carry = carry
        self._instance, self._every_ms = instance, every_ms
        self._known: set[str] = set()

    async def announce(self, name: str) -> None:
        """See Carrier; announcing again is no error."""
        said = msgspec.msgpack.encode(Announced(self._instance, self._clock.now_ms()))
        await run_aside(partial(self._records.put, ANNOUNCED, name, said))
        self._known.add(name)

    async def withdraw(self, name: str) -> bool:
        """See Carrier."""
        kept = await run_aside(partial(self._records.get, ANNOUNCED, name))
        if kept is None:
            return False
        await run_aside(partial(self._records.delete, ANNOUNCED, name))
        return True

    async def carry(self, adapter: OutputAdapter) -> None:
        """See Carrier."""
        await self._carry(adapter)

    async def run(self) -> None:
        """Follows the records until cancelled; a store that cannot be reached is asked again."""
        while True:
            try:
                await self.look()
            except Unavailable as error:
                _log.warning("announced media not looked at", error=error.message)
            await self._clock.sleep(self._every_ms)

    async def look(self) -> None:
        """One look: adds what was announced, lets go of what was withdrawn."""
        kept = await run_aside(partial(announced, self._records))
        for name in sorted(kept - set(self._held.names)):
            await self._held.carry(made_or_elsewhere(name, self._make))
        gone, self._known = self._known - kept, kept
        for name in sorted(gone):
            await self._held.let_go(name)


def announced(records: RecordStore) -> set[str]:
    """The names of all that was announced; one read, blocks."""
    return {name for name, _ in records.find(ANNOUNCED, limit=_MOST)}


def made_or_elsewhere(name: str, make: MakeAdapter) -> OutputAdapter:
    """The adapter of a name, or what stands for it where its kind is not known."""
    try:
        return make(name)
    except (RapportError, LookupError) as error:
        _log.warning("medium not known here", adapter=name, error=repr(error))
        return OtherEngineAdapter(name)
