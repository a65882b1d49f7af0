"""Mixed clauses: satisfied by a positive part or else by absence. [PO-6, PO-7]"""

from __future__ import annotations

import numpy as np

from rapport.core.detection import Cause
from rapport.policy.operators.absence import Activations
from rapport.policy.operators.columns import Array, Columns, concatenate, count, take
from rapport.policy.operators.match_finder import (
    absence_wait_ms,
    attach,
    is_awaited,
    part_outcome,
)
from rapport.policy.operators.plan_shape import (
    ClauseShape,
    NotFollowed,
    OrderedTerms,
    Part,
    PlanShape,
)
from rapport.policy.operators.window import Window, causes_of_rows

_LAST = np.int64(2**62)


class MixedClauses:
    """Decides the mixed clauses of matches in order, as far as known events allow: by the earliest
    positive occurrence near the match, or else by absence.

    A waiting match is a row with `t0`, `when` (satisfied so far), `next` (the clause to decide), a
    column for every alias and term (-1: none), and `bare<n>`: whether clause n was satisfied by
    absence alone.
    """

    def __init__(self, window: Window, shape: PlanShape, activations: Activations) -> None:
        self._window, self._clauses, self._activations = window, shape.mixed, activations
        parts = [part for clause in shape.mixed for part in clause.parts]
        waits = [_patience_ms(window, clause) for clause in shape.mixed]
        self._patient = [wait > 0 for wait in waits]
        self._due_after = np.array(
            [clause.window_ms + wait for clause, wait in zip(shape.mixed, waits, strict=True)]
        )
        terms = {term for part in parts for term in part.needs()}
        terms |= {term for each in shape.combinations for term in each.terms}
        steps = [window.plan.terms[term] for term in terms]
        aliases = {f"@{side.alias}" for step in steps for side in (step.first, step.second)}
        timed = sorted(term for term in terms if not window.is_constraint(term))
        self._per_term = ("end", "event", "other", *(("blur",) if window.uncertainty_ms else ()))
        columns = [f"{name}{term}" for term in timed for name in self._per_term]
        needed = {term for part in parts for term in part.needs()}
        self._by_sets = any(window.is_step(term) for term in needed)
        self._bare = tuple(f"bare{number}" for number in range(len(shape.mixed)))
        self.names = (*sorted(aliases), *columns, *(f"has{term}" for term in sorted(terms)))

    def admit(self, frame: Columns, terms: tuple[int, ...], when: Array) -> Columns:
        """Matches as waiting rows."""
        rows = count(frame)
        waiting = {name: frame.get(name, np.full(rows, -1)) for name in self.names}
        waiting |= {f"has{term}": np.ones(rows, np.int64) for term in terms}
        ends = [frame[f"end{term}"] for term in terms if f"end{term}" in frame]
        waiting |= {name: np.zeros(rows, np.int64) for name in self._bare}
        return waiting | {
            "t0": np.maximum.reduce(ends),
            "when": when,
            "next": np.zeros(rows, np.int64),
        }

    def due(self, waiting: Columns) -> Array:
        """The latest time at which the next clause of each row is decided."""
        due: Array = waiting["t0"] + self._due_after[waiting["next"]]
        return due

    def resolve(self, waiting: Columns, watermark: int) -> tuple[Columns, Columns]:
        """Decides what can be decided; returns (finished, still waiting)."""
        for number, clause in enumerate(self._clauses):
            here = waiting["next"] == number
            parts = [take(waiting, ~here)]
            parts += [
                self._decide(take(waiting, rows), number, clause, watermark)
                for rows in self._alike(waiting, np.flatnonzero(here))
            ]
            waiting = concatenate(parts)
        finished = waiting["next"] == len(self._clauses)
        return take(waiting, finished), take(waiting, ~finished)

    def _alike(self, waiting: Columns, rows: Array) -> list[Array]:
        """Groups rows by the terms and aliases they have."""
        if not len(rows):
            return []
        names = [name for name in self.names if name[0] == "@" or name.startswith("has")]
        have = np.column_stack([waiting[name][rows] >= 0 for name in names])
        _, groups = np.unique(have, axis=0, return_inverse=True)
        groups = groups.ravel()
        return [rows[groups == group] for group in range(int(groups.max()) + 1)]

    def _decide(self, rows: Columns, number: int, clause: ClauseShape, watermark: int) -> Columns:
        """Decides one clause for rows with equal terms."""
        due = self.due(rows) <= watermark
        ready = due if self._patient[number] else np.ones(len(due), np.bool_)
        chosen, found = self._earliest(take(rows, ready), np.flatnonzero(ready), clause)
        open_rows = np.ones(len(due), np.bool_)
        open_rows[chosen] = False
        judged = np.flatnonzero(open_rows & due)
        absent = self._by_absence(take(rows, judged), clause, watermark)
        absent[f"bare{number}"] = np.ones(count(absent), np.int64)
        open_rows[judged] = False
        return concatenate([found, absent, take(rows, open_rows)])

    def _by_absence(self, rows: Columns, clause: ClauseShape, watermark: int) -> Columns:
        """The rows without a positive occurrence for which the NOT children hold."""
        bound = _bound(rows)
        rows = take(rows, self._activations.hold(clause, bound, rows["t0"], watermark))
        at = rows["t0"] + absence_wait_ms(self._window, clause)
        return rows | {"when": np.maximum(rows["when"], at), "next": rows["next"] + 1}

    def _earliest(
        self, rows: Columns, numbers: Array, clause: ClauseShape
    ) -> tuple[Array, Columns]:
        """The rows that a positive part satisfies, each with its earliest occurrence."""
        candidates = [
            self._candidates(rows, part, place, clause.window_ms)
            for place, part in enumerate(clause.parts)
        ]
        every = concatenate(candidates)
        order = np.lexsort(self._preference(every))
        every = take(every, order)
        first = np.ones(count(every), np.bool_)
        first[1:] = every["row"][1:] != every["row"][:-1]
        best = take(every, first)
        chosen = numbers[best["row"]]
        best["when"] = np.maximum(best["when"], np.maximum(best["t0"], best["at"]))
        best["next"] = best["next"] + 1
        return chosen, {name: best[name] for name in rows}

    def _candidates(self, rows: Columns, part: Part, place: int, length: int) -> Columns:
        """Every occurrence of the part near t0 with the identities of the row."""
        frame = self._present_columns(rows)
        for term in reversed(part.needs()):
            if f"has{term}" in frame:
                continue
            low, high = frame["t0"] - length + 1, frame["t0"] + length
            if isinstance(part, OrderedTerms) and term == part.first != part.second:
                high = frame[f"end{part.second}"]
                low = high - part.window_ms + 1
            frame = attach(self._window, frame, term, low, high)
            frame[f"has{term}"] = np.ones(count(frame), np.int64)
        holds, when, end = part_outcome(self._window, part, frame, _bound(frame), frame["t0"])
        ends = frame["t0"] if end is None else end
        frame |= {"at": when, "rank": ends, "part": np.full(len(when), place)}
        frame |= self._causes(frame, part)
        frame = take(frame, holds & (np.abs(ends - frame["t0"]) < length))
        missing = np.full(count(frame), -1)
        return {**dict.fromkeys(self.names, missing), **frame}

    def _present_columns(self, rows: Columns) -> Columns:
        """The rows, numbered, without columns of absent terms and aliases."""
        frame = {name: rows[name] for name in ("t0", "when", "next", *self._bare)} | _bound(rows)
        for name in self.names:
            if name.startswith("has") and _is_there(rows[name]):
                term = name.removeprefix("has")
                parts = [f"{part}{term}" for part in ("has", *self._per_term)]
                frame |= {part: rows[part] for part in parts if part in rows}
        frame["row"] = np.arange(count(rows))
        return frame

    def _causes(self, frame: Columns, part: Part) -> Columns:
        """The part's events as sorted ordinals in four columns, so that rows compare like lists of
        causes; as lists if occurrences may have any number of causes."""
        if self._by_sets:
            return {"cause": self._cause_lists(frame, part)}
        events = np.full((count(frame), 4), _LAST)
        for place, term in enumerate(part.needs()):
            if f"event{term}" in frame:
                events[:, 2 * place] = frame[f"event{term}"]
                other = frame[f"other{term}"]
                events[:, 2 * place + 1] = np.where(other < 0, _LAST, other)
        self._merge_equal_causes(events)
        events.sort(axis=1)
        events[:, 1:][events[:, 1:] == events[:, :-1]] = _LAST
        events.sort(axis=1)
        events[events == _LAST] = -1
        return {f"cause{place}": events[:, place] for place in range(4)}

    def _merge_equal_causes(self, events: Array) -> None:
        """Replaces ordinals of events with equal time and id by one of them: they are one cause."""
        causes = self._window.events.causes(events[events != _LAST])
        first: dict[Cause, int] = {}
        for ordinal in sorted(causes):
            own = first.setdefault(causes[ordinal], ordinal)
            if own != ordinal:
                events[events == ordinal] = own

    def _cause_lists(self, frame: Columns, part: Part) -> Array:
        names = [f"{name}{term}" for term in part.needs() for name in ("event", "other")]
        names = [name for name in names if name in frame]
        lists = np.empty(count(frame), object)
        lists[:] = [()] * len(lists)
        if names:
            numbers = np.column_stack([frame[name] for name in names])
            lists[:] = list(causes_of_rows(self._window.events, self._window.sets, numbers))
        return lists

    def _preference(self, every: Columns) -> tuple[Array, ...]:
        """Sort keys, the last first: row, end, causes, order of parts, identities in
        output order."""
        identities = []
        for name in sorted((name for name in every if name[0] == "@"), reverse=True):
            known = self._window.identities[self._window.concepts[name[1:]]]
            ranks = np.concatenate((known.ranks(), [-1]))
            identities.append(ranks[every[name]])
        if self._by_sets:
            causes = [_ranks(every["cause"])]
        else:
            causes = [every[f"cause{place}"] for place in reversed(range(4))]
        return (*identities, every["part"], *causes, every["rank"], every["row"])


def _patience_ms(window: Window, clause: ClauseShape) -> int:
    """How long after its end a part may stay undecided."""
    awaited = [part for part in clause.parts if is_awaited(window, part)]
    windows = [part.window_ms for part in awaited if isinstance(part, NotFollowed)]
    return max(windows, default=0) + (2 * window.uncertainty_ms if awaited else 0)


def _ranks(lists: Array) -> Array:
    """The rank of each list of causes."""
    distinct = {own: place for place, own in enumerate(sorted(set(lists.tolist())))}
    return np.array([distinct[own] for own in lists.tolist()], np.int64)


def _bound(frame: Columns) -> Columns:
    """The aliases with identities; rows have equal columns, so the first decides."""
    return {name: column for name, column in frame.items() if name[0] == "@" and _is_there(column)}


def _is_there(column: Array) -> bool:
    return not len(column) or bool(column[0] >= 0)
