"""What a source remembers and what is so at present: saving costs what changed, not what is known.

[ME-4]
"""

from __future__ import annotations

import asyncio
from copy import deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.backends.local import open_memory
from rapport.channel.mqtt.bridge import TOPIC
from rapport.core.errors import Corrupt, StoreUnavailable
from rapport.core.event import Event, StoredEvent
from rapport.core.release import HISTORY
from rapport.kernel.clock import ManualClock
from rapport.mediation.formats.homeassistant import HomeAssistantFormat
from rapport.mediation.memory import MEMORY_TABLE, SourceMemory, TrackedDict
from rapport.mediation.present_values import PRESENT_TABLE, PresentValueFeed
from rapport.mediation.reader import Lane
from rapport.store.base import Change, Put
from rapport.store.memory import MemoryRecordStore

MANY = 10_000


class Watched(MemoryRecordStore):
    """Counts what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[Change] = []
        self.is_full = False

    def apply(self, changes: Any) -> None:
        if self.is_full:
            raise StoreUnavailable("the disk is full")
        self.written += changes
        super().apply(changes)

    def take(self) -> int:
        """Bytes written since; records of a few bytes count as such."""
        size = sum(len(each.value) for each in self.written if isinstance(each, Put))
        self.written.clear()
        return size


def save(memory: SourceMemory, records: MemoryRecordStore, position: int = 1) -> None:
    saving = memory.save(position)
    if saving is not None:
        records.apply(saving.records)


def announcement(number: int, unit: str = "°C") -> Event:
    result = {
        "name": "temperature",
        "unique_id": f"u{number}",
        "state_topic": f"home/{number}/state",
        "unit_of_measurement": unit,
        "device_class": "temperature",
        "device": {"identifiers": [f"d{number}"], "name": f"d{number}"},
    }
    return Event(
        source="ha",
        id=f"c{number}",
        type="mqtt",
        subject="",
        time=0,
        data=msgspec.json.encode(result),
        headers={TOPIC: f"homeassistant/sensor/d{number}/config"},
    )


@pytest.mark.parametrize("known", [10, MANY])
def test_a_change_of_one_thing_costs_the_same_however_many_are_known(known: int) -> None:
    records, memory = Watched(), SourceMemory("ha")
    memory.format["places"] = TrackedDict({f"p{n}": [n, n] for n in range(known)})
    save(memory, records)
    assert records.take() > known
    assert memory.save(2) is None
    memory.format["places"]["p5"] = [7, 7]
    del memory.format["places"]["p6"]
    save(memory, records, 3)
    assert records.take() < 200
    again = SourceMemory.restore(records, "ha")
    assert again.format["places"] == memory.format["places"]
    assert list(again.format["places"])[-1] == "p5"
    assert again.position == 3


@pytest.mark.parametrize("known", [10, 1_000])
def test_an_announcement_costs_the_same_however_many_there_were(known: int) -> None:
    records, memory, format = Watched(), SourceMemory("ha"), HomeAssistantFormat({})
    for number in range(known):
        format.read(announcement(number), memory.format)
    save(memory, records)
    records.take()
    format.read(announcement(3, "°F"), memory.format)
    save(memory, records, 2)
    assert 0 < records.take() < 2_000
    again = SourceMemory.restore(records, "ha")
    assert again.format == memory.format
    assert again.save(3) is None


def test_a_memory_in_the_former_single_record_is_read() -> None:
    records = Watched()
    content = {"format": {"seen": {"a": 1}, "count": 1}, "states": {"truck": {"t1": [1.0]}, "n": 3}}
    records.put(MEMORY_TABLE, "ha", msgspec.json.encode({"position": 7, "content": content}))
    memory = SourceMemory.restore(records, "ha")
    assert (memory.position, memory.format, memory.states.states) == (7, *content.values())
    save(memory, records, 8)
    again = SourceMemory.restore(records, "ha")
    assert (again.position, again.format, again.states.states) == (8, *content.values())
    records.put(MEMORY_TABLE, "ha", b"{")
    with pytest.raises(Corrupt):
        SourceMemory.restore(records, "ha")


def test_a_copy_changes_nothing_and_a_failed_write_is_made_up_for() -> None:
    class Announces:
        stamp, may_block, into, local_zone = "x@1", False, "events", ""

        def apply_many(self, events: Any) -> Any:
            lane.memory.format.setdefault("seen", TrackedDict())[f"k{len(events)}"] = 1
            return [], []

    records = Watched()
    channels = open_memory(ManualClock())
    lane = Lane(channels, "ha", Announces, records=records)

    async def steps() -> None:
        await channels.channel("raw.ha").append([announcement(1)])
        records.is_full = True
        with pytest.raises(StoreUnavailable):
            await lane.step(timeout_ms=0)
        records.is_full = False
        copy = deepcopy(lane.memory)
        copy.format["seen"]["other"] = 1
        await channels.channel("raw.ha").append([announcement(2)])
        await lane.step(timeout_ms=0)

    asyncio.run(steps())
    again = SourceMemory.restore(records, "ha")
    assert again.format == lane.memory.format
    assert "other" not in again.format["seen"]


class Sums:
    """Remembers the sum of all it was given."""

    stamp, may_block, into, local_zone = "sums@1", False, "events", ""

    def __init__(self) -> None:
        self.memory = SourceMemory()

    def apply_many(self, events: Any) -> Any:
        states, found = self.memory.states.states, []
        for one in events:
            total = states["sum"] = states.get("sum", 0) + one.event.payload()
            headers = {"rawposition": str(one.position)}
            found.append(Event("m", one.event.id, "sum", "", 0, b"%d" % total, headers))
        return found, []


def counted(*numbers: int) -> list[Event]:
    return [Event("m", f"e{number}", "n", "", 0, b"%d" % number) for number in numbers]


@pytest.mark.parametrize("failing", ["events", "records"])
def test_a_batch_that_cannot_be_stored_is_not_processed_twice(failing: str) -> None:
    """Sums of 1, 2, 3 and 4 are 1, 3, 6 and 10, also when a disk was full meanwhile."""

    async def scenario() -> None:
        records, channels = Watched(), open_memory(ManualClock())
        sums = Sums()
        lane = Lane(channels, "m", lambda: sums, records=records)
        sums.memory = lane.memory
        events = channels.channel("events")
        append = events.append

        async def full(_events: Any) -> Any:
            raise StoreUnavailable("the disk is full")

        await channels.channel("raw.m").append(counted(1, 2, 3))
        if failing == "events":
            events.append = full  # type: ignore[method-assign]
        records.is_full = failing == "records"
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await lane.run()
            assert not await lane.save_learned()
        events.append = append  # type: ignore[method-assign]
        records.is_full = False
        await channels.channel("raw.m").append(counted(4))
        while await lane.step(timeout_ms=0):
            pass
        assert [one.event.payload() for one in await events.read_after(0)] == [1, 3, 6, 10]
        assert await lane.save_learned()
        assert SourceMemory.restore(records, "m").states.states == {"sum": 10}
        assert lane.counts.read == 4

    asyncio.run(scenario())


def test_imported_events_do_not_change_the_memory_of_live_ones() -> None:
    async def scenario() -> None:
        records, channels = Watched(), open_memory(ManualClock())
        live = Sums()

        def apart() -> Sums:
            copied = Sums()
            copied.memory = deepcopy(lane.memory)
            return copied

        lane = Lane(channels, "m", lambda: live, choose_isolated=apart, records=records)
        live.memory = lane.memory
        imported = [
            msgspec.structs.replace(one, headers={HISTORY: "true"}) for one in counted(100, 200)
        ]
        for batch in (counted(1), imported, counted(2)):
            await channels.channel("raw.m").append(batch)
            await lane.step(timeout_ms=0)
        found = await channels.channel("events").read_after(0)
        assert [one.event.payload() for one in found] == [1, 101, 301, 3]
        assert SourceMemory.restore(records, "m").states.states == {"sum": 3}

    asyncio.run(scenario())


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["set", "pop", "whole", "map", "save", "restore"]),
        st.sampled_from(["a", "b"]),
        st.sampled_from(["x", "y", "z"]),
        st.integers(0, 9),
    ),
    max_size=30,
)


@given(_STEPS)
def test_a_restored_memory_equals_the_saved_one(steps: list[tuple[str, str, str, int]]) -> None:
    records, memory = MemoryRecordStore(), SourceMemory("s")
    for what, name, key, value in steps:
        known = memory.format.get(name)
        if what == "whole":
            memory.format[name] = value
        elif what == "map":
            memory.format[name] = TrackedDict({key: value})
        elif what == "set" and isinstance(known, TrackedDict):
            known[key] = value
        elif what == "pop" and isinstance(known, TrackedDict):
            known.pop(key, None)
        elif what == "pop":
            memory.format.pop(name, None)
        elif what == "save":
            save(memory, records)
        elif what == "restore":
            save(memory, records)
            memory = SourceMemory.restore(records, "s")
    save(memory, records)
    again = SourceMemory.restore(records, "s")
    assert again.format == memory.format
    for name, found in again.format.items():
        assert type(found) is type(memory.format[name])
        if isinstance(found, TrackedDict):
            assert sorted(found) == sorted(memory.format[name])


def reading(number: int, time: int) -> StoredEvent:
    data = f'{{"key":"k{number}","value":[1.5]}}'.encode()
    event = Event(
        source="s", id=f"{number}-{time}", type="room.heat", subject="", time=time, data=data
    )
    return StoredEvent(0, 0, event)


@pytest.mark.parametrize("known", [10, MANY])
def test_present_values_are_saved_as_far_as_they_changed(known: int) -> None:
    async def scenario() -> None:
        records, channels = Watched(), open_memory(ManualClock())

        def feed() -> PresentValueFeed:
            return PresentValueFeed(
                channels, ManualClock(), lambda: True, lambda: [], lambda: {}, records
            )

        first = feed()
        await channels.channel("events").append([reading(n, 1).event for n in range(known)])
        while await first.step():
            pass
        await first.save()
        assert records.take() > known
        await channels.channel("events").append([reading(3, 2).event])
        await first.step()
        await first.save()
        assert len(records.written) == 2
        assert records.take() < 200
        again = feed()
        assert len(again.present) == known
        assert again.present.value("room", "k3", "heat") == [1.5]
        assert await again.step() == 0
        assert len(records.find(PRESENT_TABLE, limit=MANY * 2)) == known

    asyncio.run(scenario())


def test_present_values_in_the_former_single_record_are_read() -> None:
    records, channels = Watched(), open_memory(ManualClock())
    old = {"position": 0, "values": [["room.heat", "k1", 5, [2.0]], ["room.heat", "k0", 5, [1.0]]]}
    records.put(MEMORY_TABLE, "*present", msgspec.json.encode(old))

    async def scenario() -> None:
        feed = PresentValueFeed(
            channels, ManualClock(), lambda: True, lambda: [], lambda: {}, records
        )
        assert feed.present.value("room", "k1", "heat") == [2.0]
        await channels.channel("events").append([reading(3, 2).event])
        await feed.step()
        await feed.save()
        again = PresentValueFeed(
            channels, ManualClock(), lambda: True, lambda: [], lambda: {}, records
        )
        assert len(again.present) == 3

    asyncio.run(scenario())
