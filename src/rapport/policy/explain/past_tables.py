"""Tables as they were at a time: from the versions a process keeps, or from the recorded rows; and
the external facts that they were made from. [PO-2, PO-11, CX-8]
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec
import numpy as np

from rapport.channel.channel import Channels
from rapport.core.times import format_time
from rapport.policy.explain.answer import AnswerNote, Candidate, ExternalFact, WhyNotAnswer
from rapport.policy.operators.base import PullData
from rapport.policy.plan import Plan
from rapport.policy.table_history import (
    RecordedTableRows,
    unusable_text,
    version_at,
    versions_on_record,
)
from rapport.tables.instances import Instances
from rapport.tables.row_history import RowsVersion, TableRows
from rapport.tables.tables import Tables

_NOBODY: Mapping[str, str] = {}
_MOST_EVENTS = 5_000
"""Events read after the base, to find later changes."""


@runtime_checkable
class TableVersions(Protocol):
    """Tables that keep earlier versions."""

    @property
    def versions(self) -> Mapping[str, Sequence[tuple[int, Instances]]]:
        """By concept: (valid from, instances), oldest first."""

    def instances(self, concept: str, at_ms: int | None = None) -> Instances:
        """The instances valid at a time, by default the newest."""

    def pairs(self, function: str) -> Mapping[tuple[str, ...], float]:
        """The values of a looked-up function; only the newest are kept."""

    def days(self, table: str) -> Collection[str]:
        """The days of a table; only the newest are kept."""


class PullAtTime:
    """The tables at one time."""

    def __init__(self, tables: TableVersions, time: int) -> None:
        self._tables, self._time = tables, time

    def instances(self, concept: str) -> Instances:
        return self._tables.instances(concept, self._time)

    def pairs(self, function: str) -> Mapping[tuple[str, ...], float]:
        return self._tables.pairs(function)

    def days(self, table: str) -> Collection[str]:
        return self._tables.days(table)


class EarlierTables:
    """Earlier tables beside the current ones."""

    rows_used = "their earlier rows"

    def __init__(self, pull: PullData, now: PullData, time: int) -> None:
        """`pull`: the earlier tables."""
        self.pull, self._now, self._time = pull, now, time

    def known(self, concept: str, identity: str) -> Sequence[ExternalFact]:
        """Attributes of an instance that have changed since, with the time of the change."""
        since = self.loaded_since(concept)
        if not since:
            return ()
        before, now = self.pull.instances(concept), self._now.instances(concept)
        changed = [
            f"{name} of {identity} = {_shown(before, name, identity)}"
            for name in sorted(before.columns.keys() | now.columns.keys())
            if _shown(before, name, identity) != _shown(now, name, identity)
        ]
        if not changed:
            return ()
        told = f"by the tables until {format_time(since[0])}; they differ now"
        return [ExternalFact(text=", ".join(changed), told=told, time=self._time)]

    def notes(self, concepts: Sequence[str]) -> Sequence[AnswerNote]:
        """The tables that were reloaded with other rows after that time."""
        return [
            AnswerNote(
                kind="tables",
                text=f"since then the tables of {concept} were loaded again with other rows, "
                f"{_times(len(since))}; this uses {self.rows_used}",
                time=since[-1],
            )
            for concept in concepts
            if (since := self.loaded_since(concept))
        ]

    def loaded_since(self, concept: str) -> Sequence[int]:
        """When the concept's tables were reloaded with other rows after the time."""
        return ()


class VersionedTables(EarlierTables):
    """The versions in force at a time.

    Exact from the start of the process that loaded them; the first version counts for all times
    before.
    """

    def __init__(self, tables: TableVersions, time: int) -> None:
        super().__init__(PullAtTime(tables, time), tables, time)
        self._tables = tables

    def loaded_since(self, concept: str) -> Sequence[int]:
        versions = self._tables.versions.get(concept, ())
        return [valid_from for valid_from, _ in versions if valid_from > self._time]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _shown(instances: Instances, attribute: str, identity: str) -> str:
    value = _value(instances, attribute, identity)
    parts = value.tolist() if isinstance(value, np.ndarray) else [value]
    known = [one for one in parts if one is not None and one == one]
    return ", ".join(f"{one:g}" if isinstance(one, float) else repr(one) for one in known) or "none"


def _value(instances: Instances, attribute: str, identity: str) -> Any:
    row, column = instances.row(identity), instances.columns.get(attribute)
    return None if row < 0 or column is None else column[row]


