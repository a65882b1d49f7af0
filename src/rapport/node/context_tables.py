"""Keeps the tables of context true: what is no longer valid is no row, whether or not somebody
asked anew; and who expired is asked for again at once. [PO-2, CX-1]
"""

from __future__ import annotations

import asyncio

from rapport.core.errors import UnknownName
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import first_of
from rapport.node.context_answers import ContextAnswers
from rapport.tables.context_source import context_query, rows_of_context
from rapport.tables.loaded_table import LoadedTable
from rapport.tables.refresh import TableRefresher
from rapport.tables.tables import Tables, TablesChange

_LOOK_EVERY_MS = 1_000
"""Also when nothing is due: the wall clock may be set."""


class ContextTables:
    """Compares rows with what is valid, whenever either changes. Belongs to one event loop."""

    def __init__(
        self, tables: Tables, refreshing: TableRefresher, answers: ContextAnswers, clock: Clock
    ) -> None:
        self._tables, self._refreshing = tables, refreshing
        self._answers, self._clock = answers, clock
        self._changed = asyncio.Event()
        tables.changed.append(self._note)

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            self._changed.clear()
            for table in self._of_context():
                await self._put_right(table)
            await first_of(self._changed.wait(), self._clock.sleep(self._wait_ms()))

    def ask_again(self) -> None:
        """Lets all of them be asked for now, such as when the network was joined."""
        for table in self._of_context():
            self._refreshing.make_due(table.declared.name)

    def _of_context(self) -> list[LoadedTable]:
        return [one for one in self._tables.loaded().values() if one.declared.context]

    async def _put_right(self, table: LoadedTable) -> None:
        declared = table.declared
        question = context_query(declared, self._tables.context_ids(declared))
        rows = self._answers.rows(question, self._clock.now_ms())
        here = set(table.file.column(declared.key))
        if here == {row[0] for row in rows}:
            return
        try:
            file = rows_of_context(question, declared.shown, rows)
            await self._refreshing.set_rows(declared.name, file)
        except UnknownName:
            return  # the site was reloaded without it
        if here - {row[0] for row in rows}:
            self._refreshing.make_due(declared.name)

    def _wait_ms(self) -> int:
        now_ms = self._clock.now_ms()
        due = self._answers.next_change(now_ms)
        return _LOOK_EVERY_MS if due is None else max(1, min(due - now_ms, _LOOK_EVERY_MS))

    def _note(self, _changed: TablesChange) -> None:
        self._changed.set()
