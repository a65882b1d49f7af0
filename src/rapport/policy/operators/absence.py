"""Evaluates absence: searches joint counterexamples in bulk, restricted to the identities of the
matches. [PO-6, PO-7, PO-13]

A match that waits for a counterexample is an activation. By rule 4 only events from its t0 on
count, and all operators of a runner see the same events. So the first counterexample depends only
on the clause, t0 and the identities, and one search serves every policy with that clause, whatever
its window and alias names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from weakref import WeakSet

import numpy as np
from msgspec.structs import replace

from rapport.policy.operators.columns import (
    NO_ROWS,
    Array,
    Columns,
    Mask,
    Rows,
    Table,
    concatenate,
    count,
    spread,
    take,
)
from rapport.policy.operators.correlations import EventQuery
from rapport.policy.operators.occurrences import Predicate
from rapport.policy.operators.plan_shape import ClauseShape
from rapport.policy.operators.shared_cache import SharedCache, is_shareable, renamed
from rapport.policy.operators.spatial import partner_rows
from rapport.policy.operators.variants import NEED
from rapport.policy.operators.window import Window
from rapport.policy.plan import CorrelationTerm, LastingTerm, SilentTerm, TermStep

_MOST_ROWS = 1 << 20
_LARGEST_KEY = 1 << 62
_FEW_PAIRS = 4_096
"""Up to this many pairs, testing all is faster than using cells."""
_MANY_UNEVALUATED = 64
"""From this many look-ups on, searching near the match is cheaper."""
_ANY_TIME = -(1 << 62)
_ANY_LENGTH = 1 << 61
LATEST = "latest"
"""The column with the latest end of a row's occurrences so far."""
_NEVER = 1 << 62
_AHEAD = 4
"""A search covers up to this many windows if another query has a longer one. Longer windows then
rarely search again, and short ones never pay for much longer ones."""
_MIX, _STEP = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)


class SearchSpan:
    """For each match the range of ends in [low, high), with starts at or after `since`; with
    `unsure_ms`, ends that may lie in it given clock uncertainty.

    Pairs whose own window is at least `covered_ms` may be any distance apart.
    """

    def __init__(
        self,
        low: Array,
        high: Array,
        since: Array | None = None,
        *,
        unsure_ms: int = 0,
        covered_ms: int = _ANY_LENGTH,
    ) -> None:
        self.low, self.high = low, high
        self.since = np.full(len(low), _ANY_TIME) if since is None else since
        self.unsure_ms, self._covered_ms = unsure_ms, covered_ms
        self.earliest, self.latest = low - unsure_ms, high + unsure_ms

    def pair_ms(self, own_ms: int) -> int:
        """The maximal distance of the events of a pair with the window `own_ms`."""
        return own_ms if own_ms < self._covered_ms else _ANY_LENGTH

    def holds(self, rows: Rows, ends: Array, blurs: Array) -> Mask:
        """Whether ends with this uncertainty may lie in the range of these matches."""
        return (ends + blurs >= self.low[rows]) & (ends - blurs < self.high[rows])


def refuted(window: Window, terms: Sequence[int], bound: Columns, span: SearchSpan) -> Mask:
    """Which matches have a counterexample: one occurrence per term with equal identities, in the
    range.

    `bound` holds the `@alias` columns of the matches. The cost depends on the occurrences that
    agree with the bound identities, not on the number of other identities.
    """
    found = np.zeros(len(span.low), np.bool_)
    found[counterexamples(window, terms, bound, span)["row"]] = True
    return found


def counterexamples(
    window: Window, terms: Sequence[int], bound: Columns, span: SearchSpan
) -> Columns:
    """The matches (`row`) with a counterexample; for a family also the needs (see `variants.py`).
    For ordered constants only the smallest need of each match is returned."""
    start = {**bound, "row": np.arange(len(span.low))}
    found = _search(window, start, list(terms), span)
    return {name: found[name] for name in ("row", NEED) if name in found}


def first_counterexamples(
    window: Window, terms: Sequence[int], bound: Columns, span: SearchSpan
) -> tuple[Rows, Array]:
    """The matches with a counterexample and the time when the first was complete. Facts from tables
    are complete before any time."""
    rows = len(span.low)
    start = {**bound, "row": np.arange(rows), LATEST: np.full(rows, _ANY_TIME)}
    found = _search(window, start, list(terms), span)
    return found["row"], found[LATEST]


