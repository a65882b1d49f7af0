"""Table 5.2: the activation index, and that the bulk search for counterexamples answers as it does.

The operators decide absence in bulk: they start from the identities of each match (the activation)
and look its events up by code, which asks the index's question the other way round. The index
itself, as in the paper, is the model here.
"""

from __future__ import annotations

from collections import defaultdict, deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.policy.operators.absence import SearchSpan, refuted
from rapport.policy.operators.window import Window
from rapport.policy.plan import Absent, Clause, CorrelationTerm, Plan, Positive, QueryTerm, Side
from rapport.tables.instances import Instances
from support.judge.occurrences import Reading
from support.varied.worlds import Pull, readings_batch

ANYONE = "*"
LIFETIME = 4


class ActivationIndex:
    """Figure 5.8: per side and identity the identities of the other side with reference counts,
    their sums, and the number of wildcards. Every answer costs one or two look-ups.
    """

    def __init__(self, lifetime: int) -> None:
        self.counts: tuple[dict[str, dict[str, int]], ...] = tuple(
            defaultdict(lambda: defaultdict(int)) for _ in range(2)
        )
        self.sums: tuple[dict[str, int], ...] = (defaultdict(int), defaultdict(int))
        self._lifetime = lifetime
        self._open: deque[tuple[int, str, str]] = deque()

    def activate(self, time: int, first: str = ANYONE, second: str = ANYONE) -> None:
        """Opens an activation; what was opened earlier must have been opened before."""
        self._open.append((time, first, second))
        self._count(first, second, 1)

    def expire(self, now: int) -> None:
        """Closes what was opened a lifetime ago."""
        while self._open and self._open[0][0] + self._lifetime <= now:
            _, first, second = self._open.popleft()
            self._count(first, second, -1)

    def wildcards(self, side: int) -> int:
        """How many activations leave the side open."""
        return self.sums[side][ANYONE]

    def needs(self, side: int, identity: str) -> bool:
        """Whether an event of the side must be looked at at all."""
        return self.wildcards(side) > 0 or self.sums[side].get(identity, 0) > 0

    def satisfied(self, first: str, second: str) -> bool:
        """Whether a pair satisfies an activation, asked from the first side."""
        own, anyone = self.counts[0].get(first, {}), self.counts[0].get(ANYONE, {})
        return any(
            count > 0 for count in (own.get(ANYONE, 0), own.get(second, 0), anyone.get(second, 0))
        )

    def satisfied_from_second(self, first: str, second: str) -> bool:
        """The same asked from the second side: the paper's test, its wildcard corrected."""
        own, anyone = self.counts[1].get(second, {}), self.counts[1].get(ANYONE, {})
        return any(
            count > 0 for count in (anyone.get(first, 0), own.get(first, 0), own.get(ANYONE, 0))
        )

    def _count(self, first: str, second: str, by: int) -> None:
        for side, (own, other) in enumerate(((first, second), (second, first))):
            self.counts[side][own][other] += by
            self.sums[side][own] += by


def plain(index: ActivationIndex, side: int) -> dict[str, dict[str, int]]:
    return {own: dict(others) for own, others in index.counts[side].items()}


def test_the_activation_index_counts_as_in_table_5_2() -> None:
    index = ActivationIndex(LIFETIME)
    index.activate(0, "5")  # A = 5; R = R123: B stays open
    assert (plain(index, 0), index.wildcards(0)) == ({"5": {"*": 1}}, 0)
    assert (plain(index, 1), index.wildcards(1)) == ({"*": {"5": 1}}, 1)
    index.activate(1, "6", "16")
    index.activate(2, "5", "15")
    index.activate(3, "5")
    assert plain(index, 0) == {"5": {"*": 2, "15": 1}, "6": {"16": 1}}
    assert plain(index, 1) == {"*": {"5": 2}, "16": {"6": 1}, "15": {"5": 1}}
    assert (index.wildcards(0), index.wildcards(1)) == (0, 2)
    index.expire(4)
    assert plain(index, 0) == {"5": {"*": 1, "15": 1}, "6": {"16": 1}}
    assert (plain(index, 1)["*"], index.wildcards(1)) == ({"5": 1}, 1)
    index.expire(5)
    assert plain(index, 0) == {"5": {"*": 1, "15": 1}, "6": {"16": 0}}
    assert plain(index, 1) == {"*": {"5": 1}, "16": {"6": 0}, "15": {"5": 1}}


