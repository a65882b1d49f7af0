"""The quarantine index agrees with the log, in bounded memory. [ME-11, ME-16]"""

from __future__ import annotations

import asyncio
import gc
import os
import tracemalloc
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.backends.local import open_embedded, open_memory
from rapport.core.event import Event, make_event
from rapport.core.release import BATCH_RELEASED, ReleasedBatch
from rapport.kernel.clock import ManualClock, SystemClock
from rapport.mediation.quarantine.index import (
    QuarantineFilter,
    QuarantineIndex,
    group_quarantined,
)
from rapport.mediation.quarantine.rejection_events import rejection_event
from rapport.mediation.rejections import Rejection
from rapport.store.base import Put
from rapport.store.sqlite import SqliteRecordStore

REASONS = ("unit.undeclared", "field.missing")


def rejected(source: str, position: int, reason: str, attempt: int = 1) -> Event:
    raw = make_event(
        source=source, id=f"e{position}", type="t", time=position, data={"humidity": position}
    )
    rejection = Rejection(reason, "the unit of humidity is not declared", "", raw, position)
    return rejection_event(rejection, source, attempt=attempt)


def done(number: int, batch: ReleasedBatch) -> Event:
    return make_event(source="mediation", id=f"r{number}", type=BATCH_RELEASED, time=0, data=batch)


Act = tuple[str, str, int, str]
ACTS = st.lists(
    st.tuples(
        st.sampled_from(("hold", "hold", "hold", "release", "look", "correct")),
        st.sampled_from(("a", "b")),
        st.integers(1, 6),
        st.sampled_from(REASONS),
    ),
    max_size=25,
)


class Model:
    """The quarantine as plain dictionaries."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, int], tuple[str, int]] = {}
        """Reason and attempts of each source and position."""
        self.released: Counter[str] = Counter()
        self.corrections: dict[tuple[str, str], str] = {}

    def hold(self, source: str, position: int, reason: str) -> int:
        _, attempts = self.held.get((source, position), ("", 0))
        self.held[source, position] = reason, attempts + 1
        return attempts + 1

    def counts(self) -> Counter[tuple[str, str]]:
        return Counter((source, reason) for (source, _), (reason, _) in self.held.items())


async def played(acts: Iterable[Act]) -> None:
    """Compares the index with the model after the acts, refreshed in between."""
    channels, model = open_memory(ManualClock(5)), Model()
    held_back = QuarantineIndex(channels)
    quarantine, releases = channels.channel("quarantine"), channels.channel("releases")
    for number, (act, source, position, reason) in enumerate(acts):
        if act == "hold":
            attempt = model.hold(source, position, reason)
            event = rejected(source, position, reason, attempt)
            await quarantine.append([Event(*_with_id(event, f"q{number}"))])
        elif act == "release":
            batch = ReleasedBatch(release="r", upto=0, channel=f"raw.{source}", released=[position])
            model.held.pop((source, position), None)
            model.released[source] += 1
            await releases.append([done(number, batch)])
        elif act == "correct":
            id = f"e{position}"
            model.corrections[source, id] = f"{id}~{number}"
            corrected = {id: f"{id}~{number}"}
            batch = ReleasedBatch(release="r", upto=0, channel=f"raw.{source}", corrected=corrected)
            await releases.append([done(number, batch)])
        if act != "hold" or number % 3 == 0:
            await held_back.refresh()
    await held_back.refresh()
    await agree(held_back, model, channels)
    await channels.close()


def _with_id(event: Event, id: str) -> tuple[Any, ...]:
    return event.source, id, event.type, event.subject, event.time, event.data, event.headers


async def agree(held_back: QuarantineIndex, model: Model, channels: Any) -> None:
    found = {
        (one.source, one.raw_position): (one.reason, one.attempts) for one in await held_back.held()
    }
    assert found == model.held
    assert [*found] == sorted(found)
    assert held_back.counts() == model.counts()
    assert Counter(held_back.released()) == model.released
    for source in "ab":
        for position in range(1, 7):
            id = f"e{position}"
            expected = model.corrections.get((source, id), id)
            assert held_back.correction(f"raw.{source}", id) == expected
            one = held_back.at(f"raw.{source}", position)
            assert (one is not None) == ((source, position) in model.held)
            assert one is None or held_back.one(one.id) == one
    groups = await group_quarantined(channels, held_back)
    assert {(one.source, one.reason): one.count for one in groups} == dict(model.counts())
    for group in groups:
        places = [n for (source, n), (why, _) in model.held.items()
                  if (source, why) == (group.source, group.reason)]  # fmt: skip
        if group.reason == "unit.undeclared":
            (values,) = group.fields
            assert (values.count, values.low, values.high) == (
                len(places), min(places), max(places),
            )  # fmt: skip
    only = await held_back.held(QuarantineFilter(source="a"))
    assert {one.source for one in only} <= {"a"}


@given(acts=ACTS)
@pytest.mark.slow
def test_the_index_agrees_with_the_log(acts: list[Act]) -> None:
    asyncio.run(played(acts))


def test_concurrent_refreshes_process_nothing_twice() -> None:
    async def scenario() -> None:
        channels = open_memory(ManualClock(5))
        await channels.channel("quarantine").append([rejected("a", n, "x") for n in range(1, 40)])
        held_back = QuarantineIndex(channels)
        await asyncio.gather(*(held_back.refresh() for _ in range(5)))
        assert {one.attempts for one in await held_back.held()} == {1}
        assert held_back.counts() == {("a", "x"): 39}
        await channels.close()

    asyncio.run(scenario())


async def memory_for(directory: Path, count: int) -> int:
    """Bytes of memory that the index uses after it processed everything."""
    channels = open_embedded(directory, SystemClock())
    quarantine = channels.channel("quarantine")
    for begin in range(1, count + 1, 1_000):
        last = min(begin + 1_000, count + 1)
        await quarantine.append([rejected("a", n, REASONS[0]) for n in range(begin, last)])
    held_back = QuarantineIndex(channels)
    gc.collect()
    tracemalloc.start()
    try:
        await held_back.refresh()
        (group,) = await group_quarantined(channels, held_back)
        gc.collect()
        names = ("mediation/quarantine", "store/memory", "msgspec")
        ours = (tracemalloc.Filter(True, f"*{name}*") for name in names)
        taken = tracemalloc.take_snapshot().filter_traces(tuple(ours))
    finally:
        tracemalloc.stop()
    assert group.count == count
    await channels.close()
    return sum(each.size for each in taken.statistics("filename"))


@pytest.mark.slow
def test_a_hundred_times_as_many_need_no_more_memory(tmp_path: Path) -> None:
    some = asyncio.run(memory_for(tmp_path / "some", 100))
    many = asyncio.run(memory_for(tmp_path / "many", 10_000))
    assert many < some + 20_000


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="tells open files only on Linux")
def test_the_file_has_no_name_so_that_no_kill_leaves_it_behind() -> None:
    def temporary() -> set[str]:
        """Files that SQLite made for a while, as this process sees them."""
        links = [os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
        return {link for link in links if "/etilqs_" in link}

    before = temporary()
    store = SqliteRecordStore(None)
    for number in range(100):  # more than SQLite keeps in memory
        store.apply([Put("t", f"k{number}", bytes(100_000))])
    (own,) = temporary() - before
    assert own.endswith("(deleted)")
    del store
    gc.collect()
    assert own not in temporary()
