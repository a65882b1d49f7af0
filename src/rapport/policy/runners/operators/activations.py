"""Activations: matches that wait for a counterexample, asked about once for all policies. [PO-6,
PO-13]

Rule 4 looks at events from t0 on only, and all operators of a runner have seen the same from any
time at which they were there. So when the first counterexample of an activation was complete
depends on nothing but what the clause says, t0 and the identities: one search answers for every
policy that has the clause, whatever its window and its names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from weakref import WeakSet

import numpy as np
from msgspec.structs import replace

from rapport.policy.plan import CorrelationTerm, LastingTerm, SilentTerm, TermStep
from rapport.policy.runners.operators.absence import SearchSpan, first_counterexamples, refuted
from rapport.policy.runners.operators.shapes import ClauseShape
from rapport.policy.runners.operators.shared_steps import SharedCache
from rapport.policy.runners.operators.table import Array, Columns, Mask, Rows, concatenate, take
from rapport.policy.runners.operators.term_sides import is_shareable, renamed
from rapport.policy.runners.operators.window import Window

_NEVER = 1 << 62
_AHEAD = 4
"""A search looks so many windows ahead where somebody has a longer one: each longer window then
looks again seldom, and a short one never pays for a much longer one.
"""
_NO_ROWS: Rows = np.zeros(0, np.int64)
_MIX, _STEP = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)


class CounterexampleQuery:
    """One operator asking about one joint counterexample, and what its aliases are called there."""

    def __init__(self, window_ms: int, names: dict[str, str], known: ActivationCache) -> None:
        self.window_ms, self.names, self.known = window_ms, names, known
        known.askers.add(self)


class ActivationCache:
    """Of each activation asked about lately: when its first counterexample was complete, and up to
    which time that is known. Costs a binary search per question; grows with the activations of the
    longest window. Never saved: who does not find an answer here looks for himself.
    """

    def __init__(self) -> None:
        self.askers: WeakSet[CounterexampleQuery] = WeakSet()
        self._hashes = np.zeros(0, np.uint64)
        self._columns: Columns = {}
        self._watermark = self._earlier = -_NEVER
        self.searched = 0
        """Activations for which counterexamples were looked for so far."""

    def longest_ms(self) -> int:
        """The longest window that somebody asks with."""
        return max(asker.window_ms for asker in self.askers)

    def turn_to(self, watermark: int) -> None:
        """Goes on to a batch, perhaps the one others had before."""
        if watermark != self._watermark:
            self._earlier, self._watermark = self._watermark, watermark

    def find(self, asked: Columns) -> tuple[Rows, Rows]:
        """Rows of those asked for (columns `t0`, and the codes of identities) that are known, and
        where.
        """
        if not len(self._hashes):
            return _NO_ROWS, _NO_ROWS
        hashes = _hashed(asked)
        places = np.searchsorted(self._hashes, hashes)
        places[places == len(self._hashes)] = 0
        same = self._hashes[places] == hashes
        for name, column in asked.items():
            same &= self._columns[name][places] == column
        rows = np.flatnonzero(same)
        return rows, places[rows]

    def first(self, places: Rows) -> tuple[Array, Array]:
        """When the first counterexample was complete, and up to which time that is known."""
        if not len(places):
            return _NO_ROWS, _NO_ROWS
        return self._columns["first"][places], self._columns["until"][places]

    def learn(self, asked: Columns, first: Array, until: Array) -> None:
        """Remembers answers in place of those known before; forgets what nobody asks any more."""
        self.searched += len(first)
        columns = asked | {"first": first, "until": until}
        if len(self._hashes):
            _, places = self.find(asked)
            kept = self._columns["t0"] >= self._earlier - self.longest_ms()
            kept[places] = False
            columns = concatenate([take(self._columns, kept), columns])
        # Of two that share a hash one is found; the other is looked for each time it is asked for.
        hashes = _hashed({name: columns[name] for name in asked})
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._columns = hashes[order], take(columns, order)


class Activations:
    """The NOT clauses of one operator: which matches they hold of.

    Where nobody else asks, counterexamples are looked for as long as the window and no further.
    """

    def __init__(self, window: Window, shared: SharedCache) -> None:
        self._window, self._shared = window, shared
        self._askers: dict[
            tuple[tuple[int, ...], int, frozenset[str]], CounterexampleQuery | None
        ] = {}
        self._watermark = -_NEVER
        self._own_before = -_NEVER

    def expect(self, clause: ClauseShape, bound: Iterable[str]) -> None:
        """Says before the first question which matches will be asked about, by their `@alias`
        columns, so that others know.
        """
        for terms in clause.counterexamples:
            self._asker(terms, clause.window_ms, bound)

    def stand_alone_before(self, time: int) -> None:
        """What was opened before a time is looked for here alone: of what came before it others
        may have seen more, or less.
        """
        self._own_before = time

    def turn_to(self, watermark: int) -> None:
        """Goes on: all that ended before the watermark is known."""
        self._watermark = watermark

    def hold(self, clause: ClauseShape, bound: Columns, t0: Array) -> Mask:
        """Rule 4: which matches have no joint counterexample among events of [t0, t0 + window).
        `bound`: the `@alias` columns of the matches, all of which are due.
        """
        holds = np.ones(len(t0), np.bool_)
        for terms in clause.counterexamples:
            holds &= ~self._refuted(terms, clause.window_ms, bound, t0)
        return holds

    def _refuted(self, terms: tuple[int, ...], window_ms: int, bound: Columns, t0: Array) -> Mask:
        asker = self._asker(terms, window_ms, bound)
        if asker is None or len(asker.known.askers) < 2 or self._is_own(t0):
            self._window.note_search()
            return refuted(self._window, terms, bound, SearchSpan(t0, t0 + window_ms, t0))
        names = asker.names
        asked = {names[name[1:]]: codes for name, codes in bound.items() if name[1:] in names}
        return np.asarray(self._first(asker, terms, {"t0": t0, **asked}) < t0 + window_ms)

    def _is_own(self, t0: Array) -> bool:
        return self._own_before > -_NEVER and bool((t0 < self._own_before).any())

    def _first(self, asker: CounterexampleQuery, terms: Sequence[int], asked: Columns) -> Array:
        """When the first counterexample of each was complete, as far as the asker must know."""
        known, t0 = asker.known, asked["t0"]
        known.turn_to(self._watermark)
        self._shared.wanted += 1
        first, unknown = np.full(len(t0), _NEVER), np.ones(len(t0), np.bool_)
        rows, places = known.find(asked)
        first[rows], until = known.first(places)
        unknown[rows] = (first[rows] == _NEVER) & (until < t0[rows] + asker.window_ms)
        if unknown.any():
            self._shared.computed += 1
            once, which = _each_once(take(asked, unknown))
            ahead = min(known.longest_ms(), _AHEAD * asker.window_ms)
            until = np.minimum(once["t0"] + ahead, self._watermark)
            found = self._search(asker, terms, once, until)
            known.learn(once, found, until)
            first[unknown] = found[which]
        return first

    def _search(
        self, asker: CounterexampleQuery, terms: Sequence[int], asked: Columns, until: Array
    ) -> Array:
        t0 = asked["t0"]
        bound = {f"@{alias}": asked[name] for alias, name in asker.names.items() if name in asked}
        span = SearchSpan(t0, until, t0, covered_ms=asker.window_ms)
        rows, ends = first_counterexamples(self._window, terms, bound, span)
        first = np.full(len(t0), _NEVER)
        np.minimum.at(first, rows, ends)
        return first

    def _asker(
        self, terms: tuple[int, ...], window_ms: int, bound: Iterable[str]
    ) -> CounterexampleQuery | None:
        """Who asks about matches with these `@alias` columns; None when nobody else can say."""
        key = (terms, window_ms, frozenset(bound))
        if key not in self._askers:
            self._askers[key] = self._new_asker(*key)
        return self._askers[key]

    def _new_asker(
        self, terms: tuple[int, ...], window_ms: int, bound: frozenset[str]
    ) -> CounterexampleQuery | None:
        window = self._window
        steps = [window.plan.terms[term] for term in terms]
        if any(isinstance(one, LastingTerm | SilentTerm) or not is_shareable(one) for one in steps):
            return None
        blank, names = renamed([_without_window(step) for step in steps])
        apart = [
            pair
            for pair in window.plan.distinct
            if any(alias in names for alias in pair)
            and all(alias in names or f"@{alias}" in bound for alias in pair)
        ]
        for alias in (alias for pair in apart for alias in pair):
            names.setdefault(alias, str(len(names)))
        key = (
            ActivationCache,
            blank,
            tuple(window.identities[window.alias_concept(alias)] for alias in names),
            tuple(self._pair_ms(term, window_ms) for term in terms),
            frozenset(frozenset(map(names.__getitem__, pair)) for pair in apart),
            frozenset(name for alias, name in names.items() if f"@{alias}" in bound),
        )
        return CounterexampleQuery(window_ms, names, self._shared.keep(key, ActivationCache))

    def _pair_ms(self, term: int, window_ms: int) -> int | None:
        """How close the events of a pair must be; None: all in the window are close enough."""
        if not isinstance(self._window.plan.terms[term], CorrelationTerm):
            return None
        own_ms = self._window.correlations.window_ms(term)
        return own_ms if own_ms < window_ms else None


def _without_window(term: TermStep) -> TermStep:
    return replace(term, window_ms=None) if isinstance(term, CorrelationTerm) else term


def _each_once(asked: Columns) -> tuple[Columns, Rows]:
    """The different ones, and for each which it is."""
    _, first, which = np.unique(_hashed(asked), return_index=True, return_inverse=True)
    once = take(asked, first)
    if all(bool((once[name][which] == column).all()) for name, column in asked.items()):
        return once, which
    return asked, np.arange(len(which))  # different ones share a hash


def _hashed(asked: Columns) -> Array:
    """One number for the columns of each row."""
    mixed = np.zeros(len(asked["t0"]), np.uint64)
    for name in sorted(asked):
        mixed = (mixed ^ asked[name].astype(np.uint64)) * _MIX
        mixed ^= mixed >> _STEP
    return mixed
