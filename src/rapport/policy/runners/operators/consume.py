"""Positive correlations: pairs of events where each is used once per pair of identities. [PO-6,
PO-7]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rapport.policy.language.tree import Consumption
from rapport.policy.plan import CorrelationTerm
from rapport.policy.runners.operators.near import partner_rows
from rapport.policy.runners.operators.predicate import Predicate
from rapport.policy.runners.operators.table import (
    Columns,
    Rows,
    Table,
    concatenate,
    spread,
    take,
)

_NONE = np.zeros(0, np.int64)
_FIRST_SIDE = -1
_SECOND_SIDE = -2


class Correlator:
    """Finds the pairs of one term. Events come in (time, id) order; each takes an unused one that
    fits.

    Candidates are found in bulk; only pairs that fit are walked one by one, since taking is
    sequential.
    """

    def __init__(
        self,
        term: CorrelationTerm,
        predicate: Predicate,
        window_ms: int,
        consumption: Consumption,
    ) -> None:
        self._predicate = predicate
        self._window, self._recent = window_ms, consumption == "recent"
        self._one_alias = term.first.alias == term.second.alias
        self._one_stream = term.first.stream == term.second.stream
        self._used: dict[tuple[int, int], dict[int, int]] = {}
        """Per pair of identities the ordinals (with times) of events that are used up or passed
        over.
        """

    def pairs(self, first: Table, second: Table) -> Columns:
        """Occurrences completed by the new events of the two sides, in the order they arise."""
        fits = concatenate([self._fits(first, second, True), self._fits(second, first, False)])
        newest_first = -fits["old"] if self._recent else fits["old"]
        fits = take(fits, np.lexsort((newest_first, fits["role"], fits["new"])))
        chosen = take(fits, self._take(fits))
        by_role = chosen["role"] == 0
        blurs = {"blur": chosen["blur"]} if "blur" in chosen else {}
        return blurs | {
            "first": chosen["first"],
            "second": chosen["second"],
            "end": chosen["new_time"],
            "start": chosen["old_time"],
            "event": np.where(by_role, chosen["new"], chosen["old"]),
            "other": np.where(by_role, chosen["old"], chosen["new"]),
        }

    def _fits(self, mine: Table, theirs: Table, is_first: bool) -> Columns:
        """Pairs of a new event of one side and an earlier one of the other, for which the function
        holds.
        """
        new = {name: column[mine.first_new :] for name, column in mine.columns.items()}
        low = theirs.rows_from(new["end"] - self._window + 1)
        high = np.searchsorted(theirs.columns["event"], new["event"]).astype(np.int64)
        parts = [(_NONE, _NONE)]
        for owners, rows in self._candidates(theirs, new, low, high):
            sides = (new, owners), (theirs.columns, rows)
            first, second = sides if is_first else sides[::-1]
            mask = self._predicate.holds_of(*first, *second)
            parts.append((owners[mask], rows[mask]))
        owners = np.concatenate([part[0] for part in parts])
        rows = np.concatenate([part[1] for part in parts])
        codes = new["code"][owners], theirs.columns["code"][rows]
        blurs = {}
        if "blur" in new:
            blurs["blur"] = np.maximum(new["blur"][owners], theirs.columns["blur"][rows])
        return blurs | {
            "first": codes[0] if is_first else codes[1],
            "second": codes[1] if is_first else codes[0],
            "new": new["event"][owners],
            "old": theirs.columns["event"][rows],
            "new_time": new["end"][owners],
            "old_time": theirs.columns["end"][rows],
            "role": np.full(len(owners), 0 if is_first else 1),
        }

    def _candidates(
        self, theirs: Table, new: Columns, low: Rows, high: Rows
    ) -> Iterator[tuple[Rows, Rows]]:
        if not self._one_alias:
            return partner_rows(theirs, new.get("cell"), low, high)
        owners, places = spread(*theirs.find("code", new["code"], low, high))
        return iter([(owners, theirs.rows_at("code", places))])

    def _take(self, fits: Columns) -> Rows:
        """Walks the fitting pairs in order of arrival, oldest (or newest) partner first."""
        taken = []
        names = ("first", "second", "role", "new", "old", "new_time", "old_time")
        rows = zip(*(fits[name].tolist() for name in names), strict=True)
        for number, (first, second, role, new, old, new_time, old_time) in enumerate(rows):
            used = self._used.setdefault((first, second), {})
            if new in used or old in used:
                continue
            if self._recent:
                # One mark stands for "this and all older events of that side are gone".
                same = self._one_stream and first == second
                mark = _FIRST_SIDE if same or role == 1 else _SECOND_SIDE  # where `old` stands
                if old <= used.get(mark, -1):
                    continue
                used[mark] = old
            used[new], used[old] = new_time, old_time
            taken.append(number)
        return np.array(taken, np.int64)

    def trim(self, before: int) -> None:
        """Forgets what was used up before a time: it is out of every window."""
        for pair, used in list(self._used.items()):
            kept = {event: time for event, time in used.items() if event < 0 or time >= before}
            if any(event >= 0 for event in kept):
                self._used[pair] = kept
            else:
                del self._used[pair]

    def size(self) -> int:
        """Remembered entries."""
        return sum(map(len, self._used.values()))

    def state(self) -> list[Any]:
        """What `restore` takes."""
        return [[first, second, used] for (first, second), used in self._used.items()]

    def restore(self, state: list[Any]) -> None:
        """Takes over what `state` gave."""
        self._used = {(first, second): dict(used) for first, second, used in state}
