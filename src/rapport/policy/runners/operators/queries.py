"""Query terms: one look-up serves all that ask the same of different people, in one plan or in
many. [PO-6, PO-13]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple
from weakref import ReferenceType, ref

import numpy as np

from rapport.policy.plan import QueryTerm, Side
from rapport.policy.runners.base import PullData
from rapport.policy.runners.operators.identities import Codes, Identities, IdentityFilter
from rapport.policy.runners.operators.intake import StreamRows
from rapport.policy.runners.operators.lookup import Lookup
from rapport.policy.runners.operators.predicate import Predicate, is_of_tables_alone
from rapport.policy.runners.operators.shared_steps import SharedCache
from rapport.policy.runners.operators.table import Mask, Rows

Pairs = tuple[Rows, Codes]
"""Rows of a stream, and the instance that each shows something of."""


class SharedLookup:
    """A look-up, and whose events it is asked about by anybody."""

    def __init__(
        self, term: QueryTerm, identities: Mapping[str, Identities], pull: PullData
    ) -> None:
        self._make = partial(_lookup, term, identities, pull)
        self._lookup = self._make()
        self._leaves: list[ReferenceType[IdentityFilter]] = []
        """Of those who ask about every batch."""

    def ask_for(self, leaf: IdentityFilter) -> None:
        """Asks about the events of these too, for as long as somebody holds the leaf."""
        living = [one for one in self._leaves if one() is not None]
        self._leaves = living if ref(leaf) in living else [*living, ref(leaf)]

    def renew(self) -> None:
        """Looks everything up again: the codes, or the tables, changed."""
        self._lookup = self._make()

    def find(self, rows: StreamRows) -> Pairs:
        """For the events that somebody asks about every time."""
        return self._find(rows, _asked(self._leaves, rows.codes))

    def find_for(self, rows: StreamRows, leaf: IdentityFilter) -> Pairs:
        """For the events of one leaf."""
        return self._find(rows, leaf.allowed()[rows.codes])

    def _find(self, rows: StreamRows, asked: Mask) -> Pairs:
        chosen = np.flatnonzero(asked)
        places, instances = self._lookup.find(rows.values[chosen], rows.codes[chosen])
        return chosen[places], instances


class TermQuery(NamedTuple):
    """Who asks: what tells occurrences of terms with the same question apart."""

    question: SharedLookup
    leaf: IdentityFilter
    event_is_first: bool
    is_one_alias: bool


class QueryTerms:
    """The query terms of one plan; their look-ups are those of all plans that ask the same."""

    def __init__(
        self, identities: Mapping[str, Identities], pull: PullData, shared: SharedCache
    ) -> None:
        self._identities, self._pull, self._shared = identities, pull, shared
        self._own: dict[QueryTerm, SharedLookup] = {}
        self._askings: dict[str, list[tuple[int, TermQuery]]] = {}

    def add(self, number: int, term: QueryTerm, leaf: IdentityFilter) -> None:
        """Asks for a term with every batch; `leaf` says whose events matter."""
        asking = self.asking(term, leaf)
        asking.question.ask_for(leaf)
        self._askings.setdefault(_event_side(term).stream or "", []).append((number, asking))

    def asking(self, term: QueryTerm, leaf: IdentityFilter) -> TermQuery:
        """What asks for a term, perhaps together with others."""
        blank = _without_askers(term)
        if blank not in self._own:
            self._own[blank] = self._question(blank)
        question = self._own[blank]
        is_first = term.first.stream is not None
        return TermQuery(question, leaf, is_first, term.first.alias == term.second.alias)

    def renew(self) -> None:
        """Looks everything up again: the codes, or the tables, changed."""
        for question in self._own.values():
            question.renew()

    def find(self, stream: str, rows: StreamRows) -> Iterator[tuple[int, TermQuery, Pairs]]:
        """Terms that a stream may show, with the pairs (row, instance) that somebody asks about."""
        for number, asking in self._askings.get(stream, ()):
            question = asking.question
            yield number, asking, self._shared.once_of(rows, question, question.find, rows)

    def _question(self, blank: QueryTerm) -> SharedLookup:
        if not is_of_tables_alone(blank):  # a function of the site's own is asked by each
            return SharedLookup(blank, self._identities, self._pull)
        known = tuple(self._identities[side.concept] for side in (blank.first, blank.second))
        return self._shared.keep((blank, known), SharedLookup, blank, self._identities, self._pull)


def _lookup(term: QueryTerm, identities: Mapping[str, Identities], pull: PullData) -> Lookup:
    side = term.second if term.first.stream is not None else term.first
    return Lookup(term, identities[side.concept], Predicate(term, identities, pull))


def _asked(leaves: Iterable[ReferenceType[IdentityFilter]], codes: Codes) -> Mask:
    """Of each code; over all codes first where these are fewer than rows."""
    allowed = [leaf.allowed() for one in leaves if (leaf := one()) is not None]
    if len(allowed[0]) > len(codes):
        return np.asarray(np.logical_or.reduce([one[codes] for one in allowed]))
    return np.asarray(np.logical_or.reduce(allowed)[codes])


def _event_side(term: QueryTerm) -> Side:
    return term.first if term.first.stream is not None else term.second


def _without_askers(term: QueryTerm) -> QueryTerm:
    """The term without what only concerns whose events are asked about."""
    first, second = (
        _anyone(side) if side.stream else _unnamed(side) for side in (term.first, term.second)
    )
    return QueryTerm(first, second, term.function, term.parameter, term.compared)


def _anyone(side: Side) -> Side:
    return Side("", side.concept, side.attribute, (), side.stream)


def _unnamed(side: Side) -> Side:
    return Side("", side.concept, side.attribute, side.constraints, None)
