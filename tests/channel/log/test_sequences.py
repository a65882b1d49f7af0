"""Repetitions told by a publisher's own count: marks, their saving, and the channel with them.
[CH-6]
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.backends.local import open_embedded, open_memory
from rapport.channel.log import sequences
from rapport.channel.log.channels import LoggedChannels, LogParts
from rapport.channel.log.sequences import (
    SEQUENCED_IN,
    MarksDraft,
    SequenceMarks,
    SequenceStamp,
    counted_in,
    read_stamp,
    stamp_in,
)
from rapport.channel.log.writer import InlineWriter
from rapport.core.errors import InvalidInput
from rapport.core.event import Event
from rapport.kernel.clock import ManualClock
from rapport.store.base import AppendConflict
from rapport.store.history_index import MemoryHistory
from rapport.store.memory import MemoryLogStore, MemoryRecordStore
from support.numbered_events import stamped


def event(sequence: int, *, epoch: int = 1, publisher: str = "p", id: str = "") -> Event:
    headers = stamped({}, SequenceStamp(publisher, epoch, sequence))
    return Event("s", id or f"{publisher}-{epoch}-{sequence}", "t", "", 0, b"{}", headers)


def counted(*sequences: int, channel: str = "c", **more) -> list[Event]:
    return counted_in(channel, [event(sequence, **more) for sequence in sequences])


def nowhere(_event: Event) -> int:
    return 0


# --- stamps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epoch", "sequence", "publisher"),
    [
        ("x", "1", "p"),
        ("1", "-1", "p"),
        ("1", "1.0", "p"),
        ("1", "9" * 19, "p"),
        ("", "1", "p"),
        ("1", "1", ""),
        ("1", "1", "p" * 257),
        ("1", "²", "p"),
    ],
)
def test_a_stamp_that_means_nothing_is_refused_at_the_door(epoch, sequence, publisher):
    headers = {"publisher": publisher, "epoch": epoch, "sequence": sequence}
    with pytest.raises(InvalidInput) as caught:
        counted_in("c", [Event("s", "1", "t", "", 0, b"{}", headers)])
    assert caught.value.code == "event.bad_sequence"
    assert stamp_in("c", Event("s", "1", "t", "", 0, b"{}", headers | {SEQUENCED_IN: "c"})) is None


def test_events_of_publishers_that_do_not_count_pass_as_they_are():
    plain = Event("s", "1", "t", "", 0, b"{}", {"sequence": "abc", "publisher": "someone"})
    assert read_stamp(plain) is None
    assert counted_in("c", [plain]) == [plain]


def test_a_mark_from_outside_about_the_channel_is_not_believed():
    forged = Event("s", "1", "t", "", 0, b"{}", {SEQUENCED_IN: "c", "other": "x"})
    assert counted_in("c", [forged])[0].headers == {"other": "x"}
    (moved,) = counted_in("d", counted(5, channel="c"))
    assert (stamp_in("c", moved), stamp_in("d", moved)) == (None, SequenceStamp("p", 1, 5))


# --- marks ----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 9)), max_size=60))
def test_an_event_is_old_when_its_epoch_has_had_that_number_or_a_higher_one(arriving):
    marks, highest = SequenceMarks(), {}
    draft, newest = MarksDraft("c", marks, nowhere), {}
    for place, (publisher, epoch, sequence) in enumerate(arriving, start=1):
        (one,) = counted(sequence, epoch=epoch, publisher=str(publisher))
        mark = highest.get((publisher, epoch), -1)
        is_beside = newest.get((publisher, epoch)) == sequence  # made of the same event, perhaps
        assert draft.is_old(one) == (sequence <= mark and not is_beside)
        if sequence > mark:
            highest[publisher, epoch] = newest[publisher, epoch] = sequence
        if place % 7 == 0:
            draft.keep(place)
            draft, newest = MarksDraft("c", marks, nowhere), {}


def test_a_draft_that_is_not_kept_changes_nothing():
    marks = SequenceMarks()
    assert not MarksDraft("c", marks, nowhere).is_old(counted(5)[0])
    assert not MarksDraft("c", marks, nowhere).is_old(counted(5)[0])


def test_marks_are_bounded_and_the_longest_unused_go_first():
    marks = SequenceMarks(most_publishers=3, most_epochs=2)
    for number in range(10):
        marks.raise_to(SequenceStamp(f"p{number}", 1, 5), number)
        marks.raise_to(SequenceStamp("busy", number, 5), number)
    assert len(marks) == 3
    assert [marks.highest("busy", epoch) for epoch in (7, 8, 9)] == [-1, 5, 5]
    assert (marks.highest("p9", 1), marks.highest("p0", 1)) == (5, -1)
    assert "p0" in marks.forgotten
    assert marks.changed == {"busy", "p8", "p9"}


# --- in a channel ---------------------------------------------------------------------------------


def test_what_a_publisher_sends_again_is_dropped_though_its_ids_are_long_forgotten():
    async def scenario() -> None:
        channels = open_memory(ManualClock(), dedupe_window=10)
        channel = channels.channel("c")
        await channel.append(counted(1, 2, 3))
        for start in range(0, 1000, 50):
            others = [Event("o", str(n), "t", "", 0) for n in range(start, start + 50)]
            await channel.append(others)
        again = await channel.append(counted(1, 2, 3, 4))
        assert again.duplicates == 3
        assert again.positions[3] == 1004
        assert channel.last_position() == 1004
        # What cannot be found by number alone is found by id, and the other way round.
        assert (await channel.append(counted(5, id="p-1-4"))).duplicates == 1
        assert (await channel.append(counted(4, id="new id"))).duplicates == 1
        await channels.close()

    asyncio.run(scenario())


def test_a_repetition_gets_the_position_of_its_first_copy_when_the_index_knows_it():
    async def scenario() -> None:
        channels = open_memory(ManualClock(), dedupe_window=10)
        channel = channels.channel("c")
        await channel.append([Event("o", "x", "t", "", 0)])
        await channel.append(counted(1, 2))
        await channel.append([Event("o", str(n), "t", "", 0) for n in range(100)])
        assert await channels.find_event("p-1-1")  # feeds the index
        assert (await channel.append(counted(1, 2))).positions == (2, 3)
        await channels.close()

    asyncio.run(scenario())


def test_a_number_counts_only_in_the_channel_it_was_published_to():
    async def scenario() -> None:
        channels = open_memory(ManualClock())
        first = counted(1, 2, 3, channel="raw.a")
        await channels.channel("raw.a").append(first)
        copies = channels.channel("events")
        assert (await copies.append(first[2:])).duplicates == 0
        assert (await copies.append(first[:2])).duplicates == 0
        await channels.close()

    asyncio.run(scenario())


def test_one_group_with_the_same_request_twice_stores_it_once():
    async def scenario() -> None:
        channels = open_memory(ManualClock())
        channel = channels.channel("c")
        answer = await channel.append(counted(1, 2) + counted(1, 2, 3))
        assert (answer.positions, answer.duplicates) == ((1, 2, 1, 2, 3), 2)
        await channels.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("save_every", [1, 7, 10**9])
def test_marks_outlive_a_restart_whether_saved_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_every: int
):
    monkeypatch.setattr(sequences, "SAVE_EVERY", save_every)

    async def run(batches: list[list[Event]]) -> list[int]:
        channels = open_embedded(tmp_path, ManualClock(), dedupe_window=2, segment_bytes=2_000)
        found = [(await channels.channel("c").append(batch)).duplicates for batch in batches]
        await channels.close()
        return found

    first = [counted(n, publisher=publisher) for n in range(1, 20) for publisher in ("p", "q/r")]
    assert asyncio.run(run(first)) == [0] * 38
    assert asyncio.run(run(first)) == [1] * 38
    assert asyncio.run(run([counted(20), counted(20), counted(1, epoch=2)])) == [0, 1, 0]
    assert asyncio.run(run([counted(20), counted(1, epoch=2), counted(2, epoch=2)])) == [1, 1, 0]


def test_marks_come_back_from_the_log_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sequences, "SAVE_EVERY", 1)

    async def append(batch: list[Event]) -> int:
        channels = open_embedded(tmp_path, ManualClock(), dedupe_window=2)
        duplicates = (await channels.channel("c").append(batch)).duplicates
        await channels.close()
        return duplicates

    assert asyncio.run(append(counted(*range(1, 50)))) == 0
    for file in tmp_path.glob("records.sqlite*"):
        file.unlink()
    assert asyncio.run(append(counted(*range(1, 51)))) == 49


def test_a_log_put_back_to_an_older_state_takes_its_marks_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sequences, "SAVE_EVERY", 1)

    async def append(batch: list[Event]) -> int:
        channels = open_embedded(tmp_path, ManualClock(), dedupe_window=2)
        duplicates = (await channels.channel("c").append(batch)).duplicates
        await channels.close()
        return duplicates

    assert asyncio.run(append(counted(1, 2))) == 0
    logs = {file: file.read_bytes() for file in (tmp_path / "logs").rglob("*") if file.is_file()}
    assert asyncio.run(append(counted(3, 4))) == 0
    for file, content in logs.items():
        file.write_bytes(content)
    assert asyncio.run(append(counted(2, 3))) == 1
    assert asyncio.run(append(counted(3, 4))) == 1


class SharedMemory(MemoryLogStore):
    """A log that several nodes append to."""

    def append_after(self, log, after, blocks, received):
        if after != self.last_position(log):
            raise AppendConflict("another was faster")
        return self.append(log, blocks, received)

    def watch(self, grown):
        """Nobody is told: who appends finds out."""


def test_marks_of_another_node_that_is_ahead_are_believed():
    async def scenario() -> None:
        log, records = SharedMemory(), MemoryRecordStore()

        def node() -> LoggedChannels:
            return LoggedChannels(
                LogParts(
                    clock=ManualClock(),
                    log=log,
                    records=records,
                    history=MemoryHistory(),
                    writer=InlineWriter(),
                    pool=None,
                    dedupe_window=4,
                )
            )

        busy = node()
        await busy.channel("c").append(counted(1, 2, 3, publisher="long away"))
        late = node()  # begins now and appends for the first time below
        for number in range(1, 20):
            await busy.channel("c").append(counted(number, publisher="busy"))
        busy.channel("c").trim(10)
        again = counted(1, 2, 3, publisher="long away")
        assert (await late.channel("c").append(again)).duplicates == 3
        late.channel("c").trim(10)
        assert (await node().channel("c").append(again)).duplicates == 3
        assert log.last_position("c") == 22

    asyncio.run(scenario())