def _search(window: Window, frame: Columns, terms: list[int], span: SearchSpan) -> Columns:
    if not terms or not count(frame):
        return frame
    term = terms[0]
    if len(terms) > 1:
        term = min(terms, key=lambda other: _cost(window, other, frame, span))
    rest = [other for other in terms if other != term]
    keep = {alias for other in rest for alias in window.alias_columns(other)}
    keep |= {f"@{alias}" for pair in window.plan.distinct for alias in pair} if rest else set()
    return _search(window, _extended(window, frame, term, span, keep), rest, span)


def _cost(window: Window, term: int, frame: Columns, span: SearchSpan) -> tuple[int, int]:
    """The order of joining: few unbound aliases first, then tables before pairs of events, unless
    many rows must be looked up."""
    unbound = sum(alias not in frame for alias in set(window.alias_columns(term)))
    if isinstance(window.plan.terms[term], CorrelationTerm):
        return unbound, 1 if window.predicate(term).reach is not None else 3
    unevaluated = window.unevaluated(term, frame, int(span.latest.max()))
    return unbound, 2 if unevaluated > _MANY_UNEVALUATED * count(frame) else 0


def _extended(
    window: Window, frame: Columns, term: int, span: SearchSpan, keep: set[str]
) -> Columns:
    """Joins a term and keeps only the columns that remaining terms need; in pieces if large."""
    if isinstance(window.plan.terms[term], CorrelationTerm):
        return _with_pairs(window, frame, term, span, keep)
    rows, low = frame["row"], np.maximum(span.earliest, span.since)
    table = window.query(term, frame, int(low[rows].min()), int(span.latest[rows].max()))
    if window.is_constraint(term):
        first, last = np.zeros(len(rows), np.int64), np.full(len(rows), len(table))
    else:
        first, last = table.rows_from(low)[rows], table.rows_from(span.latest)[rows]
    owners, places = table.agreeing(window.alias_columns(term), frame, first, last)
    if span.unsure_ms and "blur" in table.columns:
        ends, blurs = table.columns["end"][places], table.columns["blur"][places]
        possible = span.holds(rows[owners], ends, blurs)
        owners, places = owners[possible], places[possible]
    joined = take(frame, owners)
    for alias, name in zip(window.alias_columns(term), ("first", "second"), strict=True):
        joined[alias] = table.columns[name][places]
    if NEED in table.columns:
        joined[NEED] = table.columns[NEED][places]
    if LATEST in frame and not window.is_constraint(term):
        joined[LATEST] = np.maximum(joined[LATEST], table.columns["end"][places])
    return _thin(window, window.apart(joined), keep)


def _with_pairs(
    window: Window, frame: Columns, term: int, span: SearchSpan, keep: set[str]
) -> Columns:
    """Joins all pairs of different events within the window, computed for these matches only."""
    aliases = window.alias_columns(term)
    near, far = (0, 1) if aliases[0] in frame or aliases[1] not in frame else (1, 0)
    rows, length = frame["row"], span.pair_ms(window.correlations.window_ms(term))
    since = np.maximum(span.since, span.earliest - length + 1)[rows]
    codes, others = frame.get(aliases[near]), frame.get(aliases[far])
    low, high = int(since.min()), int(span.latest[rows].max())
    query = EventQuery(low, high, codes)
    mine = window.correlations.query_side(term, near, query)
    if mine is None:
        return _without_rows(window, term, frame)
    query = query._replace(codes=others, around=None if codes is None else mine)
    theirs = window.correlations.query_side(term, far, query)
    if theirs is None:
        return _without_rows(window, term, frame)
    if others is None and len(mine) * len(theirs) > _FEW_PAIRS:
        _put_cells(window, term, mine, theirs)
    start, stop = mine.find(
        None if codes is None else "code",
        codes,
        mine.rows_from(since),
        mine.rows_from(span.latest[rows]),
    )
    pieces = []
    for piece in _pieces(start, stop):
        owners, places = spread(start[piece], stop[piece])
        owners += piece.start
        events = mine.rows_at(None if codes is None else "code", places)
        joined = take(frame, owners)
        joined[aliases[near]] = mine.columns["code"][events]
        found = _partners(window, joined, term, (near, mine, theirs, events), span, since[owners])
        pieces.append(_thin(window, window.apart(found), keep))
    return concatenate(pieces)


