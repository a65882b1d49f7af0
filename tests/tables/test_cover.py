"""The fewest tables that give everything."""

import doctest
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from rapport.tables import instances
from rapport.tables.instances import smallest_cover

offers = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=2), st.frozensets(st.integers(0, 6)), max_size=7
)


@given(offers)
def test_a_cover_is_complete_and_none_is_smaller(given: dict[str, frozenset[str]]) -> None:
    wanted = frozenset().union(*given.values())
    chosen = smallest_cover(given)
    assert frozenset().union(*(given[name] for name in chosen)) == wanted
    for fewer in combinations(given, max(len(chosen) - 1, 0)):
        if len(fewer) < len(chosen):
            assert frozenset().union(*(given[name] for name in fewer)) != wanted


@given(offers, st.frozensets(st.integers(0, 8)))
def test_only_wanted_attributes_count(
    given: dict[str, frozenset[str]], wanted: frozenset[str]
) -> None:
    chosen = smallest_cover(given, wanted)
    narrowed = {name: items & wanted for name, items in given.items()}
    assert chosen == smallest_cover(narrowed)
    assert all(narrowed[name] for name in chosen)


@given(st.dictionaries(st.integers(0, 40), st.frozensets(st.integers(0, 9)), max_size=30))
def test_above_the_bound_nothing_chosen_could_be_left_out(given: dict[int, frozenset[int]]) -> None:
    wanted = frozenset().union(*given.values())
    chosen = smallest_cover(given)
    assert frozenset().union(*(given[name] for name in chosen)) == wanted
    for name in chosen:
        assert frozenset().union(*(given[other] for other in chosen if other != name)) != wanted
    assert chosen == smallest_cover(dict(given))


def test_sixteen_tables_are_chosen_among_exactly() -> None:
    # Greedy would take the large one first and need three.
    many = {f"t{i}": frozenset({i}) for i in range(13)}
    many |= {"left": frozenset(range(7)), "right": frozenset(range(7, 14))}
    many["large"] = frozenset(range(2, 12))
    assert smallest_cover(many) == ["left", "right"]


def test_with_many_tables_a_good_cover_is_found_quickly() -> None:
    many = {f"t{i}": frozenset({f"a{i}", f"a{i + 1}"}) for i in range(60)}
    chosen = smallest_cover(many)
    assert frozenset().union(*(many[name] for name in chosen)) == frozenset().union(*many.values())
    assert len(chosen) < 60


def test_the_example_in_the_docstring_holds() -> None:
    assert doctest.testmod(instances).failed == 0
