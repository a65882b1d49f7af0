"""The terms of a plan that wait until a match asks about their absence. [PO-6, PO-13]"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any

from rapport.policy.plan import QueryTerm, ReadingTerm
from rapport.policy.runners.operators.intake import StreamRows
from rapport.policy.runners.operators.later_rows import DeferredRows
from rapport.policy.runners.operators.later_streams import DeferredStreams
from rapport.policy.runners.operators.later_terms import DeferredOccurrences, DeferredTerm, Find
from rapport.policy.runners.operators.leaves import IdentityFilters
from rapport.policy.runners.operators.needs import VariantMask
from rapport.policy.runners.operators.predicate import Predicate
from rapport.policy.runners.operators.queries import QueryTerms, TermQuery
from rapport.policy.runners.operators.shared_steps import SharedCache
from rapport.policy.runners.operators.stream_steps import (
    StreamOccurrences,
    query_occurrences,
    reading_occurrences,
)
from rapport.policy.runners.operators.table import Array, Columns, Table, with_blurs


class DeferredTerms:
    """By number the terms of one operator that only absence mentions and that one event shows."""

    def __init__(
        self,
        streams: DeferredStreams,
        leaves: IdentityFilters,
        queries: QueryTerms,
        needs: VariantMask,
        shared: SharedCache,
    ) -> None:
        self._streams, self._leaves, self._queries = streams, leaves, queries
        self._needs, self._shared = needs, shared
        self._terms: dict[int, DeferredTerm] = {}

    def __contains__(self, number: object) -> bool:
        return number in self._terms

    def put_off(
        self,
        number: int,
        term: QueryTerm | ReadingTerm,
        predicate: Predicate,
        empty: Mapping[str, Array],
    ) -> None:
        """Lets a term wait; `empty`: what its occurrences look like."""
        side = term.first if term.first.stream is not None else term.second
        leaf, reader = self._leaves.of(side), self._streams.of(side.stream or "")
        occurred: Callable[[StreamRows], StreamOccurrences]
        key: Hashable
        if isinstance(term, QueryTerm):
            asking = self._queries.asking(term, leaf)
            occurred, key = partial(_of_query, asking), asking
        else:
            occurred = partial(reading_occurrences, leaf=leaf, predicate=predicate)
            key = (term.compared, side.attribute, leaf)
        varies = self._needs.of_term(number) is not None
        needs = partial(self._needs.of_rows, number) if varies else None
        find = partial(_found, occurred, empty, needs)
        common = partial(_common, self._shared, None if varies else key, find, empty)
        self._terms[number] = DeferredTerm(side, reader, leaf, find, common)

    def unseen(self, number: int, frame: Columns, high: int) -> int:
        """How many rows must be looked up for these matches, which name no identity of its event;
        0 for other terms.
        """
        own = self._terms.get(number)
        return 0 if own is None else own.unseen(frame, high)

    def asked(self, number: int, frame: Columns, low: int, high: int) -> Table:
        """The occurrences with times in [low, high) that these matches ask about, maybe more."""
        return self._terms[number].asked(frame, low, high)

    def trim(self, before: int) -> None:
        """Forgets what was taken over and ended before a time."""
        for term in self._terms.values():
            term.trim(before)

    def state(self) -> dict[str, Columns]:
        """What `restore` takes."""
        return {str(number): term.state() for number, term in self._terms.items()}

    def restore(self, state: Mapping[str, Any], *, blurred: bool) -> None:
        """Takes over what `state` gave; the streams begin anew."""
        for number, term in self._terms.items():
            term.restore(with_blurs(state[str(number)], blurred))


def _of_query(asking: TermQuery, rows: StreamRows) -> StreamOccurrences:
    pairs = asking.question.find_for(rows, asking.leaf)
    return query_occurrences(rows, asking, *pairs)


def _found(
    occurred: Callable[[StreamRows], StreamOccurrences],
    empty: Mapping[str, Array],
    needs: Callable[[StreamRows, StreamOccurrences], Columns] | None,
    rows: StreamRows,
) -> Columns:
    found = occurred(rows)
    if not len(found.places):
        return dict(empty)
    return found.columns if needs is None else found.columns | needs(rows, found)


def _common(
    shared: SharedCache,
    key: Hashable,
    find: Find,
    empty: Mapping[str, Array],
    rows: DeferredRows,
) -> DeferredOccurrences:
    """What is found for all who ask the same; with a key of None for one alone."""
    if key is None:
        return DeferredOccurrences(rows, find, empty)
    return shared.keep((DeferredOccurrences, rows, key), DeferredOccurrences, rows, find, empty)
