"""Finds matches and keeps them until they are decided: open until their absence is known, then
waiting for mixed clauses. [PO-6, PO-7, PO-13]"""

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
    absence_in_family,
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

_NOTHING: Columns = {}


class OpenMatches:
    """Open matches of one combination, rows with a column `due`. Taking due ones costs their number
    and the logarithm of the batches, independent of the open matches."""

    def __init__(self) -> None:
        self._chunks: list[tuple[int, int, Columns]] = []
        """A heap of (first due time, tie-breaker, rows by due time)."""
        self._numbers = numbers()

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add(self, frame: Columns) -> None:
        due = frame["due"]
        if len(due) > 1 and (due[1:] < due[:-1]).any():
            frame = take(frame, np.argsort(due, kind="stable"))
        self._push(frame)

    def pop_due(self, watermark: int) -> Columns | None:
        """Removes and returns what is due by the watermark; None if nothing is."""
        parts = []
        while self._chunks and self._chunks[0][0] <= watermark:
            _, _, frame = heapq.heappop(self._chunks)
            edge = int(np.searchsorted(frame["due"], watermark, "right"))
            parts.append(take(frame, slice(0, edge)))
            if edge < count(frame):
                self._push(take(frame, slice(edge, None)))
        return concatenate(parts) if parts else None

    def first_due(self) -> int | None:
        return self._chunks[0][0] if self._chunks else None

    def least(self, of: str, or_else: str, after_ms: int) -> int | None:
        """The minimum over all rows of max(`of`, `or_else` + `after_ms`)."""
        frames = [frame for _, _, frame in self._chunks]
        found = [np.maximum(one[of], one[or_else] + after_ms).min() for one in frames]
        return min(map(int, found), default=None)

    def state(self) -> Columns | None:
        frames = [frame for _, _, frame in sorted(self._chunks, key=lambda chunk: chunk[:2])]
        return concatenate(frames) if frames else None

    def _push(self, frame: Columns) -> None:
        first = int(frame["due"][0])
        heapq.heappush(self._chunks, (first, next(self._numbers), frame))


class MatchFinder:
    """Finds the matches of one combination of terms, batch by batch.

    If all tables are shared, the result is shared too; if some are, the first joins are.
    """

    def __init__(self, window: Window, shape: PlanShape, number: int, shared: SharedCache) -> None:
        self._window, self._shape, self._number, self._shared = window, shape, number, shared
        self._combination = shape.combinations[number]
        self.awaited = [part for part in shape.parts_around(number) if is_awaited(window, part)]
        """Parts that are not known when the terms occur."""
        self._terms = self._combination.terms
        self._timed = tuple(term for term in self._terms if not window.is_constraint(term))
        self._several: frozenset[int] | None = None
        self._paths: dict[int, JoinPath] = {}
        self._names: dict[str, str] = {}
        self._key: Hashable = None

    def new_matches(self) -> Columns | None:
        """Rows completed by new occurrences, with `t0` and `when` the last clause is satisfied
        unless an awaited part fails; None if there are none."""
        tables = self._window.occurrences
        starts = [term for term in self._timed if tables[term].first_new < len(tables[term])]
        if not starts:
            return None
        self._arrange()
        if self._key is None:
            return self._found(starts) or None
        known = self._shared.batch_result(self._key)
        if known is not None:
            self._shared.wanted += sum(len(self._paths[term].steps) - 1 for term in starts)
        else:
            known = self._commonly_named(self._found(starts))
            self._shared.store_batch_result(self._key, for_reading(known))
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
        """Plans the joins again when the sharing of tables has changed."""
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
        """Everything the result depends on besides readings; None if it cannot be shared."""
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
        """The conditions that filter rows to matches; None if they include absence."""
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
        """Shared column names, and this plan's names."""
        names = {name: name for name in ("t0", "when", "latest", "earliest")}
        _, aliases = renamed(self._window.plan.terms[term] for term in order)
        names |= {f"@{common}": f"@{alias}" for alias, common in aliases.items()}
        for place, term in enumerate(order):
            names |= {f"{part}{place}": f"{part}{term}" for part in PARTS}
        return names


def _ways(combination: Combination, places: dict[int, int]) -> Iterator[Hashable]:
    """The choices of a combination with terms by position; awaited parts count as given."""
    for choice in combination.choices:
        yield frozenset(
            (type(part), *(places[term] for term in part.needs()), getattr(part, "window_ms", None))
            for part in choice
        )


MatchSink = Callable[[Columns, Array], None]
"""Receives decided matches with the times of their detections."""


class PendingMatches:
    """All undecided matches of one operator."""

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
    def may_decide_late(self) -> bool:
        """Whether some may be decided after the time of their detection."""
        return self._mixed is not None or any(one.awaited for one in self._finders)

    def open_new(self) -> None:
        """Opens the matches that new occurrences complete."""
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
        """Decides due matches; those with mixed clauses continue to wait."""
        for number in range(len(self._open)):
            self._close_due(number, watermark)
        if self._waiting is not None and self._mixed is not None:
            finished, waiting = self._mixed.resolve(self._waiting, watermark)
            self._waiting = waiting if count(waiting) else None
            self._decided(finished, finished["when"])

    def opened(self) -> Iterator[int]:
        """For each combination with open matches, a time before which none was opened; valid if
        only NOT clauses are awaited."""
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
        """No further detection can have a time before this."""
        times = [watermark]
        for own in self._open:
            least = own.least("when", "t0", self._absence_ms)
            if least is not None:
                times.append(least)
        if self._waiting is not None:
            times.append(int(self._waiting["when"].min()))
        return min(times)

    def state(self) -> dict[str, Any]:
        rows = {str(number): own.state() for number, own in enumerate(self._open) if own}
        return {"open": rows, "waiting": self._waiting}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores a state after the window."""
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
        """The matches for which every NOT clause holds (in a family for some members), satisfied at
        t0 + its window."""
        for clause in self._shape.absent:
            bound = {name: column for name, column in frame.items() if name[0] == "@"}
            if self._window.varying is None:
                holds = self._activations.hold(clause, bound, frame["t0"])
            else:
                assert self._members is not None
                holds, some = absence_in_family(self._window, clause, bound, frame["t0"])
                frame = self._members.refute(frame, some)
            frame = take(frame, holds)
            at = frame["t0"] + absence_wait_ms(self._window, clause)
            frame["when"] = np.maximum(frame["when"], at)
        return frame
