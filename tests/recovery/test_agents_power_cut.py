"""Power cuts on the machines of publishers and listeners: what an outbox accepted is delivered
under the number it was given, and a place is the last one kept or the one that was being kept.
[CH-5, CH-6, CH-7]
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.channel.agents.listener_directory import ListenedQuery, ListenerDirectory
from rapport.channel.agents.listener_state import ResumePoint
from rapport.channel.agents.outbox import Outbox
from rapport.channel.log.sequences import EPOCH, PUBLISHER
from rapport.core.errors import Corrupt, StoreUnavailable
from rapport.core.event import Event
from rapport.kernel.clock import Chance, ManualClock
from support.faults.disk import ForgetfulDisk
from support.faults.rounds import few_or_many

DIRECTORY = Path("/home/program/outbox")
SESSION = ListenedQuery(channel="c", query="{}")
EVERYTHING = 10**9


class Sink:
    """What a node has got: one event per publisher, epoch and number."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, str, int], str] = {}

    def take(self, sequence: int, event: Event) -> None:
        stamp = (event.headers[PUBLISHER], event.headers[EPOCH], sequence)
        assert self.stored.setdefault(stamp, event.id) == event.id, f"{stamp} names two events"


class Machine:
    """A program with an outbox, on a disk that forgets."""

    def __init__(self, chance: Chance) -> None:
        self.disk, self.chance, self.sink = ForgetfulDisk(), chance, Sink()
        self.accepted: list[str] = []
        self._clock, self._number, self._starts = ManualClock(1_000), 0, 0

    def open(self) -> Outbox:
        self._starts += 1
        return Outbox(
            DIRECTORY,
            self._clock,
            new_name=f"publisher-{self._starts}",
            segment_bytes=2_000,
            files=self.disk,
        )

    def work_until_dark(self) -> None:
        """Publishes and delivers until the disk refuses."""
        try:
            outbox = self.open()
        except StoreUnavailable:
            return
        try:
            while True:
                self._publish(outbox)
                if self.chance.randint(0, 1):
                    self.deliver(outbox, self.chance.randint(1, 10))
        except StoreUnavailable as error:
            assert error.code == "store.disk_failed"
        try:
            outbox.close()
        except StoreUnavailable as error:
            assert error.code == "store.disk_failed"

    def _publish(self, outbox: Outbox) -> None:
        events = []
        for _ in range(self.chance.randint(1, 4)):
            data = b'"' + b"x" * (self._number * 31 % 300) + b'"'
            events.append(Event("s", f"e{self._number}", "t", "", 0, data))
            self._number += 1
        outbox.add(events)
        self.accepted += [event.id for event in events]

    def deliver(self, outbox: Outbox, most: int) -> None:
        """Hands over the next so many, in requests of any size, and settles each."""
        last = min(outbox.settled + most, outbox.last)
        while outbox.settled < last:
            first = outbox.settled + 1
            found = outbox.read_waiting(first, last, most_bytes=EVERYTHING)
            numbers = [one.sequence for one in found]
            assert numbers == list(range(first, first + max(len(found), 1)))
            for one in found:
                self.sink.take(one.sequence, one.event)
            outbox.settle(numbers[-1])


@pytest.mark.parametrize("rounds", few_or_many(12))
def test_an_outbox_survives_power_cuts_at_any_step(rounds: int) -> None:
    machine = Machine(Chance(7 + rounds))
    for _round in range(rounds):
        machine.disk.steps_left = machine.chance.randint(0, 120)
        machine.work_until_dark()
        machine.disk.cut_power(machine.chance)
    outbox = machine.open()
    machine.deliver(outbox, EVERYTHING)
    assert outbox.settled == outbox.last
    assert not outbox.problems()
    stored = list(machine.sink.stored.values())
    assert len(stored) == len(set(stored)), "an event has two numbers"
    assert set(machine.accepted) <= set(stored)
    assert len(machine.accepted) > rounds * 5
    assert len({publisher for publisher, _epoch, _number in machine.sink.stored}) == 1
    outbox.close()


def test_without_the_sync_of_its_events_an_outbox_would_lose_some() -> None:
    for seed in range(5):
        machine = Machine(Chance(seed))
        machine.disk.skip_sync = lambda path: path.suffix == ".log"
        for _round in range(5):
            machine.disk.steps_left = machine.chance.randint(20, 120)
            try:
                machine.work_until_dark()
            except AssertionError:
                return
            machine.disk.cut_power(machine.chance)
        outbox = machine.open()
        try:
            machine.deliver(outbox, EVERYTHING)
        except AssertionError:
            return
        if not set(machine.accepted) <= set(machine.sink.stored.values()):
            return
    pytest.fail("the power cuts did not show that the sync is missing")


@pytest.mark.parametrize("rounds", few_or_many(15))
def test_a_listeners_place_is_whole_after_power_cuts_at_any_step(rounds: int) -> None:
    disk, chance = ForgetfulDisk(), Chance(11 + rounds)
    kept = trying = ResumePoint()
    for _round in range(rounds):
        disk.steps_left = chance.randint(0, 60)
        try:
            place = ListenerDirectory(DIRECTORY, SESSION, files=disk)
        except StoreUnavailable:
            disk.cut_power(chance)
            continue
        assert (place.saved or ResumePoint()) in (kept, trying)
        kept = trying = place.saved or ResumePoint()
        try:
            while True:
                trying = ResumePoint(f"token-{kept.position + 1}", False, kept.position + 1)
                place.save(trying)
                kept = trying
        except StoreUnavailable as error:
            assert error.code == "store.disk_failed"
        disk.cut_power(chance)
    place = ListenerDirectory(DIRECTORY, SESSION, files=disk)
    assert (place.saved or ResumePoint()) in (kept, trying)
    assert kept.position > rounds
    place.close()


@pytest.mark.parametrize("lost", ["content", "name"])
def test_without_either_sync_a_listeners_place_would_be_lost(lost: str) -> None:
    for seed in range(20):
        disk = ForgetfulDisk()
        place = ListenerDirectory(DIRECTORY, SESSION, files=disk)
        place.save(ResumePoint("first", False, 1))
        if lost == "content":
            disk.skip_sync = lambda path: path.suffix.startswith(".json")
        else:
            disk.skip_directory_sync = lambda path: path == DIRECTORY
        place.save(ResumePoint("second", False, 2))
        disk.cut_power(Chance(seed))
        try:
            found = ListenerDirectory(DIRECTORY, SESSION, files=disk).saved
        except Corrupt:
            return
        if found != ResumePoint("second", False, 2):
            return
    pytest.fail("the power cuts did not show that the sync is missing")
