from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.overlay.hash_ring import HashRing, ring_position
from support.examples import examples

NAMES = st.lists(st.text("abcdef0123:.", min_size=1, max_size=8), unique=True, max_size=12)
KEYS = [f"sector {number}" for number in range(100)]


def owners_of(ring: HashRing) -> dict[str, str | None]:
    return {key: ring.owner(key) for key in KEYS}


def test_eight_names_own_all_of_a_hundred_sectors() -> None:
    ring = HashRing(f"10.0.0.{number}:7411" for number in range(8))
    owners = owners_of(ring)
    assert None not in owners.values()
    assert set(owners.values()) == set(ring)


def test_an_empty_ring_has_no_owners() -> None:
    ring = HashRing()
    assert ring.owner("key") is None
    assert ring.owners("key", 3) == []
    assert ring.shares() == {}
    assert not ring.remove("nobody")


def test_a_place_is_the_same_on_every_machine() -> None:
    assert ring_position("sector 42") == 185_956_760_746_534_050


def test_no_points_are_refused() -> None:
    with pytest.raises(InvalidInput):
        HashRing(points=0)


@given(NAMES.filter(bool))
@settings(max_examples=examples(50), deadline=None)
def test_whoever_adds_the_same_names_in_any_order_agrees(names: list[str]) -> None:
    one, other = HashRing(names, points=8), HashRing(reversed(names), points=8)
    assert not other.add(names[0])
    assert owners_of(one) == owners_of(other)
    assert sum(one.shares().values()) == pytest.approx(1.0)
    assert sorted(names) == list(one)


@given(NAMES, st.text("xyz", min_size=1, max_size=3))
@settings(max_examples=examples(50), deadline=None)
def test_who_joins_moves_only_what_becomes_its_own(names: list[str], newcomer: str) -> None:
    ring = HashRing(names, points=8)
    before = owners_of(ring)
    ring.add(newcomer)
    after = owners_of(ring)
    assert all(after[key] in (before[key], newcomer) for key in KEYS)
    ring.remove(newcomer)
    assert owners_of(ring) == before


@given(NAMES.filter(lambda names: len(names) > 2), st.integers(1, 4))
@settings(max_examples=examples(50), deadline=None)
def test_who_leaves_is_followed_by_the_next_owner(names: list[str], count: int) -> None:
    ring = HashRing(names, points=8)
    for key in KEYS[:20]:
        owners = ring.owners(key, count)
        assert len(owners) == len(set(owners)) == min(count, len(names))
        assert owners[0] == ring.owner(key)
    first, second = ring.owners("key", 2)
    ring.remove(first)
    assert first not in ring
    assert ring.owner("key") == second


def test_shares_are_balanced_and_a_newcomer_takes_from_all() -> None:
    ring = HashRing(f"10.0.0.{number}:7411" for number in range(8))
    before = ring.shares()
    assert 0.75 / 8 < min(before.values()) <= max(before.values()) < 1.3 / 8
    ring.add("10.0.0.9:7411")
    after = ring.shares()
    assert sum(after[name] < before[name] for name in before) == 8
    assert after["10.0.0.9:7411"] == pytest.approx(1 / 9, rel=0.3)
