"""Tables as they were when something happened, where earlier versions are kept, and what they say
otherwise since. [PO-2, PO-11]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from rapport.core.times import format_time
from rapport.policy.explaining.verdict import AnswerNote, ExternalFact
from rapport.policy.runners.base import PullData
from rapport.tables.instances import Instances


@runtime_checkable
class TableVersions(Protocol):
    """Tables that keep what they said before they were loaded again."""

    @property
    def versions(self) -> Mapping[str, Sequence[tuple[int, Instances]]]:
        """Of each concept (valid from, instances), oldest first."""

    def instances(self, concept: str, at_ms: int | None = None) -> Instances:
        """Those valid at a time, by default the newest."""

    def pairs(self, function: str) -> Mapping[tuple[str, ...], float]:
        """What a looked-up function gives; of this only the newest is kept."""


class PullAtTime:
    """What the tables said at one time."""

    def __init__(self, tables: TableVersions, time: int) -> None:
        self._tables, self._time = tables, time

    def instances(self, concept: str) -> Instances:
        return self._tables.instances(concept, self._time)

    def pairs(self, function: str) -> Mapping[tuple[str, ...], float]:
        return self._tables.pairs(function)


class EarlierTables:
    """Tables as they were at a time, beside those of now."""

    told_by = "what they said then"

    def __init__(self, pull: PullData, now: PullData, time: int) -> None:
        """`pull`: as they were."""
        self.pull, self._now, self._time = pull, now, time

    def known(self, concept: str, identity: str) -> Sequence[ExternalFact]:
        """What was true of an instance then and is no longer, with the time of the change."""
        since = self.loaded_since(concept)
        if not since:
            return ()
        before, now = self.pull.instances(concept), self._now.instances(concept)
        changed = [
            f"{name} of {identity} = {_shown(before, name, identity)}"
            for name in sorted(before.columns.keys() | now.columns.keys())
            if not _is_same(before, now, name, identity)
        ]
        if not changed:
            return ()
        told = f"by the tables until {format_time(since[0])}; they say something else now"
        return [ExternalFact(text=", ".join(changed), told=told, time=self._time)]

    def notes(self, concepts: Sequence[str]) -> Sequence[AnswerNote]:
        """Which tables were loaded again after that, and when last."""
        return [
            AnswerNote(
                kind="tables",
                text=f"since then the tables of {concept} were loaded again with other rows, "
                f"{_times(len(since))}; this is told by {self.told_by}",
                time=since[-1],
            )
            for concept in concepts
            if (since := self.loaded_since(concept))
        ]

    def loaded_since(self, concept: str) -> Sequence[int]:
        """When tables of the concept were loaded with other rows after the time."""
        return ()


class VersionedTables(EarlierTables):
    """The version of each table that was in force at a time, and what changed after it.

    Exact from the start of the process that loaded them: the first version counts as that of all
    times before.
    """

    def __init__(self, tables: TableVersions, time: int) -> None:
        super().__init__(PullAtTime(tables, time), tables, time)
        self._tables = tables

    def loaded_since(self, concept: str) -> Sequence[int]:
        """See TablesBefore."""
        versions = self._tables.versions.get(concept, ())
        return [valid_from for valid_from, _ in versions if valid_from > self._time]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _shown(instances: Instances, attribute: str, identity: str) -> str:
    value = _value(instances, attribute, identity)
    parts = value.tolist() if isinstance(value, np.ndarray) else [value]
    known = [one for one in parts if one is not None and one == one]
    return ", ".join(f"{one:g}" if isinstance(one, float) else repr(one) for one in known) or "none"


def _is_same(before: Instances, now: Instances, attribute: str, identity: str) -> bool:
    return _shown(before, attribute, identity) == _shown(now, attribute, identity)


def _value(instances: Instances, attribute: str, identity: str) -> Any:
    row, column = instances.row(identity), instances.columns.get(attribute)
    return None if row < 0 or column is None else column[row]
