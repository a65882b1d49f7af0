"""The division of work: fair, the same for all, and nobody alive is robbed. [CO-17]"""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.communication.cluster_leases import (
    Lease,
    LivenessTable,
    ShareSettings,
    fair_owners,
    next_moves,
    share_of,
)
from support.examples import examples

INSTANCES = st.sets(st.text("abcdef0123", min_size=1, max_size=6), min_size=1, max_size=9)
COUNTS = st.integers(1, 64)


@given(INSTANCES, COUNTS)
def test_everybody_holds_the_same_number_or_one_less(instances, count):
    owners = fair_owners(instances, count)
    assert sorted(owners) == list(range(count))
    held = Counter(owners.values())
    numbers = [held[name] for name in instances]
    assert max(numbers) - min(numbers) <= 1


@given(INSTANCES, COUNTS)
@settings(max_examples=examples(50))
def test_the_order_in_which_instances_are_seen_changes_nothing(instances, count):
    seen = sorted(instances)
    assert fair_owners(seen, count) == fair_owners(seen[::-1], count)


def test_few_shares_move_when_an_instance_goes():
    before = fair_owners(["a", "b", "c", "d"], 64)
    after = fair_owners(["a", "b", "c"], 64)
    kept = [share for share in before if before[share] != "d"]
    moved = [share for share in kept if after[share] != before[share]]
    assert len(moved) <= len(kept) // 4


def test_names_are_spread_over_all_shares():
    found = Counter(share_of(f"peer:{number}", 16) for number in range(16_000))
    assert len(found) == 16
    assert min(found.values()) > 800


def test_an_instance_lives_while_its_count_grows_within_a_lease():
    living = LivenessTable(lease_ms=6_000)
    living.see({"a": b"1", "b": b"1"}, 0)
    living.see({"a": b"2", "b": b"1"}, 5_999)
    assert living.alive(5_999) == {"a", "b"}
    assert living.alive(6_000) == {"a"}
    living.see({"a": b"2", "b": b"2"}, 6_001)
    assert living.alive(6_001) == {"a", "b"}
    living.see({"b": b"2"}, 6_002)
    assert living.alive(6_002) == {"b"}
    assert (living.record_of("a"), living.record_of("b")) == (None, b"2")


def test_one_who_was_paused_judges_by_what_it_sees_after_the_pause():
    living = LivenessTable(lease_ms=6_000)
    living.see({"a": b"1"}, 0)
    living.see({"a": b"9"}, 60_000)
    assert living.alive(60_000) == {"a"}


@given(
    INSTANCES,
    st.sets(st.text("abcdef0123", min_size=1, max_size=6), max_size=4),
    st.integers(1, 24),
    st.randoms(use_true_random=False),
)
def test_moves_end_in_the_fair_division_and_never_take_from_the_living(alive, dead, count, choose):
    dead = dead - alive
    names = [*sorted(alive), *sorted(dead), ""]
    leases = {share: Lease(choose.choice(names), 1) for share in range(count)}
    said = ShareSettings(count=count)
    for _ in range(3):
        for me in sorted(alive):
            moves = next_moves(me, leases, alive, said)
            for share in moves.acquire:
                assert leases[share].owner not in alive
                leases[share] = Lease(me, leases[share].epoch + 1)
            for share in moves.release:
                assert leases[share].owner == me
                leases[share] = Lease("", leases[share].epoch)
    wanted = fair_owners(sorted(alive), count)
    assert {share: lease.owner for share, lease in leases.items()} == wanted
    assert all(not any(next_moves(me, leases, alive, said).acquire) for me in alive)


def test_what_policies_detect_is_held_only_by_one_who_knows_them():
    said = ShareSettings(count=4)
    alive = ["a", "b", "c"]
    for me in alive:
        moves = next_moves(me, {}, alive, said, acting={"b"})
        assert (said.acting in moves.acquire) == (me == "b")
    assert said.acting not in next_moves("a", {}, alive, said).acquire
    leases = {said.acting: Lease("dead", 3)}
    assert said.acting in next_moves("c", leases, alive, said, acting={"c"}).acquire
