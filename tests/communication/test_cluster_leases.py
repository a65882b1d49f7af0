"""Leases over one record store: taken, kept, given back, lost; never held twice. [CO-17]"""

from __future__ import annotations

import asyncio

import pytest

from rapport.communication.cluster_channels import WHERE, ShareRecords
from rapport.communication.cluster_leases import (
    LEASES,
    PRESENCES,
    ShareLeases,
    ShareSettings,
    check_unshared,
)
from rapport.core.errors import InvalidInput, Unsupported
from rapport.kernel.clock import ManualClock
from rapport.store.base import Delete, GuardFailed, Put
from rapport.store.memory import MemoryRecordStore

SETTINGS = ShareSettings(count=8, lease_ms=6_000)


class Process:
    """One that takes part, with a clock of its own."""

    def __init__(self, name, records, settings=SETTINGS):
        self.clock, self.working, self.ended = ManualClock(), set(), []
        self.leases = ShareLeases(
            records, self.clock, instance=name, begin=self.begin, end=self.end, settings=settings
        )

    async def begin(self, held):
        self.working.add(held.number)

    async def end(self, held, gently):
        self.working.discard(held.number)
        self.ended.append((held.number, gently))

    async def step(self, after_ms=2_000):
        self.clock.set_ms(self.clock.now_ms() + after_ms)
        await self.leases.step()
        await asyncio.gather(*self.leases._leaving.values())


async def steps(count, *processes):
    for _ in range(count):
        for process in processes:
            await process.step()


def test_one_process_holds_everything_and_two_the_half_each():
    async def scenario():
        records = MemoryRecordStore()
        one, two = Process("one", records), Process("two", records)
        await one.step()
        assert one.working == set(range(8))
        await steps(3, two, one)
        assert len(one.working) == len(two.working) == 4
        assert one.working | two.working == set(range(8))
        assert all(gently for _, gently in one.ended)

    asyncio.run(scenario())


def test_a_dead_process_is_taken_over_after_its_lease_and_not_before():
    async def scenario():
        records = MemoryRecordStore()
        one, two = Process("one", records), Process("two", records)
        await steps(3, one, two)
        dead = set(two.working)
        await steps(2, one)
        assert not one.working & dead
        await steps(2, one)
        assert one.working == set(range(8))
        assert [name for name, _ in records.find(PRESENCES)] == ["one", "two"]
        await steps(1, one)
        assert [name for name, _ in records.find(PRESENCES)] == ["one"]

    asyncio.run(scenario())


def test_one_that_was_frozen_finds_its_shares_lost_and_can_commit_nothing():
    async def scenario():
        records = MemoryRecordStore()
        one, two = Process("one", records), Process("two", records)
        await steps(3, one, two)
        frozen = two.leases.held
        own = {number: ShareRecords(records, held) for number, held in frozen.items()}
        for kept in own.values():
            kept.put("communication", "outbox", b"mine")
        await steps(5, one)
        two.clock.set_ms(60_000)
        assert two.leases.valid_for_ms() == 0
        for number, kept in own.items():
            with pytest.raises(GuardFailed) as caught:
                kept.apply([Put("communication", "outbox", b"late"), Put("other", "k", b"late")])
            assert caught.value.guard.table == LEASES
            assert kept.get("communication", "outbox") == b"mine"
            assert number in one.working
        assert records.get("other", "k") is None
        await two.step()
        assert not any(gently for _, gently in two.ended)
        assert {number for number, _ in two.ended} == set(frozen)

    asyncio.run(scenario())


def test_nobody_takes_a_share_whose_holder_spoke_up_at_the_last_moment():
    async def scenario():
        records = MemoryRecordStore()
        one, two = Process("one", records), Process("two", records)
        await steps(3, one, two)
        before = set(two.working)
        await steps(2, one)
        one.clock.set_ms(one.clock.now_ms() + 6_000)
        one.leases._write_presence()
        one.leases._look()
        await two.step()  # between the other's look and its change
        leases = {share: _lease(kept) for share, kept in one.leases._leases.items()}
        for share in before:
            await one.leases._acquire(share, leases[share])
        assert not one.working & before
        assert two.working == before

    def _lease(kept):
        from rapport.communication.cluster_leases import _decode

        return _decode(kept)

    asyncio.run(scenario())


def test_leaving_gives_everything_back_at_once():
    async def scenario():
        records = MemoryRecordStore()
        one, two = Process("one", records), Process("two", records)
        await steps(3, one, two)
        await two.leases._leave()
        await one.step()
        assert one.working == set(range(8))
        assert not two.working

    asyncio.run(scenario())


def test_a_lease_whose_acquiring_got_no_response_is_adopted():
    async def scenario():
        records = MemoryRecordStore()
        one = Process("one", records)
        await one.step()
        lost = one.leases._held.pop(3)
        one.working.discard(3)
        await one.step()
        assert one.leases.held[3].lease == lost.lease
        assert 3 in one.working

    asyncio.run(scenario())


def test_all_say_the_same_number_of_shares_and_a_single_engine_stays_away():
    records = MemoryRecordStore()
    Process("one", records).leases._check()
    with pytest.raises(InvalidInput) as caught:
        Process("two", records, ShareSettings(count=4)).leases._check()
    assert caught.value.code == "shares.count_differs"
    with pytest.raises(InvalidInput) as caught:
        check_unshared(records)
    assert caught.value.code == "shares.several_engines"
    single = MemoryRecordStore()
    check_unshared(single)
    single.put("communication", "position/input", b"7")
    with pytest.raises(InvalidInput) as caught:
        Process("one", single).leases._check()
    assert caught.value.code == "shares.single_engine"


def test_records_without_guards_are_refused():
    with pytest.raises(Unsupported):
        Process("one", object())


def test_shares_have_keys_of_their_own_and_say_where_a_case_is():
    async def scenario():
        records = MemoryRecordStore()
        one = Process("one", records)
        await one.step()
        first, second = (ShareRecords(records, one.leases.held[n]) for n in (1, 2))
        first.put("communication.messages", "m1", b"case")
        second.put("communication.due", "x", b"")
        assert second.get("communication.messages", "m1") is None
        assert first.find("communication.messages") == [("m1", b"case")]
        assert first.find("communication.messages", after="m1") == []
        assert first.find("communication.due") == []
        assert records.get(WHERE, "m1") == b"001"
        first.apply([Delete("communication.messages", "m1")])
        assert records.get(WHERE, "m1") is None
        first.put("secrets", "answers", b"common")
        assert second.get("secrets", "answers") == b"common"

    asyncio.run(scenario())


def test_what_is_counted_in_common_is_never_counted_wrongly():
    async def scenario():
        records = MemoryRecordStore()
        one = Process("one", records)
        await one.step()
        first, second = (ShareRecords(records, one.leases.held[n]) for n in (1, 2))
        assert first.get("communication.recent", "ana") is None
        assert second.get("communication.recent", "ana") is None
        first.put("communication.recent", "ana", b"1")
        with pytest.raises(GuardFailed) as caught:
            second.put("communication.recent", "ana", b"1")
        assert caught.value.guard.table == "communication.recent"
        assert second.get("communication.recent", "ana") == b"1"
        second.put("communication.recent", "ana", b"2")
        assert first.get("communication.recent", "ana") == b"2"

    asyncio.run(scenario())
