"""Which events of a group are new, where they go, and how they are cut into blocks. [CH-6]"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.log.dedupe import BLOCK_BYTES, cut_blocks, identity_keys, plan_group
from rapport.core.codec import decode_block
from rapport.core.event import Event


def event(identity: str, data: bytes = b"{}") -> Event:
    return Event("s", identity, "t", "", 0, data)


def nothing_seen(keys):
    return {}


@given(st.lists(st.lists(st.integers(0, 8), max_size=5), max_size=6), st.sets(st.integers(0, 8)))
def test_a_group_gives_every_identity_one_position(appends, known):
    known_at = {f"{number}": place for place, number in enumerate(sorted(known), start=1)}
    keys = {identity_keys([event(identity)])[0]: place for identity, place in known_at.items()}
    group = plan_group(
        [[event(str(number)) for number in append] for append in appends],
        len(known) + 1,
        lambda asked: {at: keys[key] for at, key in enumerate(asked) if key in keys},
        lambda one, place: known_at.get(one.id) == place,
    )
    places = dict(known_at)
    fresh = []
    for append, answer in zip(appends, group.answers, strict=True):
        duplicates = 0
        for number, place in zip(append, answer.positions, strict=True):
            if str(number) in places:
                duplicates += 1
            else:
                fresh.append(str(number))
                places[str(number)] = len(known) + len(fresh)
            assert place == places[str(number)]
        assert answer.duplicates == duplicates
    assert [one.id for one in group.fresh] == fresh


def test_two_identities_of_one_key_cost_no_event():
    group = plan_group(
        [[event("a"), event("b")]], 10, lambda keys: {0: 3, 1: 4}, lambda one, place: one.id == "b"
    )
    assert group.answers[0].positions == (10, 4)
    assert [one.id for one in group.fresh] == ["a"]


def test_appends_of_one_group_stand_behind_each_other():
    group = plan_group([[event("a")], [], [event("b"), event("c")]], 5, nothing_seen, None)
    assert [answer.positions for answer in group.answers] == [(5,), (), (6, 7)]


def test_blocks_hold_all_events_in_order_and_stay_small():
    events = [event(str(number), b"x" * 100_000) for number in range(100)]
    events += [event(f"small-{number}") for number in range(3000)]
    blocks = cut_blocks(events)
    assert [one for part, _body in blocks for one in part] == events
    assert [one for _part, body in blocks for one in decode_block(body)] == events
    assert all(len(body) <= BLOCK_BYTES + 100_000 for _part, body in blocks)
    assert all(len(part) <= 1024 for part, _body in blocks)


def test_large_headers_make_smaller_blocks_not_one_that_no_log_takes():
    headers = {"note": "ü" * 60_000}
    events = [Event("s", str(number), "t", "", 0, b"{}", headers) for number in range(300)]
    blocks = cut_blocks(events)
    assert [one for held, _body in blocks for one in held] == events
    assert all(decode_block(body) == list(held) for held, body in blocks)
    assert max(len(body) for _held, body in blocks) <= 2 * BLOCK_BYTES
