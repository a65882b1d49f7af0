"""What was taken: bits, notes, records; and a kill -9 in the middle. [CH-2]"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.backends.local import open_embedded, open_memory
from rapport.channel.requests.request import Request
from rapport.channel.requests.takes import (
    ROW_BITS,
    TAKEN,
    TAKES,
    Take,
    TakenMessages,
    load_taken,
    row_key,
    runs_of,
    take_key,
)
from rapport.core.errors import ChannelUnavailable, Corrupt, StoreUnavailable
from rapport.core.event import Event
from rapport.kernel.clock import ManualClock, SystemClock
from rapport.store.base import Change
from rapport.store.memory import MemoryRecordStore

CHILD = Path(__file__).with_name("taking_child.py")
POSITIONS = st.lists(st.integers(1, 3 * ROW_BITS), unique=True, max_size=20).map(sorted)


def take(
    taken: TakenMessages, positions: list[int], token: str, *, until_ms: int = 10, now_ms: int = 0
) -> list[Change]:
    note = Take(until_ms, runs_of(positions))
    changes = taken.changes(positions, token, note, now_ms)
    taken.confirm(positions, token, note)
    return changes


@given(st.lists(POSITIONS, max_size=6))
def test_the_records_give_back_what_was_taken(takes: list[list[int]]) -> None:
    records, taken = MemoryRecordStore(), TakenMessages("c")
    for number, positions in enumerate(takes):
        records.apply(take(taken, positions, f"token{number}"))
    again = load_taken(records, "c")
    everything = {position for positions in takes for position in positions}
    for position in range(0, 3 * ROW_BITS + 1, 7):
        assert again.holds(position) == (position in everything)
    for position in everything:
        assert again.holds(position)
    for number, positions in enumerate(takes):
        note = again.take_of(f"token{number}")
        assert note is not None
        assert list(note.positions()) == positions
    assert load_taken(records, "d").is_untouched()


@given(POSITIONS)
def test_runs_name_the_same_positions(positions: list[int]) -> None:
    runs = runs_of(positions)
    assert [p for first, last in runs for p in range(first, last + 1)] == positions
    assert all(before[1] + 1 < after[0] for before, after in itertools.pairwise(runs))


@pytest.mark.slow
@given(st.lists(st.integers(1, 3 * ROW_BITS), max_size=6), st.integers(0, 3 * ROW_BITS))
def test_skipping_stops_before_the_first_that_is_free(free: list[int], start: int) -> None:
    taken, last = TakenMessages("c"), 3 * ROW_BITS
    take(taken, [place for place in range(1, last + 1) if place not in free], "all")
    for position in (start, 0, start):
        expected = min((place - 1 for place in free if place > position), default=last)
        assert taken.skip(position) == expected
    take(taken, sorted(set(free)), "rest")
    assert taken.skip(start) == taken.skip(0) == last


def test_nothing_is_taken_before_it_is_durable() -> None:
    taken = TakenMessages("c")
    taken.changes([3, 4], "token", Take(10, ((3, 4),)), 0)
    assert taken.is_untouched()
    assert taken.take_of("token") is None


def test_notes_are_swept_after_their_lease_and_the_messages_stay_taken() -> None:
    records, taken = MemoryRecordStore(), TakenMessages("c")
    records.apply(take(taken, [1], "old", until_ms=100))
    records.apply(take(taken, [2], "new", until_ms=500, now_ms=100))
    assert taken.take_of("old") is None
    assert records.get(TAKES, take_key("c", "old")) is None
    assert records.get(TAKES, take_key("c", "new")) is not None
    assert load_taken(records, "c").holds(1)


@pytest.mark.parametrize(("table", "key"), [(TAKEN, "c/many"), (TAKES, take_key("c", "token"))])
def test_records_that_cannot_be_read_are_reported(table: str, key: str) -> None:
    records = MemoryRecordStore()
    records.put(table, key, b"\xc1 rubbish")
    with pytest.raises(Corrupt):
        load_taken(records, "c")


def test_a_disk_that_refuses_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        channels = open_memory(ManualClock())
        await channels.channel("c").append([Event("s", "1", "t", "", 0)])
        await channels.source.request("c", Request(query={}), identity="me")

        def refuse(_changes: object) -> None:
            raise StoreUnavailable("disk full", code="store.disk_failed")

        with monkeypatch.context() as broken:
            broken.setattr(channels.records, "apply", refuse)
            with pytest.raises(ChannelUnavailable):
                await channels.source.request("c", Request(query={}, take=True), identity="me")
        batch = await channels.source.request("c", Request(query={}, take=True), identity="me")
        assert len(batch.events) == 1
        await channels.close()

    asyncio.run(scenario())


def test_a_taker_that_goes_away_keeps_what_it_took(tmp_path: Path) -> None:
    async def scenario() -> None:
        channels = open_embedded(tmp_path, SystemClock())
        events = [Event("s", str(number), "t", "", 0) for number in range(200)]
        await channels.channel("c").append(events)
        takers = [
            asyncio.create_task(
                channels.source.request(
                    "c", Request(query={}, max_messages=1, take=True), identity=str(number)
                )
            )
            for number in range(40)
        ]
        for number, taker in enumerate(takers):
            if number % 2:
                await asyncio.wait((takers[number - 1],))
                taker.cancel()
        done = await asyncio.gather(*takers, return_exceptions=True)
        found = [
            stored.position
            for batch in done
            if not isinstance(batch, BaseException)
            for stored in batch.events
        ]
        assert len(found) == len(set(found))
        rest = await channels.source.request(
            "c", Request(query={}, max_messages=1_000), identity="me"
        )
        left = {stored.position for stored in rest.events}
        assert not left & set(found)
        assert len(left) + len(found) <= 200
        row = channels.records.get(TAKEN, row_key("c", 0))
        assert row is not None
        marked = {p for p in range(1, 201) if int.from_bytes(row, "little") >> p & 1}
        assert marked.isdisjoint(left)
        await channels.close()

    asyncio.run(scenario())


def run_and_kill(directory: Path, lines: int) -> list[str]:
    child = subprocess.Popen([sys.executable, str(CHILD), str(directory)], stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        found = [child.stdout.readline() for _ in range(lines)]
        child.kill()
        found += child.stdout.readlines()
    return [line.decode().strip() for line in found if line.endswith(b"\n")]


@pytest.mark.slow
def test_kill_9_hands_no_taken_message_out_twice(tmp_path: Path) -> None:
    handed_out: list[str] = []
    for lines in (5, 17, 40, 3, 60, 25):
        handed_out += run_and_kill(tmp_path, lines)
        assert len(handed_out) == len(set(handed_out))

    async def rest() -> list[str]:
        channels = open_embedded(tmp_path, SystemClock())
        found: list[str] = []
        batch = await channels.source.request("c", Request(query={}), identity="me")
        while True:
            found += [stored.event.id for stored in batch.events]
            if batch.next_token is None:
                break
            batch = await channels.source.request(
                "c", Request(token=batch.next_token), identity="me"
            )
        await channels.close()
        return found

    assert not set(asyncio.run(rest())) & set(handed_out)
