"""The window of identities: finds what is in it, forgets in bounds. [CH-6]"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.seen import SeenWindow, decode_identities, identity_keys
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
