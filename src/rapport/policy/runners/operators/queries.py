"""Query terms: one look-up serves all that ask the same of different people. [PO-6]"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from rapport.policy.plan import QueryTerm, Side
from rapport.policy.runners.base import PullData
from rapport.policy.runners.operators.identities import Codes, Identities, Leaf
from rapport.policy.runners.operators.intake import StreamRows
from rapport.policy.runners.operators.lookup import Lookup
from rapport.policy.runners.operators.predicate import Predicate
from rapport.policy.runners.operators.table import Rows


class Queries:
    """Look-ups by question; a thousand policies of one plan that differ in whom they watch cost
    one.
    """

    def __init__(self, identities: Mapping[str, Identities], pull: PullData) -> None:
        self._identities, self._pull = identities, pull
        self._lookups: dict[QueryTerm, Lookup] = {}
        self._askers: dict[QueryTerm, list[tuple[int, Leaf]]] = {}

    def add(self, number: int, term: QueryTerm, leaf: Leaf) -> None:
        """Asks for a term; `leaf` says whose events matter."""
        question = _question(term)
        if question not in self._lookups:
            self._lookups[question] = self._lookup(question)
        self._askers.setdefault(question, []).append((number, leaf))

    def renew(self) -> None:
        """Looks everything up again: the codes, or the tables, changed."""
        self._lookups = {question: self._lookup(question) for question in self._lookups}

    def find(self, stream: str, rows: StreamRows) -> Iterator[tuple[int, Rows, Codes]]:
        """Terms with the rows that show them and the instances these show them with."""
        for question, lookup in self._lookups.items():
            if _event_side(question).stream != stream:
                continue
            askers = self._askers[question]
            allowed = [leaf.allowed()[rows.codes] for _, leaf in askers]
            chosen = np.flatnonzero(np.logical_or.reduce(allowed))
            if not len(chosen):
                continue
            places, instances = lookup.find(rows.values[chosen], rows.codes[chosen])
            places = chosen[places]
            for (number, _), mask in zip(askers, allowed, strict=True):
                fits = mask[places]
                yield number, places[fits], instances[fits]

    def _lookup(self, term: QueryTerm) -> Lookup:
        side = term.second if term.first.stream is not None else term.first
        predicate = Predicate(term, self._identities, self._pull)
        return Lookup(term, self._identities[side.concept], predicate)


def _event_side(term: QueryTerm) -> Side:
    return term.first if term.first.stream is not None else term.second


def _question(term: QueryTerm) -> QueryTerm:
    """The term without what only concerns whose events are asked about."""
    first, second = (
        _anyone(side) if side.stream else _unnamed(side) for side in (term.first, term.second)
    )
    return QueryTerm(first, second, term.function, term.parameter, term.compared)


def _anyone(side: Side) -> Side:
    return Side("", side.concept, side.attribute, (), side.stream)


def _unnamed(side: Side) -> Side:
    return Side("", side.concept, side.attribute, side.constraints, None)
