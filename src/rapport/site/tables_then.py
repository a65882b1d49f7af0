"""What all tables of a site held at a time: rows by their own record, context by that of what was
found. [PO-2, PO-11, CX-8]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rapport.channel.channel import Channels
from rapport.policy.explain.answer import AnswerNote, ExternalFact
from rapport.policy.explain.past_tables import (
    RecordedTables,
    TablesAtTime,
    TablesLookup,
    current_tables,
    rows_on_record,
)
from rapport.policy.ontology import Ontology
from rapport.site.context_then import context_at
from rapport.tables.context_source import FOUND_CHANNEL
from rapport.tables.row_history import ROWS_CHANNEL
from rapport.tables.tables import Tables


class RowsAndContext:
    """Both, where a site has both."""

    def __init__(self, rows: RecordedTables, context: TablesAtTime) -> None:
        """`context`: made of the tables that `rows` has."""
        self._rows, self._context = rows, context
        self.pull = context.pull

    def known(self, concept: str, identity: str) -> Sequence[ExternalFact]:
        """See TablesThen."""
        return [*self._rows.known(concept, identity), *self._context.known(concept, identity)]

    def notes(self, concepts: Sequence[str]) -> Sequence[AnswerNote]:
        """See TablesThen."""
        return [*self._rows.notes(concepts), *self._context.notes(concepts)]


def tables_at(
    tables: Tables,
    ontology: Ontology,
    channels: Channels,
    *,
    lateness_ms: int,
    may_read: Callable[[str], bool] | None = None,
) -> TablesLookup:
    """What was known at a time, as far as it is on record and `may_read` allows to tell it; else
    the tables as they are, with the versions that they keep themselves.
    """
    may_tell = may_read is None or may_read(FOUND_CHANNEL)
    may_tell_rows = may_read is None or may_read(ROWS_CHANNEL)
    asks_brokers = may_tell and any(one.context for one in tables.declarations().values())

    async def at(time: int) -> TablesAtTime:
        rows = None
        if may_tell_rows:  # a reading is judged when no earlier one can come any more
            rows = await rows_on_record(tables, channels, time - lateness_ms)
        if not asks_brokers:
            return rows or await current_tables(tables)(time)
        then = tables if rows is None else rows.tables
        # Who told what is on one record, from where in the stream on policies saw it on the other.
        known = frozenset() if rows is None else rows.on_record()
        context = await context_at(then, ontology, channels, known)(time)
        return context if rows is None else RowsAndContext(rows, context)

    return at
