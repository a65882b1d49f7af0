"""Refreshing tables with a lifetime in the background; new tables while a node runs. [PO-2]

The old rows serve until new ones are read, checked and joined, all beside the event loop; then they
are switched in one step. A source that fails, or whose rows cannot be used, changes nothing: its
rows stay, its status names the reason, and it is read again after a growing pause.
"""

from __future__ import annotations

import asyncio

import msgspec

from rapport.core.errors import Problem, RapportError, UnknownName
from rapport.kernel.clock import Chance, Clock
from rapport.kernel.tasks import run_in_thread
from rapport.kernel.telemetry import get_logger
from rapport.tables.declaration import TableDeclaration
from rapport.tables.loaded_table import LoadedTable
from rapport.tables.rows import RowFile
from rapport.tables.tables import Freshness, Tables, TablesChange, fresh


class TableStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Freshness of a table, for people."""

    table: str
    rows: int
    lifetime_ms: int
    """0: it is read once."""
    age_ms: int
    """Since the source last answered."""
    changes: int
    """Number of changes of the rows."""
    failures: int
    """Consecutive failures; 0: the rows are those of the source."""
    error: Problem | None = None
    """The last failure."""


_log = get_logger(__name__)

_LOOK_EVERY_MS = 1_000


class TableRefresher:
    """Refreshes the tables of a running node. All calls belong to one event loop."""

    def __init__(self, tables: Tables, clock: Clock, chance: Chance) -> None:
        self._tables, self._clock, self._chance = tables, clock, chance
        self._turn = asyncio.Lock()
        self._known = tables.freshness
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._follow()
        tables.changed.append(self._follow)

    async def run(self) -> None:
        """Refreshes tables that are due until cancelled; a slow source does not delay others.

        Ends at once, also during a request.
        """
        try:
            while True:
                self._reap()
                for name in self._due():
                    self._tasks[name] = asyncio.create_task(self._try_refresh(name))
                await self._clock.sleep(self._wait_ms())
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._tasks.clear()

    def status(self) -> list[TableStatus]:
        now, loaded = self._now_ms(), self._tables.loaded()
        return [
            TableStatus(
                table=name,
                rows=len(loaded[name].file),
                lifetime_ms=known.lifetime_ms,
                age_ms=now - known.read_ms,
                changes=known.changes,
                failures=known.failures,
                error=known.error,
            )
            for name, (_declared, known) in sorted(self._known.items())
        ]

    def failing(self) -> list[str]:
        """The tables whose last refresh failed."""
        return sorted(name for name, (_declared, known) in self._known.items() if known.failures)

    async def add(self, declared: TableDeclaration) -> None:
        """Adds a table, or replaces its declaration. Raises SiteError; then nothing changes."""
        read = await run_in_thread(
            lambda: self._tables.read(declared), name=f"tables-{declared.name}"
        )
        await self._apply(read, is_new=True)

    async def refresh(self, name: str) -> bool:
        """Reads a source now; True when its rows changed. Raises UnknownName, or SiteError when it
        fails or its rows cannot be used: then the old rows stay, and the status has the reason.
        """
        if name not in self._known:
            raise UnknownName("table", name, list(self._known))
        known, declared = self._known, self._known[name][0]
        try:
            read = await run_in_thread(lambda: self._tables.read_again(name), name=f"tables-{name}")
            changed = read is not None and await self._apply(read)
        except RapportError as error:
            if self._known is known:  # otherwise these tables are not in force any more
                self._note_failure(declared, error)
            raise
        if (changed or self._known is known) and self._is_declared_so(declared):
            noted = self._known[name][1].succeeded(self._now_ms(), changed=changed)
            self._known[name] = declared, noted
        return changed

    def make_due(self, name: str) -> None:
        """Makes a table due now; an unknown name is no error."""
        if name in self._known:
            declared, known = self._known[name]
            self._known[name] = declared, msgspec.structs.replace(known, due_ms=self._now_ms())

    async def set_rows(self, name: str, file: RowFile) -> bool:
        """Puts rows in force that are known without a request; True when they changed. Raises
        UnknownName or SiteError.
        """
        read = await run_in_thread(
            lambda: self._tables.load_rows(name, file), name=f"tables-{name}"
        )
        return read is not None and await self._apply(read)

    async def _apply(self, read: LoadedTable, *, is_new: bool = False) -> bool:
        """Prepares beside the loop and switches; again when the tables changed meanwhile. False
        when the table was removed or its declaration changed.
        """
        name = read.declared.name
        async with self._turn:
            while is_new or self._tables.declarations().get(name) == read.declared:
                prepared = await run_in_thread(
                    lambda: self._tables.prepared([read]), name="tables-prepare"
                )
                if self._tables.switch(prepared, self._clock.now_ms()):
                    return True
        return False

    # --- due tables ---

    async def _try_refresh(self, name: str) -> None:
        try:
            await self.refresh(name)
        except RapportError:
            return  # noted, and repeated when it is due

    def _reap(self) -> None:
        """Removes finished tasks; raises unexpected errors."""
        for name, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[name]
                task.result()

    def _due(self) -> list[str]:
        now = self._now_ms()
        return [
            name
            for name, (_declared, known) in self._known.items()
            if known.lifetime_ms and known.due_ms <= now and name not in self._tasks
        ]

    def _wait_ms(self) -> int:
        """Until the next table is due, a second at most: declarations may change."""
        dues = [
            known.due_ms
            for name, (_declared, known) in self._known.items()
            if known.lifetime_ms and name not in self._tasks
        ]
        wait = min(dues, default=self._now_ms() + _LOOK_EVERY_MS) - self._now_ms()
        return min(max(wait, 1), _LOOK_EVERY_MS)

    def _follow(self, changed: TablesChange | None = None) -> None:
        """Follows a change of the tables: new, removed or changed declarations begin anew, others
        keep their freshness.
        """
        declarations, now = self._tables.declarations(), self._now_ms()
        before, self._known = self._known, self._tables.freshness
        for name, declared in declarations.items():
            if name not in self._known or self._known[name][0] != declared:
                begun = self._begun(declared, now)
                if changed is not None and name in before and before[name][0] == declared:
                    changes = before[name][1].changes + (name in changed.tables)
                    begun = msgspec.structs.replace(begun, changes=changes)
                self._known[name] = declared, begun
        for name in self._known.keys() - declarations.keys():
            del self._known[name]

    def _begun(self, declared: TableDeclaration, now: int) -> Freshness:
        """Freshness of a table that was just loaded; one with cached rows has failed once."""
        stale = self._tables.stale.get(declared.name)
        if stale is None:
            return fresh(declared.lifetime_ms, now)
        age = max(self._clock.now_ms() - stale.read_ms, 0)
        begun = fresh(declared.lifetime_ms, now - age)
        return begun.failed(now, stale.problem, chance=self._chance.random())

    def _is_declared_so(self, declared: TableDeclaration) -> bool:
        """Whether the table still has this declaration."""
        return declared.name in self._known and self._known[declared.name][0] == declared

    def _note_failure(self, declared: TableDeclaration, error: RapportError) -> None:
        if not self._is_declared_so(declared):
            return
        name, first = declared.name, error.problems_found()[0]
        noted = self._known[name][1].failed(self._now_ms(), first, chance=self._chance.random())
        self._known[name] = declared, noted
        _log.warning(
            "table not refreshed",
            table=name,
            code=first.code,
            reason=first.message,
            again_in_ms=noted.due_ms - self._now_ms(),
        )

    def _now_ms(self) -> int:
        return self._clock.steady_ns() // 1_000_000
