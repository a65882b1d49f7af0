"""Rows of tables and answers of context as they were at a time, for explaining past decisions.
[PO-11, CX-8, PO-2]
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from rapport.channel.channel import Channels
from rapport.channel.event_lookup import position_before
from rapport.core.errors import InvalidInput
from rapport.core.event import Event
from rapport.core.times import format_time
from rapport.policy.explain.answer import AnswerNote, ExternalFact
from rapport.policy.explain.past_tables import (
    RecordedTables,
    TablesAtTime,
    TablesLookup,
    current_tables,
    rows_on_record,
)
from rapport.policy.explain.wording import Wording
from rapport.policy.ontology import Ontology
from rapport.policy.operators.base import PullData
from rapport.tables.context_source import (
    FOUND_CHANNEL,
    ContextAnswer,
    context_query,
    rows_of_context,
)
from rapport.tables.declaration import TableDeclaration
from rapport.tables.row_history import ROWS_CHANNEL
from rapport.tables.rows import RowFile, field_text
from rapport.tables.tables import Tables

_AT_ONCE = 10_000
_FIRST_LOOK_MS = 3_600_000
_WIDER = 24
_MOST_NAMED = 5
Place = tuple[str, str]
"""A table and an entity's id."""


class PastAnswers(dict[Place, ContextAnswer]):
    """The last answer about each entity, and beside it the last record there was."""

    def __init__(self) -> None:
        super().__init__()
        self.records: dict[Place, ContextAnswer] = {}
        self.events: dict[Place, str] = {}

    def take(self, found: ContextAnswer, event: str) -> None:
        place = found.table, found.id
        self[place], self.events[place] = found, event
        if found.is_found:
            self.records[place] = found


def context_at(
    tables: Tables,
    ontology: Ontology,
    channels: Channels,
    on_record: Collection[str] = (),
) -> TablesLookup:
    """What was known at a time; where no table asks a broker, the tables as they are. Those named
    in `on_record` have the rows of that time already.
    """
    declared = [one for one in tables.declarations().values() if one.context]
    if not declared:
        return current_tables(tables)

    async def at(time: int) -> TablesAtTime:
        places = {(one.name, identity) for one in declared for identity in tables.context_ids(one)}
        answers = await read_answers(channels, places, time)
        return PastContext(tables, ontology, declared, answers, time, on_record)

    return at


async def read_answers(channels: Channels, places: set[Place], time: int) -> PastAnswers:
    """The last answers before a time. Reads the hour before it, then a day, then everything, until
    each entity that is asked for was found: it costs what was told since the answer that holds.
    """
    channel = channels.channel(FOUND_CHANNEL)
    back = _FIRST_LOOK_MS
    while True:
        after = await position_before(channel, time - back)
        answers = PastAnswers()
        position = after
        while batch := await channel.read_after(position, limit=_AT_ONCE):
            position = batch[-1].position
            for stored in batch:
                found = _found_in(stored.event)
                if found is not None and found.time <= time:
                    answers.take(found, stored.event.id)
            if batch[-1].received > time + _FIRST_LOOK_MS:
                break
        if after == 0 or places <= answers.keys():
            return answers
        back *= _WIDER


def _found_in(event: Event) -> ContextAnswer | None:
    try:
        return ContextAnswer.from_event(event)
    except InvalidInput:
        return None  # written by a later version