def _put_cells(window: Window, term: int, *sides: Table) -> None:
    """Adds the grid cell of each event if the term holds only for events near each other."""
    reach = window.predicate(term).reach
    for side in sides:
        if reach is not None and "cell" not in side.columns:
            side.columns["cell"] = reach.cells(side.columns["value"])


def _partners(
    window: Window,
    frame: Columns,
    term: int,
    sides: tuple[int, Table, Table, Rows],
    span: SearchSpan,
    since: Array,
) -> Columns:
    """Joins the events of the other side that form a pair with the event of each row."""
    near, mine, theirs, events = sides
    predicate = window.predicate(term)
    length = span.pair_ms(window.correlations.window_ms(term))
    alias = window.alias_columns(term)[1 - near]
    times, rows = mine.columns["end"][events], frame["row"]
    earliest = span.low[rows]
    low = theirs.rows_from(np.maximum(since, times - length + 1))
    high = theirs.rows_from(np.minimum(span.latest[rows], times + length))
    if alias in frame:
        owners, places = spread(*theirs.find("code", frame[alias], low, high))
        pairs = iter([(owners, theirs.rows_at("code", places))])
    else:
        has_cells = "cell" in mine.columns and "cell" in theirs.columns
        cells = mine.columns["cell"][events] if has_cells else None
        pairs = partner_rows(theirs, cells, predicate.reach, low, high)
    found = [_without_rows(window, term, frame) | {alias: NO_ROWS}]
    for owners, others in pairs:
        chosen = _holding(predicate, (near, mine, theirs), events[owners], others)
        ends = np.maximum(times[owners], theirs.columns["end"][others])
        if span.unsure_ms:
            blurs = np.maximum(mine.columns["blur"][events[owners]], theirs.columns["blur"][others])
            chosen &= span.holds(rows[owners], ends, blurs)
        else:
            chosen &= ends >= earliest[owners]
        owners, others = owners[chosen], others[chosen]
        pair = (mine.columns, events[owners]), (theirs.columns, others)
        (first, here), (second, there) = pair if near == 0 else pair[::-1]
        joined = take(frame, owners) | window.needs.of_pairs(term, first, here, second, there)
        if LATEST in frame:
            joined[LATEST] = np.maximum(joined[LATEST], ends[chosen])
        found.append(joined | {alias: theirs.columns["code"][others]})
    return concatenate(found)


def _without_rows(window: Window, term: int, frame: Columns) -> Columns:
    """An empty result of joining a correlation."""
    varying, none = window.varying, take(frame, NO_ROWS)
    return none | ({NEED: np.zeros(0)} if varying is not None and varying.term == term else {})


def _holding(
    predicate: Predicate, sides: tuple[int, Table, Table], mine: Rows, theirs: Rows
) -> Mask:
    """Which pairs are different events for which the term holds."""
    near, own, other = sides
    pair = (own.columns, mine), (other.columns, theirs)
    (first, here), (second, there) = pair if near == 0 else pair[::-1]
    mask = predicate.holds_of(first, here, second, there)
    mask &= first["event"][here] != second["event"][there]
    return mask


def _pieces(start: Rows, stop: Rows) -> list[slice]:
    """Splits ranges into pieces that expand to a bounded number of rows."""
    total = np.cumsum(stop - start)
    if not len(total) or total[-1] <= _MOST_ROWS:
        return [slice(0, len(start))]
    cuts = np.searchsorted(total, np.arange(_MOST_ROWS, int(total[-1]), _MOST_ROWS)) + 1
    edges = sorted({0, *cuts.tolist(), len(start)})
    return [slice(low, high) for low, high in pairwise(edges)]


def _thin(window: Window, frame: Columns, keep: set[str]) -> Columns:
    """Distinct rows by match, remaining aliases and family members. For ordered needs the smallest
    is kept; of equal rows the one that was complete first."""
    frame = window.needs.joined(frame)
    names = sorted(name for name in frame if name in keep)
    least = _least(window, frame)
    kept = ("row", *names, *(name for name in (NEED, LATEST) if name in frame))
    thinned = {name: frame[name] for name in kept}
    key, size = frame["row"], int(frame["row"].max(initial=0)) + 1
    for name in names:
        known = len(window.identities[window.concepts[name[1:]]].ids)
        key, size = key * known + frame[name], size * known
    if NEED in frame and least != NEED:
        values = int(frame[NEED].max(initial=0)) + 1
        key, size = key * values + frame[NEED], size * values
    if (
        size >= _LARGEST_KEY
    ):  # an overflowing key could merge different rows; repeated rows only cost time
        return thinned
    if least is not None:
        order = np.lexsort((frame[least], key))
        thinned, key = take(thinned, order), key[order]
    _, chosen = np.unique(key, return_index=True)
    return take(thinned, chosen)


