"""Matches whose absence is not yet known, by the time at which it will be. [PO-6]

Finding what may be a match: sets of occurrences with a new one, sieved by order and nearness,
once for all plans that ask the same. [PO-6, PO-13]

Matches under way: open until the absence they ask for is known, then waiting for mixed clauses.
[PO-6, PO-7]
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator
from itertools import count as numbers
from typing import Any

import numpy as np

from rapport.policy.operators.absence import Activations
from rapport.policy.operators.clauses import (
    NEVER,
    MixedClauses,
    absence_for_some,
    absence_wait_ms,
    aliases_of,
    decided_at,
    is_awaited,
    latest_end,
    matched_at,
)
from rapport.policy.operators.columns import Array, Columns, concatenate, count, take, with_blurs
from rapport.policy.operators.joins import PARTS, JoinPath, for_reading, joining_order, make_path
from rapport.policy.operators.plan_shape import (
    Combination,
    NotFollowed,
    NotPreceded,
    Part,
    PlanShape,
)
from rapport.policy.operators.sharing import SharedCache, is_shareable, renamed
from rapport.policy.operators.variants import FamilyMembers
from rapport.policy.operators.window import Window


class OpenMatches:
    """Rows with a column `due`, of one combination. A look at what is due costs what is due and
    the logarithm of the batches that opened something, however many matches are open.
    """

    def __init__(self) -> None:
        self._chunks: list[tuple[int, int, Columns]] = []
        """First due time, a number that tells equal ones apart, rows by due time; a heap."""
        self._numbers = numbers()

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add(self, frame: Columns) -> None:
        """Opens matches."""
        due = frame["due"]
        if len(due) > 1 and (due[1:] < due[:-1]).any():
            frame = take(frame, np.argsort(due, kind="stable"))
        self._push(frame)

    def pop_due(self, watermark: int) -> Columns | None:
        """Takes out what is due by the watermark; None when nothing is."""
        parts = []
        while self._chunks and self._chunks[0][0] <= watermark:
            _, _, frame = heapq.heappop(self._chunks)
            edge = int(np.searchsorted(frame["due"], watermark, "right"))
            parts.append(take(frame, slice(0, edge)))
            if edge < count(frame):
                self._push(take(frame, slice(edge, None)))
        return concatenate(parts) if parts else None

    def first_due(self) -> int | None:
        """When the first of them is due."""
        return self._chunks[0][0] if self._chunks else None

    def least(self, of: str, or_else: str, after_ms: int) -> int | None:
        """Over all rows the least of the larger of a column and another some time later."""
        frames = [frame for _, _, frame in self._chunks]
        found = [np.maximum(one[of], one[or_else] + after_ms).min() for one in frames]
        return min(map(int, found), default=None)

    def state(self) -> Columns | None:
        """All rows as one frame."""
        frames = [frame for _, _, frame in sorted(self._chunks, key=lambda chunk: chunk[:2])]
        return concatenate(frames) if frames else None

    def _push(self, frame: Columns) -> None:
        first = int(frame["due"][0])
        heapq.heappush(self._chunks, (first, next(self._numbers), frame))


_NOTHING: Columns = {}


class MatchFinder:
    """What one combination of terms finds, batch by batch.

    Who shares all tables of a combination with others finds with one look what they found; who
    shares some of them begins with what they joined.
    """

    def __init__(self, window: Window, shape: PlanShape, number: int, shared: SharedCache) -> None:
        self._window, self._shape, self._number, self._shared = window, shape, number, shared
        self._combination = shape.combinations[number]
        self.awaited = [part for part in shape.parts_around(number) if is_awaited(window, part)]
        """What is not known when the terms are there."""
        self._terms = self._combination.terms
        self._timed = tuple(term for term in self._terms if not window.is_constraint(term))
        self._several: frozenset[int] | None = None
        self._paths: dict[int, JoinPath] = {}
        self._names: dict[str, str] = {}
        self._key: Hashable = None

    def new_matches(self) -> Columns | None:
        """Rows that new occurrences complete, with `t0` and `when` the last clause is satisfied if
        nothing awaited hinders it; None when there are none.
        """
        tables = self._window.occurrences
        starts = [term for term in self._timed if tables[term].first_new < len(tables[term])]
        if not starts:
            return None
        self._arrange()
        if self._key is None:
            return self._found(starts) or None
        known = self._shared.made(self._key)
        if known is not None:
            self._shared.wanted += sum(len(self._paths[term].steps) - 1 for term in starts)
        else:
            known = self._commonly_named(self._found(starts))
            self._shared.note(self._key, for_reading(known))
        return {self._names[name]: column for name, column in known.items()} or None

    def _found(self, starts: list[int]) -> Columns:
        found = [self._paths[term].rows(self._shared) for term in starts]
        found = [frame for frame in found if count(frame)]
        if not found:
            return _NOTHING
        frame = concatenate(found)
        assume = bool(self.awaited)
        when = matched_at(self._window, self._shape, self._number, frame, assume_absence=assume)
        chosen = when < NEVER
        if not chosen.any():
            return _NOTHING
        if not chosen.all():
            frame, when = take(frame, chosen), when[chosen]
        return frame | {"t0": latest_end(self._window, self._combination, frame), "when": when}

    def _commonly_named(self, frame: Columns) -> Columns:
        own = {name: common for common, name in self._names.items()}
        return {own[name]: column for name, column in frame.items()}

    def _arrange(self) -> None:
        """Prepares paths, anew when others have come or gone who have the same tables."""
        common = self._window.common
        several = frozenset(term for term in self._timed if common.is_read_by_several(term))
        if several == self._several:
            return
        self._several, window = several, self._window
        order = self._terms
        if several and len(order) > 1:
            order = joining_order(window.plan.terms, order)
        reach_ms = window.plan.window_ms + self._combination.longest_sequence_ms()
        self._paths = {
            term: make_path(window, order, term, reach_ms, self._has_others) for term in self._timed
        }
        self._key = self._whole_key(order) if len(several) == len(self._timed) else None

    def _has_others(self, term: int) -> bool:
        assert self._several is not None
        if self._window.is_constraint(term):
            return is_shareable(self._window.plan.terms[term])
        return term in self._several

    def _whole_key(self, order: tuple[int, ...]) -> Hashable:
        """What everything found depends on besides readings; None where others may find more or
        less.
        """
        places = {term: place for place, term in enumerate(order)}
        paths = [self._paths[term] for term in order if term in self._paths]
        sieve = self._sieve(places)
        if sieve is None or any(path.steps[-1].key is None for path in paths):
            return None
        self._names = self._common_names(order)
        steps = [(path.steps[-1].key, *(places[one.term] for one in path.steps)) for path in paths]
        window_ms = self._window.plan.window_ms if len(paths) > 1 else 0
        return (MatchFinder, tuple(steps), window_ms, sieve)

    def _sieve(self, places: dict[int, int]) -> Hashable:
        """What decides which rows are matches so far; None where that is absence already."""
        combinations, own = self._shape.combinations, self._combination
        smaller = () if self.awaited else own.smaller
        around = [own, *(combinations[number] for number in smaller)]
        if any(self._is_sought(part) for one in around for part in one.parts()):
            return None
        ways = tuple(frozenset(_ways(one, places)) for one in around)
        return (bool(self.awaited), ways)

    def _is_sought(self, part: Part) -> bool:
        absent = isinstance(part, NotFollowed | NotPreceded)
        return absent and not is_awaited(self._window, part)

    def _common_names(self, order: tuple[int, ...]) -> dict[str, str]:
        """What plans call the columns among each other, and what this one does."""
        names = {name: name for name in ("t0", "when", "latest", "earliest")}
        _, aliases = renamed(self._window.plan.terms[term] for term in order)
        names |= {f"@{common}": f"@{alias}" for alias, common in aliases.items()}
        for place, term in enumerate(order):
            names |= {f"{part}{place}": f"{part}{term}" for part in PARTS}
        return names


def _ways(combination: Combination, places: dict[int, int]) -> Iterator[Hashable]:
    """The choices of a combination, its terms told by their places; what is awaited counts as
    there.
    """
    for choice in combination.choices:
        yield frozenset(
            (type(part), *(places[term] for term in part.needs()), getattr(part, "window_ms", None))
            for part in choice
        )


MatchSink = Callable[[Columns, Array], None]
"""Takes matches that survived, with the times of their detections."""


class PendingMatches:
    """All matches of one operator that are not yet decided."""

    def __init__(
        self,
        window: Window,
        shape: PlanShape,
        activations: Activations,
        members: FamilyMembers | None,
        shared: SharedCache,
        decided: MatchSink,
    ) -> None:
        self._window, self._shape, self._shared = window, shape, shared
        self._activations, self._members, self._decided = activations, members, decided
        self._mixed = MixedClauses(window, shape, activations) if shape.mixed else None
        self._absence_ms = max(
            (absence_wait_ms(window, clause) for clause in shape.absent), default=0
        )
        if window.varying is None:
            for clause in shape.absent:
                for one in shape.combinations:
                    activations.expect(clause, aliases_of(window, one))
        self._begin()

    def _begin(self) -> None:
        numbers = range(len(self._shape.combinations))
        self._finders = [MatchFinder(self._window, self._shape, n, self._shared) for n in numbers]
        self._open = [OpenMatches() for _ in numbers]
        self._waiting: Columns | None = None

    @property
    def has_late(self) -> bool:
        """Whether some may be decided after the time of their detection."""
        return self._mixed is not None or any(one.awaited for one in self._finders)

    def open_new(self) -> None:
        """Finds what new occurrences complete; it stays open until everything it depends on is
        known.
        """
        for finder, own in zip(self._finders, self._open, strict=True):
            frame = finder.new_matches()
            if frame is None:
                continue
            due = frame["t0"] + self._absence_ms
            for part in finder.awaited:
                due = np.maximum(due, decided_at(self._window, part, frame))
            frame["due"] = due
            own.add(frame)

    def decide(self, watermark: int) -> None:
        """Decides what is due; those with mixed clauses go on waiting for these."""
        for number in range(len(self._open)):
            self._close_due(number, watermark)
        if self._waiting is not None and self._mixed is not None:
            finished, waiting = self._mixed.resolve(self._waiting, watermark)
            self._waiting = waiting if count(waiting) else None
            self._decided(finished, finished["when"])

    def opened(self) -> Iterator[int]:
        """Where nothing else is awaited than the NOT clauses: a time that no open match opened
        before, for each combination that has some.
        """
        for own in self._open:
            due = own.first_due()
            if due is not None:
                yield due - self._absence_ms

    def dues(self) -> Iterator[int]:
        """When something is decided next without a reading."""
        for own in self._open:
            due = own.first_due()
            if due is not None:
                yield due
        if self._waiting is not None and self._mixed is not None:
            yield int(self._mixed.due(self._waiting).min())

    def settled_until(self, watermark: int) -> int:
        """Before this time no further detection can come: none of what is open is earlier."""
        times = [watermark]
        for own in self._open:
            least = own.least("when", "t0", self._absence_ms)
            if least is not None:
                times.append(least)
        if self._waiting is not None:
            times.append(int(self._waiting["when"].min()))
        return min(times)

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        rows = {str(number): own.state() for number, own in enumerate(self._open) if own}
        return {"open": rows, "waiting": self._waiting}

    def restore(self, state: dict[str, Any]) -> None:
        """Takes over what `state` gave; the window has done so."""
        self._begin()
        blurred = self._window.uncertainty_ms > 0
        for number, frame in state["open"].items():
            self._open[int(number)].add(with_blurs(frame, blurred))
        waiting = state["waiting"]
        self._waiting = None if waiting is None else with_blurs(waiting, blurred)

    def _close_due(self, number: int, watermark: int) -> None:
        frame = self._open[number].pop_due(watermark)
        if frame is None:
            return
        if self._finders[number].awaited:
            frame["when"] = matched_at(self._window, self._shape, number, frame)
            frame = take(frame, frame["when"] < NEVER)
        frame = self._without_refuted(frame)
        if not count(frame):
            return
        times = np.maximum(frame["when"], frame["t0"])
        if self._mixed is None:
            self._decided(frame, times)
            return
        terms = self._shape.combinations[number].terms
        waiting = self._mixed.admit(frame, terms, times)
        self._waiting = waiting if self._waiting is None else concatenate([self._waiting, waiting])

    def _without_refuted(self, frame: Columns) -> Columns:
        """The matches for which every NOT clause holds, satisfied at t0 + its window; in a family
        for some of it.
        """
        for clause in self._shape.absent:
            bound = {name: column for name, column in frame.items() if name[0] == "@"}
            if self._window.varying is None:
                holds = self._activations.hold(clause, bound, frame["t0"])
            else:
                assert self._members is not None
                holds, some = absence_for_some(self._window, clause, bound, frame["t0"])
                frame = self._members.refute(frame, some)
            frame = take(frame, holds)
            at = frame["t0"] + absence_wait_ms(self._window, clause)
            frame["when"] = np.maximum(frame["when"], at)
        return frame