class PastContext:
    """Tables with the rows that were valid at a time."""

    def __init__(
        self,
        tables: Tables,
        ontology: Ontology,
        declared: Sequence[TableDeclaration],
        answers: PastAnswers,
        time: int,
        on_record: Collection[str] = (),
    ) -> None:
        """`on_record`: the tables that have the rows of then already."""
        self._tables, self._declared, self._told, self._time = tables, declared, answers, time
        self._wording = Wording(ontology)
        places = [one for one in declared if one.name not in on_record]
        self.pull: PullData = tables.with_rows({one.name: self._rows(one) for one in places})

    def known(self, concept: str, identity: str) -> Sequence[ExternalFact]:
        """The answers about an instance; also the reason when nothing was known."""
        own = [one for one in self._declared if one.concept == concept]
        return [self._known(one, identity) for one in own if self._is_requested(one, identity)]

    def notes(self, concepts: Sequence[str]) -> Sequence[AnswerNote]:
        """By table the entities without a valid record."""
        return [
            note for one in self._declared if one.concept in concepts for note in self._unknown(one)
        ]

    def _rows(self, declared: TableDeclaration) -> RowFile:
        question = context_query(declared, self._tables.context_ids(declared))
        rows = [
            question.row(one, found.values)
            for one in question.ids
            if (found := self._valid(declared.name, one)) is not None
        ]
        return rows_of_context(question, declared.shown, rows)

    def _valid(self, table: str, identity: str) -> ContextAnswer | None:
        """A record stays valid for its provider's time, whatever later queries found."""
        found = self._told.records.get((table, identity))
        return found if found is not None and found.is_valid_at(self._time) else None

    def _is_requested(self, declared: TableDeclaration, identity: str) -> bool:
        return (declared.name, identity) in self._told or identity in self._tables.context_ids(
            declared
        )

    def _known(self, declared: TableDeclaration, identity: str) -> ExternalFact:
        place = declared.name, identity
        found = self._valid(*place)
        if found is None:
            return ExternalFact(
                text=f"nothing was known of {identity}",
                told=self._why_unknown(declared, identity),
                time=self._told[place].time if place in self._told else self._time,
                event=self._told.events.get(place, ""),
                is_known=False,
            )
        return ExternalFact(
            text=self._answer_text(declared, identity, found),
            told=f"{_provided(declared, found)}, {_far(found)}",
            time=found.time,
            event=self._told.events[place],
        )

    def _answer_text(self, declared: TableDeclaration, identity: str, found: ContextAnswer) -> str:
        values = (
            f"{attribute} of {identity} = {self._shown(declared, attribute, found.values)}"
            for attribute in declared.columns
        )
        return ", ".join(values) or f"{identity} is known"

    def _shown(
        self, declared: TableDeclaration, attribute: str, values: Mapping[str, object]
    ) -> str:
        parts = [values.get(name) for name in declared.columns[attribute]]
        if len(parts) == 1 and not isinstance(parts[0], (list, tuple)):
            return self._wording.of_property(declared.concept, attribute, parts[0])
        return field_text(parts)

    def _why_unknown(self, declared: TableDeclaration, identity: str) -> str:
        last = self._told.get((declared.name, identity))
        places = f"context {declared.context!r}"
        if last is None:
            return f"{places}: it had not been asked for"
        if last.is_found and last.valid_from > self._time:
            return f"{places}: valid only from {format_time(last.valid_from)} on"
        text = f"asked at {format_time(last.time)}: {last.why}"
        if who := last.provider or last.former:
            ended = f"what {who} provided was valid until {format_time(last.valid_until)}"
            text = ended if last.is_found else f"{ended}; {text}"
        return f"{places}: {text}"

    def _unknown(self, declared: TableDeclaration) -> Iterable[AnswerNote]:
        places = list(dict.fromkeys(self._tables.context_ids(declared)))
        lost = [one for one in places if self._valid(declared.name, one) is None]
        if lost:
            named = ", ".join(lost[:_MOST_NAMED]) + (", ..." if lost[_MOST_NAMED:] else "")
            text = f"context {declared.context!r}: of {len(places)} asked for nothing was known of "
            yield AnswerNote(kind="context", text=f"{text}{len(lost)}: {named}", time=self._time)


def _provided(declared: TableDeclaration, found: ContextAnswer) -> str:
    until = format_time(found.valid_until)
    return f"context {declared.context!r}: provided by {found.provider}, valid until {until}"


def _far(found: ContextAnswer) -> str:
    if not found.hops:
        return "known to the node's own broker"
    hops = "1 hop" if found.hops == 1 else f"{found.hops} hops"
    return f"found {hops} away, kept at {found.holder}"


class RowsAndContext:
    """Both, where a site has both."""

    def __init__(self, rows: RecordedTables, context: TablesAtTime) -> None:
        """`context`: made of the tables that `rows` has."""
        self._rows, self._context = rows, context
        self.pull = context.pull

    def known(self, concept: str, identity: str) -> Sequence[ExternalFact]:
        return [*self._rows.known(concept, identity), *self._context.known(concept, identity)]

    def notes(self, concepts: Sequence[str]) -> Sequence[AnswerNote]:
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