def _least(window: Window, frame: Columns) -> str | None:
    """The column of which only the smallest value of otherwise equal rows matters."""
    if LATEST in frame:
        return LATEST
    nested = window.varying is not None and window.varying.nested
    return NEED if NEED in frame and nested else None


class CounterexampleQuery:
    """One operator's query for one joint counterexample, with its alias names."""

    def __init__(self, window_ms: int, names: dict[str, str], known: ActivationCache) -> None:
        self.window_ms, self.names, self.known = window_ms, names, known
        known.queries.add(self)


class ActivationCache:
    """For recent activations: when the first counterexample was complete, and the time up to which
    that is known. A query costs a binary search; memory grows with the activations of the longest
    window. Not part of snapshots: a missing entry is searched again."""

    def __init__(self) -> None:
        self.queries: WeakSet[CounterexampleQuery] = WeakSet()
        self._hashes = np.zeros(0, np.uint64)
        self._columns: Columns = {}
        self._watermark = self._earlier = -_NEVER
        self.searched = 0
        """Activations searched so far."""

    def longest_ms(self) -> int:
        """The longest window of all queries."""
        return max(query.window_ms for query in self.queries)

    def begin_batch(self, watermark: int) -> None:
        """Moves to a batch, which another operator may have begun."""
        if watermark != self._watermark:
            self._earlier, self._watermark = self._watermark, watermark

    def find(self, activations: Columns) -> tuple[Rows, Rows]:
        """The rows of the queried activations (columns `t0` and identity codes) that are known, and
        their positions."""
        if not len(self._hashes):
            return NO_ROWS, NO_ROWS
        hashes = _hashed(activations)
        places = np.searchsorted(self._hashes, hashes)
        places[places == len(self._hashes)] = 0
        same = self._hashes[places] == hashes
        for name, column in activations.items():
            same &= self._columns[name][places] == column
        rows = np.flatnonzero(same)
        return rows, places[rows]

    def first(self, places: Rows) -> tuple[Array, Array]:
        """When the first counterexample was complete, and the time up to which that is known."""
        if not len(places):
            return NO_ROWS, NO_ROWS
        return self._columns["first"][places], self._columns["until"][places]

    def learn(self, activations: Columns, first: Array, until: Array) -> None:
        """Stores results and drops those that no query can need."""
        self.searched += len(first)
        columns = activations | {"first": first, "until": until}
        if len(self._hashes):
            _, places = self.find(activations)
            kept = self._columns["t0"] >= self._earlier - self.longest_ms()
            kept[places] = False
            columns = concatenate([take(self._columns, kept), columns])
        # Of two with equal hashes one is found; the other is searched again each time.
        hashes = _hashed({name: columns[name] for name in activations})
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._columns = hashes[order], take(columns, order)


