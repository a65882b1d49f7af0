"""The causes of occurrences that are no one or two recent events: kept with the occurrence itself.
[PO-6, PO-7]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from rapport.core.detection import Cause
from rapport.policy.runners.operators.intake import EventLog
from rapport.policy.runners.operators.table import Array, Rows

NO_EVENT = -1
"""Stands in a column of events for none; smaller numbers name sets of causes."""


class CauseSets:
    """Causes of any number and age under negative numbers that stand where an event's ordinal
    would. Grows with the occurrences of steps within the windows.
    """

    def __init__(self) -> None:
        self._next = NO_EVENT - 1
        self._sets: dict[int, tuple[int, tuple[Cause, ...]]] = {}
        """By number, with the end of the occurrence."""

    def add(self, ends: Array, causes: Iterable[tuple[Cause, ...]]) -> Rows:
        """Keeps the causes of occurrences, about in order of their ends; returns their numbers."""
        first = self._next
        for end, own in zip(ends.tolist(), causes, strict=True):
            self._sets[self._next] = (end, tuple(own))
            self._next -= 1
        return np.arange(first, self._next, -1)

    def get(self, number: int) -> tuple[Cause, ...]:
        """The causes under a number."""
        return self._sets[number][1]

    def trim(self, before: int) -> None:
        """Forgets those of occurrences that ended before a time."""
        stale = []
        for number, (end, _) in self._sets.items():
            if end >= before:
                break
            stale.append(number)
        for number in stale:
            del self._sets[number]

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        rows = [[number, end, own] for number, (end, own) in self._sets.items()]
        return {"next": self._next, "sets": rows}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what `state` gave."""
        self._next = state["next"]
        self._sets = {
            number: (end, tuple((time, id) for time, id in own))
            for number, end, own in state["sets"]
        }


def causes_of_rows(log: EventLog, sets: CauseSets, numbers: Array) -> Iterable[tuple[Cause, ...]]:
    """For each row of (n, columns) of events and sets the causes, each once, by (time, id)."""
    numbers = numbers[:, (numbers != NO_EVENT).any(axis=0)]
    known = log.causes(numbers[numbers >= 0])
    if numbers.shape[1] == 1 and (numbers >= 0).all():
        return [(known[number],) for number in numbers[:, 0].tolist()]
    return _of_several(known, sets, numbers)


def _of_several(
    known: Mapping[int, Cause], sets: CauseSets, numbers: Array
) -> Iterator[tuple[Cause, ...]]:
    has_sets = bool((numbers < NO_EVENT).any())
    for row in numbers.tolist():
        own = {known[number] for number in row if number >= 0}
        if has_sets:
            own.update(cause for number in row if number < NO_EVENT for cause in sets.get(number))
        yield tuple(sorted(own))
