"""When a source is asked again, and what became of asking it: pure, time is an argument. [PO-2]

Tables with a lifetime, asked again in the background; new tables while a node runs. [PO-2]

The old rows serve until new ones are read, checked and joined, all beside the event loop; then they
are switched in one step. A source that fails, or gives what cannot be used, changes nothing: its
rows stay, its status says why, and it is asked again after a growing pause.
"""

from __future__ import annotations

import asyncio

import msgspec

from rapport.core.errors import Problem, RapportError, UnknownName
from rapport.kernel.chance import Chance
from rapport.kernel.clock import Clock
from rapport.kernel.own_thread import in_own_thread
from rapport.kernel.telemetry import get_logger
from rapport.tables.declaration import TableDeclaration
from rapport.tables.loaded_table import LoadedTable
from rapport.tables.rows import RowFile
from rapport.tables.tables import Freshness, Tables, TablesChange, fresh


class TableStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How fresh a table is, for people."""

    table: str
    rows: int
    lifetime_ms: int
    """0: it is read once."""
    age_ms: int
    """Since the source last gave its rows, or said that they are the same."""
    changes: int
    """How often other rows came than before."""
    failures: int
    """How often in a row it failed; 0: the rows are those of the source."""
    error: Problem | None = None
    """Why it failed last."""


_log = get_logger(__name__)

_LOOK_EVERY_MS = 1_000


class TableRefresher:
    """Keeps the tables of a running node fresh. All calls belong to one event loop."""

    def __init__(self, tables: Tables, clock: Clock, chance: Chance) -> None:
        self._tables, self._clock, self._chance = tables, clock, chance
        self._turn = asyncio.Lock()
        self._known = tables.asked
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._follow()
        tables.changed.append(self._follow)

    async def run(self) -> None:
        """Asks sources whose lifetime is over until cancelled; a slow one keeps no other waiting.

        Ends at once, also while a source is being asked.
        """
        try:
            while True:
                self._reap()
                for name in self._due():
                    self._under_way[name] = asyncio.create_task(self._ask(name))
                await self._clock.sleep(self._wait_ms())
        finally:
            asked = list(self._under_way.values())
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            self._under_way.clear()

    def status(self) -> list[TableStatus]:
        """Every table, by name."""
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

    def unwell(self) -> list[str]:
        """The tables whose source failed when it was last asked."""
        return sorted(name for name, (_declared, known) in self._known.items() if known.failures)

    async def add(self, declared: TableDeclaration) -> None:
        """Takes in a new table, or another declaration of one; the fewest tables are chosen anew
        beside the loop, then switched. Raises SiteError; then everything stays as it was.
        """
        read = await in_own_thread(
            lambda: self._tables.read(declared), name=f"tables-{declared.name}"
        )
        await self._take(read, is_new=True)

    async def refresh(self, name: str) -> bool:
        """Asks a source now; True when its rows changed. Raises UnknownName, or SiteError when it
        fails or gives what cannot be used: then the rows stay, and the status says so.
        """
        if name not in self._known:
            raise UnknownName("table", name, list(self._known))
        known, asked = self._known, self._known[name][0]
        try:
            read = await in_own_thread(lambda: self._tables.read_again(name), name=f"tables-{name}")
            changed = read is not None and await self._take(read)
        except RapportError as error:
            if self._known is known:  # otherwise it is about rows that are not in force any more
                self._note_failure(asked, error)
            raise
        if (changed or self._known is known) and self._is_declared_so(asked):
            noted = self._known[name][1].succeeded(self._now_ms(), changed=changed)
            self._known[name] = asked, noted
        return changed

    def hasten(self, name: str) -> None:
        """Lets a source be asked within a second, whatever its lifetime; nothing for a name nobody
        knows.
        """
        if name in self._known:
            declared, known = self._known[name]
            self._known[name] = declared, msgspec.structs.replace(known, due_ms=self._now_ms())

    async def give(self, name: str, file: RowFile) -> bool:
        """Puts rows in force that are known without asking; True when they were others. Raises
        UnknownName or SiteError.
        """
        read = await in_own_thread(lambda: self._tables.given(name, file), name=f"tables-{name}")
        return read is not None and await self._take(read)

    async def _take(self, read: LoadedTable, *, is_new: bool = False) -> bool:
        """Prepares beside the loop and switches; again when the tables changed meanwhile. False
        when the table itself went or was declared otherwise: then what was read is of no use.
        """
        name = read.declared.name
        async with self._turn:
            while is_new or self._tables.declarations().get(name) == read.declared:
                prepared = await in_own_thread(
                    lambda: self._tables.prepared([read]), name="tables-prepare"
                )
                if self._tables.switch(prepared, self._clock.now_ms()):
                    return True
        return False

    # --- what is due ---

    async def _ask(self, name: str) -> None:
        try:
            await self.refresh(name)
        except RapportError:
            return  # noted, and asked again when it is due

    def _reap(self) -> None:
        """Forgets what is done; raises what nobody expected."""
        for name, task in list(self._under_way.items()):
            if task.done():
                del self._under_way[name]
                task.result()

    def _due(self) -> list[str]:
        now = self._now_ms()
        return [
            name
            for name, (_declared, known) in self._known.items()
            if known.lifetime_ms and known.due_ms <= now and name not in self._under_way
        ]

    def _wait_ms(self) -> int:
        """Until the next is due, a second at most: declarations may change meanwhile."""
        dues = [
            known.due_ms
            for name, (_declared, known) in self._known.items()
            if known.lifetime_ms and name not in self._under_way
        ]
        wait = min(dues, default=self._now_ms() + _LOOK_EVERY_MS) - self._now_ms()
        return min(max(wait, 1), _LOOK_EVERY_MS)

    def _follow(self, changed: TablesChange | None = None) -> None:
        """Learns of tables that are new, gone, declared otherwise or read anew with the site; a
        site that is gone back to has what was known of it.
        """
        declarations, now = self._tables.declarations(), self._now_ms()
        before, self._known = self._known, self._tables.asked
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
        """A table as it was loaded; one that began with rows of before has failed once already."""
        stale = self._tables.stale.get(declared.name)
        if stale is None:
            return fresh(declared.lifetime_ms, now)
        age = max(self._clock.now_ms() - stale.read_ms, 0)
        begun = fresh(declared.lifetime_ms, now - age)
        return begun.failed(now, stale.problem, chance=self._chance.random())

    def _is_declared_so(self, asked: TableDeclaration) -> bool:
        """False when the table went, or was declared otherwise, while its source was asked."""
        return asked.name in self._known and self._known[asked.name][0] == asked

    def _note_failure(self, asked: TableDeclaration, error: RapportError) -> None:
        if not self._is_declared_so(asked):
            return
        name, first = asked.name, error.problems_found()[0]
        noted = self._known[name][1].failed(self._now_ms(), first, chance=self._chance.random())
        self._known[name] = asked, noted
        _log.warning(
            "table not refreshed",
            table=name,
            code=first.code,
            reason=first.message,
            again_in_ms=noted.due_ms - self._now_ms(),
        )

    def _now_ms(self) -> int:
        return self._clock.steady_ns() // 1_000_000