class Activations:
    """Evaluates the NOT clauses of one operator.

    Without other queries, a search covers the operator's own window only.
    """

    def __init__(self, window: Window, shared: SharedCache) -> None:
        self._window, self._shared = window, shared
        self._queries: dict[
            tuple[tuple[int, ...], int, frozenset[str]], CounterexampleQuery | None
        ] = {}
        self._own_before = -_NEVER

    def expect(self, clause: ClauseShape, bound: Iterable[str]) -> None:
        """Announces the `@alias` columns of future queries to other operators."""
        for terms in clause.counterexamples:
            self._query(terms, clause.window_ms, bound)

    def bypass_cache_before(self, time: int) -> None:
        """Activations before a time are searched without the cache: other operators may have seen
        different events before it."""
        self._own_before = time

    def hold(self, clause: ClauseShape, bound: Columns, t0: Array, watermark: int) -> Mask:
        """Rule 4: which matches have no joint counterexample in [t0, t0 + window). All are due;
        `bound` holds their `@alias` columns. Everything before the watermark is known."""
        holds = np.ones(len(t0), np.bool_)
        for terms in clause.counterexamples:
            holds &= ~self._refuted(terms, clause.window_ms, bound, t0, watermark)
        return holds

    def _refuted(
        self, terms: tuple[int, ...], window_ms: int, bound: Columns, t0: Array, watermark: int
    ) -> Mask:
        query = self._query(terms, window_ms, bound)
        if query is None or len(query.known.queries) < 2 or self._is_own(t0):
            self._window.count_search()
            return refuted(self._window, terms, bound, SearchSpan(t0, t0 + window_ms, t0))
        names = query.names
        activations = {names[name[1:]]: codes for name, codes in bound.items() if name[1:] in names}
        first = self._first(query, terms, {"t0": t0, **activations}, watermark)
        return np.asarray(first < t0 + window_ms)

    def _is_own(self, t0: Array) -> bool:
        return self._own_before > -_NEVER and bool((t0 < self._own_before).any())

    def _first(
        self,
        query: CounterexampleQuery,
        terms: Sequence[int],
        activations: Columns,
        watermark: int,
    ) -> Array:
        """When the first counterexample of each was complete, as far as the query needs it."""
        known, t0 = query.known, activations["t0"]
        known.begin_batch(watermark)
        self._shared.wanted += 1
        first, unknown = np.full(len(t0), _NEVER), np.ones(len(t0), np.bool_)
        rows, places = known.find(activations)
        first[rows], until = known.first(places)
        unknown[rows] = (first[rows] == _NEVER) & (until < t0[rows] + query.window_ms)
        if unknown.any():
            self._shared.computed += 1
            once, which = _each_once(take(activations, unknown))
            ahead = min(known.longest_ms(), _AHEAD * query.window_ms)
            until = np.minimum(once["t0"] + ahead, watermark)
            found = self._search(query, terms, once, until)
            known.learn(once, found, until)
            first[unknown] = found[which]
        return first

    def _search(
        self, query: CounterexampleQuery, terms: Sequence[int], activations: Columns, until: Array
    ) -> Array:
        t0 = activations["t0"]
        bound = {
            f"@{alias}": activations[name]
            for alias, name in query.names.items()
            if name in activations
        }
        span = SearchSpan(t0, until, t0, covered_ms=query.window_ms)
        rows, ends = first_counterexamples(self._window, terms, bound, span)
        first = np.full(len(t0), _NEVER)
        np.minimum.at(first, rows, ends)
        return first

    def _query(
        self, terms: tuple[int, ...], window_ms: int, bound: Iterable[str]
    ) -> CounterexampleQuery | None:
        """The query for matches with these `@alias` columns; None if the term cannot be shared."""
        key = (terms, window_ms, frozenset(bound))
        if key not in self._queries:
            self._queries[key] = self._new_query(*key)
        return self._queries[key]

    def _new_query(
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
            tuple(window.identities[window.concepts[alias]] for alias in names),
            tuple(self._pair_ms(term, window_ms) for term in terms),
            frozenset(frozenset(map(names.__getitem__, pair)) for pair in apart),
            frozenset(name for alias, name in names.items() if f"@{alias}" in bound),
        )
        return CounterexampleQuery(window_ms, names, self._shared.get_or_make(key, ActivationCache))

    def _pair_ms(self, term: int, window_ms: int) -> int | None:
        """The maximal distance of the events of a pair; None: any within the window."""
        if not isinstance(self._window.plan.terms[term], CorrelationTerm):
            return None
        own_ms = self._window.correlations.window_ms(term)
        return own_ms if own_ms < window_ms else None


def _without_window(term: TermStep) -> TermStep:
    return replace(term, window_ms=None) if isinstance(term, CorrelationTerm) else term


def _each_once(activations: Columns) -> tuple[Columns, Rows]:
    """The distinct rows, and for each row the number of its distinct one."""
    _, first, which = np.unique(_hashed(activations), return_index=True, return_inverse=True)
    once = take(activations, first)
    if all(bool((once[name][which] == column).all()) for name, column in activations.items()):
        return once, which
    return activations, np.arange(len(which))  # different rows have equal hashes


def _hashed(activations: Columns) -> Array:
    """One hash per row."""
    mixed = np.zeros(len(activations["t0"]), np.uint64)
    for name in sorted(activations):
        mixed = (mixed ^ activations[name].astype(np.uint64)) * _MIX
        mixed ^= mixed >> _STEP
    return mixed