def test_the_index_says_which_events_and_pairs_matter() -> None:
    index = ActivationIndex(LIFETIME)
    index.activate(1, "6", "16")
    assert index.needs(0, "6")
    assert not index.needs(0, "5")
    assert not index.needs(1, "99")
    index.activate(2, "5")
    assert index.needs(1, "99")  # any B may stand beside A = 5
    assert index.satisfied("5", "99")
    assert index.satisfied("6", "16")
    assert not index.satisfied("6", "99")
    index.expire(5)
    assert not index.needs(0, "6")
    assert not index.satisfied("6", "16")


@pytest.mark.parametrize("pair", [("5", "99"), ("6", "16"), ("6", "99"), ("7", "16")])
def test_a_wildcard_of_the_second_side_is_looked_up_under_the_first(pair: tuple[str, str]) -> None:
    index = ActivationIndex(LIFETIME)
    index.activate(0, "5")
    index.activate(0, "6", "16")
    assert index.satisfied(*pair) == index.satisfied_from_second(*pair)


PEOPLE = [str(number) for number in range(4)]
PERSON = Side("A", "person", "position", (), "person.position")
OTHER = Side("B", "person", "position", (), "person.position")
ROOM = Side("R", "room", "area", (), None)
PLAN = Plan(
    policy="p",
    terms=(QueryTerm(PERSON, ROOM, "inside"), CorrelationTerm(PERSON, OTHER, "within", 5.0)),
    clauses=(Clause((Positive(0),)), Clause((Absent(1),))),
    actions=(),
    window_ms=LIFETIME,
)
PULL = Pull({"person": Instances("person", PEOPLE, {})})
identities = st.sampled_from(PEOPLE)


@given(
    st.lists(st.tuples(st.integers(0, 9), identities, st.none() | identities), max_size=6),
    identities,
    identities,
    st.integers(0, 12),
)
def test_the_bulk_search_finds_what_the_index_calls_satisfied(
    opened: list[tuple[int, str, str | None]], first: str, second: str, now: int
) -> None:
    """Two people meet at one time; each activation then open is asked for."""
    index = ActivationIndex(LIFETIME)
    activations = sorted(opened, key=lambda each: each[0])
    for time, own, other in activations:
        if time <= now:
            index.activate(time, own, other or ANYONE)
    index.expire(now)
    window = Window(PLAN, frozenset({0}), PULL, {})
    met = [
        Reading(now, f"e{place}", "person.position", who, (0.0, 0.0))
        for place, who in enumerate((first, second))
    ]
    window.take_in(readings_batch(met), now + 1)
    met_either_way = index.satisfied(first, second) or index.satisfied(second, first)
    assert _found_in_bulk(window, activations) == met_either_way


def _found_in_bulk(window: Window, activations: list[tuple[int, str, str | None]]) -> bool:
    found = False
    for bound in (False, True):
        some = [each for each in activations if (each[2] is not None) == bound]
        if not some:
            continue
        t0 = np.array([time for time, _, _ in some])
        codes = {"@A": window.identities["person"].encode_list([own for _, own, _ in some])}
        if bound:
            others = [other for _, _, other in some if other is not None]
            codes["@B"] = window.identities["person"].encode_list(others)
        found |= bool(refuted(window, [1], codes, SearchSpan(t0, t0 + LIFETIME, t0)).any())
    return found