class TablesAtTime(Protocol):
    """What was known at one time."""

    pull: PullData

    def known(self, concept: str, identity: str) -> Sequence[ExternalFact]:
        """External facts queried about an instance, found or not."""

    def notes(self, concepts: Sequence[str]) -> Sequence[AnswerNote]:
        """Queries about these concepts that found nothing."""


TablesLookup = Callable[[int], Awaitable[TablesAtTime]]
"""By clock time."""


def current_tables(pull: PullData) -> TablesLookup:
    """For tables without a record; uses the versions that they keep themselves."""

    async def at(time: int) -> TablesAtTime:
        if isinstance(pull, TableVersions):
            return VersionedTables(pull, time)
        return EarlierTables(pull, pull, time)

    return at


def with_external_facts(answer: WhyNotAnswer, plan: Plan, then: TablesAtTime) -> WhyNotAnswer:
    """Adds to each candidate the external facts about its identities."""
    given = answer.given
    return msgspec.structs.replace(
        answer,
        fired=tuple(candidate_with_facts(one, plan, then) for one in answer.fired),
        candidates=tuple(candidate_with_facts(one, plan, then, given) for one in answer.candidates),
        notes=(*answer.notes, *([] if answer.fired else then.notes(sorted(plan.concepts())))),
    )


def candidate_with_facts(
    candidate: Candidate, plan: Plan, then: TablesAtTime, given: Mapping[str, str] = _NOBODY
) -> Candidate:
    """Adds the external facts about the bound and the `given` identities."""
    concepts = {side.alias: side.concept for side in plan.sides()}
    about = {**given, **candidate.bindings}
    known = [
        one
        for alias, identity in sorted(about.items())
        if alias in concepts
        for one in then.known(concepts[alias], identity)
    ]
    return msgspec.structs.replace(candidate, known=tuple(dict.fromkeys(known)))


class RecordedTables(EarlierTables):
    """The rows that readings of a time were evaluated with, and the tables changed since."""

    rows_used = "the recorded rows of that time"

    def __init__(
        self,
        now: Tables,
        then: Tables,
        version: RowsVersion,
        later: Sequence[RowsVersion],
        unusable: Mapping[str, TableRows | None],
        time: int,
    ) -> None:
        """`time`: that of the readings."""
        super().__init__(then, now, time)
        self.tables = then
        self._version, self._later, self._unusable = version, later, unusable
        # Context tables have a record of their own with provider and validity.
        declared = now.declarations().items()
        self._concepts = {name: one.concept for name, one in declared if not one.context}

    def on_record(self) -> frozenset[str]:
        """The tables whose earlier rows are recorded."""
        known = {name for name, rows in self._version.tables.items() if rows.is_known}
        return frozenset(known - self._unusable.keys())

    def loaded_since(self, concept: str) -> Sequence[int]:
        """By the node's clock."""
        own = {name for name, one in self._concepts.items() if one == concept}
        return [one.place.time for one in self._later if one.changed & own]

    def notes(self, concepts: Sequence[str]) -> Sequence[AnswerNote]:
        """Adds the tables whose earlier rows are not recorded, so that others were used."""
        return [*super().notes(concepts), *self._gaps(concepts)]

    def _gaps(self, concepts: Sequence[str]) -> list[AnswerNote]:
        own = {name: one for name, one in self._concepts.items() if one in concepts}
        notes = [
            AnswerNote(
                kind="tables", text=unusable_text(name, self._unusable[name]), time=self._time
            )
            for name in own
            if name in self._unusable
        ]
        begins = self._version.place
        if begins.since > self._time and own:
            text = (
                "nothing is on record of the tables before "
                f"{format_time(begins.since)}: the first rows that are known are used"
            )
            notes.append(AnswerNote(kind="tables", text=text, time=begins.since))
        return notes


async def rows_on_record(tables: Tables, channels: Channels, time: int) -> RecordedTables | None:
    """The tables that readings of a time were evaluated with; None when none are recorded.

    Costs the records between two bases, and parsing the tables whose rows differ now.
    """
    versions = await versions_on_record(channels, since=time, most_events=_MOST_EVENTS)
    version = version_at(versions, time)
    if version is None:
        return None
    record = await asyncio.to_thread(RecordedTableRows, tables)
    then = await asyncio.to_thread(record.at, version)
    later = [one for one in versions if one.place.since > time]
    return RecordedTables(tables, then, version, later, record.unusable, time)
