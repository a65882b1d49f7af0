"""The window of identities: finds what is in it, forgets in bounds. [CH-6]"""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.log.dedupe import (
    DedupeWindow,
    are_all_different,
    decode_identities,
    identity_keys,
)
from rapport.core.codec import encode_block
from rapport.core.event import Event


def event(source: str, identity: str) -> Event:
    return Event(source, identity, "t", "s", 0, b"{}", {"h": "v"})


def keys_of(numbers) -> np.ndarray:
    return np.array([hash(("key", number)) for number in numbers], np.int64).view(np.uint64)


def as_keys(keys) -> np.ndarray:
    return np.array(keys, np.uint64)


@given(
    window=st.integers(1, 300),
    batches=st.lists(st.integers(1, 60), max_size=30),
)
def test_everything_in_the_window_is_found_at_its_position(window, batches):
    seen = DedupeWindow(window)
    added = 0
    for size in batches:
        keys = keys_of(range(added, added + size))
        assert seen.find(keys) == {}
        seen.add(keys, added + 1)
        added += size
        recent = range(max(added - window, 0), added)
        assert seen.find(keys_of(recent)) == {place: one + 1 for place, one in enumerate(recent)}
    assert len(seen) <= window * 4 // 3 + 60 + 2


@given(
    window=st.integers(1, 200),
    batches=st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=40), max_size=12),
    strangers=st.lists(st.integers(0, 2**64 - 1), max_size=30),
)
def test_keys_asked_for_together_or_singly_are_found_alike(window, batches, strangers):
    seen, first = DedupeWindow(window), 1
    for keys in batches:
        seen.add(as_keys(keys), first)
        first += len(keys)
    everything = [key for keys in batches for key in keys]
    asked = [*strangers, *everything]
    together = seen.find(as_keys(asked))
    singly = [number for number, key in enumerate(asked) if seen.find(as_keys([key]))]
    assert sorted(together) == singly
    for number, key in enumerate(asked):
        place = together.get(number, 0)
        assert place == 0 or everything[place - 1] == key
        assert place or key not in everything[-window:]


@given(known=st.integers(0, 499), place=st.integers(0, 30))
def test_one_old_key_among_strangers_is_found(known, place):
    seen = DedupeWindow(600)
    seen.add(keys_of(range(500)), 1)
    asked = list(range(1_000, 1_030))
    asked.insert(place, known)
    assert seen.find(keys_of(asked)) == {place: known + 1}


@given(st.integers(0, 500), st.sampled_from([1, 3, 40]))
def test_marks_deny_no_key_among_the_last_ones(strangers, size):
    marks = DedupeWindow(10_000)
    for start in range(0, 60_000, 6_000):
        marks.add(keys_of(range(start, start + 6_000)), start + 1)
    known = list(range(50_000, 60_000, 997))[:size]
    asked = [*range(100_000, 100_000 + strangers), *known]
    assert set(marks.suspects(keys_of(asked))) >= set(range(strangers, len(asked)))


def test_few_strangers_are_suspected_however_much_passed():
    marks, most = DedupeWindow(10_000), 0
    for start in range(0, 200_000, 1_000):
        most = max(most, len(marks.suspects(keys_of(range(start, start + 1_000)))))
        marks.add(keys_of(range(start, start + 1_000)), start + 1)
    assert most < 20


@pytest.mark.parametrize("window", [1, 1_000, 1_000_000])
@pytest.mark.parametrize("size", [1, 9, 70, 5_000, 100_000])
def test_few_strangers_are_suspected_however_large_the_batches_are(window, size):
    marks = DedupeWindow(window)
    for start in range(0, 3 * size, size):
        marks.add(keys_of(range(start, start + size)), start + 1)
        assert set(marks.suspects(keys_of(range(start, start + size)))) == set(range(size))
    assert len(marks.suspects(keys_of(range(-10_000, 0)))) < 200


def test_a_window_of_few_events_takes_little_memory():
    tracemalloc.start()
    try:
        windows = [DedupeWindow() for _ in range(20)]
        for window in windows:
            for number in range(20):
                window.add(keys_of([number]), number + 1)
        size, _most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size / len(windows) < 4_096


@given(st.lists(st.integers(0, 20), max_size=30))
def test_keys_that_occur_twice_are_noticed(numbers):
    assert are_all_different(keys_of(numbers)) == (len(set(numbers)) == len(numbers))


def test_memory_stays_bounded_however_much_passes():
    seen = DedupeWindow(1000)
    for start in range(0, 20_000, 100):
        seen.add(keys_of(range(start, start + 100)), start + 1)
    assert 1000 <= len(seen) <= 1400
    assert seen.find(keys_of([0])) == {}


def test_a_key_is_of_source_and_id_and_of_nothing_else():
    first, second = event("a", "bc"), event("ab", "c")
    assert identity_keys([first])[0] != identity_keys([second])[0]
    moved = Event("a", "bc", "other", "x", 99, b"1")
    assert identity_keys([first])[0] == identity_keys([moved])[0]


def test_identities_are_read_from_a_block_without_the_rest():
    events = [event("s", str(number)) for number in range(5)]
    identities = decode_identities(encode_block(events))
    assert [(one.source, one.id) for one in identities] == [(e.source, e.id) for e in events]
    assert identity_keys(identities).tolist() == identity_keys(events).tolist()
