"""The window of identities: finds what is in it, forgets in bounds. [CH-6]"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.logged.seen import SeenWindow, decode_identities, identity_keys
from rapport.core.codec import encode_block
from rapport.core.event import Event


def event(source: str, identity: str) -> Event:
    return Event(source, identity, "t", "s", 0, b"{}", {"h": "v"})


@given(
    window=st.integers(1, 300),
    batches=st.lists(st.integers(1, 60), max_size=30),
)
def test_everything_in_the_window_is_found_at_its_position(window, batches):
    seen = SeenWindow(window)
    added: list[int] = []
    for size in batches:
        keys = [hash(("key", len(added) + number)) for number in range(size)]
        assert seen.find(keys) == [0] * size
        seen.add(keys, len(added) + 1)
        added += keys
        recent = added[-window:]
        first = len(added) - len(recent) + 1
        assert seen.find(recent) == list(range(first, len(added) + 1))
    assert len(seen) <= window * 4 // 3 + 60 + 2


@given(
    window=st.integers(1, 200),
    batches=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40), max_size=12),
    strangers=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30),
)
def test_keys_asked_for_together_or_singly_are_found_alike(window, batches, strangers):
    seen, first = SeenWindow(window), 1
    for keys in batches:
        seen.add(keys, first)
        first += len(keys)
    asked = [*strangers, *(key for keys in batches for key in keys)]
    together, singly = seen.find(asked), [seen.find([key])[0] for key in asked]
    assert [bool(place) for place in together] == [bool(place) for place in singly]
    everything = [key for keys in batches for key in keys]
    for key, place in zip(asked, together, strict=True):
        assert place == 0 or everything[place - 1] == key
        assert place or key not in everything[-window:]


@given(known=st.integers(0, 499), place=st.integers(0, 30))
def test_one_old_key_among_strangers_is_found(known, place):
    seen = SeenWindow(600)
    keys = [hash(("key", number)) for number in range(500)]
    seen.add(keys, 1)
    asked = [hash(("stranger", number)) for number in range(30)]
    asked.insert(place, keys[known])
    assert seen.find(asked) == [known + 1 if key == keys[known] else 0 for key in asked]


def test_memory_stays_bounded_however_much_passes():
    seen = SeenWindow(1000)
    for start in range(0, 20_000, 100):
        seen.add([hash(("key", number)) for number in range(start, start + 100)], start + 1)
    assert 1000 <= len(seen) <= 1400
    assert seen.find([hash(("key", 0))]) == [0]


def test_a_key_is_of_source_and_id_and_of_nothing_else():
    first, second = event("a", "bc"), event("ab", "c")
    assert identity_keys([first])[0] != identity_keys([second])[0]
    moved = Event("a", "bc", "other", "x", 99, b"1")
    assert identity_keys([first]) == identity_keys([moved])


def test_identities_are_read_from_a_block_without_the_rest():
    events = [event("s", str(number)) for number in range(5)]
    identities = decode_identities(encode_block(events))
    assert [(one.source, one.id) for one in identities] == [(e.source, e.id) for e in events]
    assert identity_keys(identities) == identity_keys(events)
