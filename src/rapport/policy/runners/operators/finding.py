"""Finding what may be a match: sets of occurrences with a new one, sieved by order and nearness,
once for all plans that ask the same. [PO-6, PO-13]
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from rapport.policy.runners.operators.decide import NEVER, is_awaited, latest_end, matched_at
from rapport.policy.runners.operators.join import PARTS
from rapport.policy.runners.operators.join_paths import (
    JoinPath,
    for_reading,
    joining_order,
    make_path,
)
from rapport.policy.runners.operators.shapes import (
    Combination,
    NotFollowed,
    NotPreceded,
    Part,
    PlanShape,
)
from rapport.policy.runners.operators.shared_steps import SharedCache
from rapport.policy.runners.operators.table import Columns, concatenate, count, take
from rapport.policy.runners.operators.term_sides import is_shareable, renamed
from rapport.policy.runners.operators.window import Window

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
