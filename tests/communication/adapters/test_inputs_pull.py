"""Pull adapters: by interval, on request, at a deadline; never two pulls at a time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from rapport.channel.backends.local import open_memory
from rapport.communication.adapters.input_base import messages_of
from rapport.communication.adapters.inputs import Inputs
from rapport.communication.adapters.pull_schedule import (
    OpenRequests,
    PullPlan,
    PullRequest,
    PullSchedule,
)
from rapport.core.errors import DuplicateName, InvalidInput, Unavailable, UnknownName
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import Chance, ManualClock, SystemClock

NOW = 1_772_452_800_000
SECOND = 1_000
ANA = Identifier("peer", "ana")
APP = Identifier("component", "app")


def message(number: int) -> Message:
    return Message(type="FILE", subtype="NEW", sender=ANA, id=f"f{number}")


class Folder:
    """A pull adapter over a list; knows how many pulls run at once."""

    def __init__(self, *numbers: int) -> None:
        self.waiting = [message(number) for number in numbers]
        self.pulls = self.most_at_once = self._at_once = self.closed = 0
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None

    async def pull(self) -> list[Message]:
        self.pulls += 1
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            if self.gate is not None:
                await self.gate.wait()
            if self.error is not None:
                raise self.error
            taken, self.waiting = self.waiting, []
            return taken
        finally:
            self._at_once -= 1

    async def close(self) -> None:
        self.closed += 1


class Shelf(Folder):
    """Keeps its place: what was not confirmed is pulled again."""

    def __init__(self, *numbers: int) -> None:
        super().__init__(*numbers)
        self.noted: list[str] = []

    async def open(self, state) -> None:
        self.state = state
        self.seen = (await state.get("seen") or b"").decode().split()

    async def pull(self) -> list[Message]:
        self.pulls += 1
        return [one for one in self.waiting if one.id not in self.seen]

    async def pulled(self, messages, arrivals) -> None:
        self.seen += [one.id for one in messages]
        self.noted += [arrival.id for arrival in arrivals]
        await self.state.put("seen", " ".join(self.seen).encode())


class Place:
    """Inputs over channels in memory; `arrived` is what the engine was given."""

    def __init__(self, clock=None, channels=None):
        self.clock = clock or ManualClock(NOW)
        self.channels = channels or open_memory(self.clock)
        self.arrived: list[Message] = []
        self.refuse: set[str] = set()
        self.errors: list[Exception] = []
        self.inputs = Inputs(self.publish, self.channels, self.channels.records, self.clock)

    async def publish(self, messages, *, adapter, trusted=None):
        if self.errors:
            raise self.errors.pop(0)
        self.arrived += [one for one in messages if one.id not in self.refuse]
        return [
            SimpleNamespace(id=one.id, accepted=one.id not in self.refuse, reason="no")
            for one in messages
        ]

    def ids(self):
        return [one.id for one in self.arrived]

    async def control(self):
        return [s.event for s in await self.channels.channel("control").read_after(0)]

    async def until(self, condition):
        async with asyncio.timeout(10):
            while not condition():
                await SystemClock().sleep(0)


def play(scenario, place=None):
    async def run():
        async with asyncio.timeout(30):
            where = place or Place()
            await scenario(where)
            await where.inputs.close()

    asyncio.run(run())


@pytest.mark.parametrize("interval", [0, -1])
def test_an_interval_must_be_positive(interval):
    async def scenario(place):
        with pytest.raises(InvalidInput) as caught:
            await place.inputs.add_pull(Folder(), interval)
        assert caught.value.code == "input.bad_interval"
        assert place.inputs.status() == []

    play(scenario)


def test_it_pulls_at_once_and_then_at_its_interval():
    async def scenario(place):
        folder = Folder(1)
        name = await place.inputs.add_pull(folder, 10 * SECOND, owner="app")
        await place.until(lambda: place.ids() == ["f1"])
        await place.clock.advance(9 * SECOND)
        assert folder.pulls == 1
        folder.waiting = [message(2), message(3)]
        await place.clock.advance(1 * SECOND)
        await place.until(lambda: place.ids() == ["f1", "f2", "f3"])
        await place.clock.advance(10 * SECOND)
        await place.until(lambda: folder.pulls == 3)
        (status,) = place.inputs.status()
        assert (status.name, status.kind, status.owner) == (name, "pull", "app")
        assert (status.received, status.errors, status.trouble) == (3, 0, "")

    play(scenario)


def test_there_are_never_two_pulls_at_a_time_however_many_ask():
    async def scenario(place):
        folder = Folder()
        folder.gate = asyncio.Event()
        name = await place.inputs.add_pull(folder, 1)
        await place.until(lambda: folder.pulls == 1)
        for _ in range(5):
            await place.inputs.request(name, requester=APP)
        await place.clock.advance(100)
        assert folder.pulls == 1
        folder.gate.set()
        await place.until(lambda: folder.pulls >= 2)
        assert folder.most_at_once == 1

    play(scenario)


def test_without_an_interval_it_looks_only_on_request():
    async def scenario(place):
        folder = Folder(1)
        name = await place.inputs.add_pull(folder)
        await place.clock.advance(3_600 * SECOND)
        assert folder.pulls == 0
        await place.inputs.request(name, requester=APP)
        await place.until(lambda: place.ids() == ["f1"])
        await place.clock.advance(3_600 * SECOND)
        assert folder.pulls == 1
        assert await place.control() == []

    play(scenario)


def test_a_request_in_vain_is_looked_after_until_its_time_is_over_and_then_reported():
    async def scenario(place):
        folder = Folder()
        name = await place.inputs.add_pull(folder, name="ftp")
        asked = await place.inputs.request(name, requester=APP, ttl_ms=600 * SECOND, refers_to="m7")
        await place.clock.advance(599 * SECOND)
        assert 5 <= folder.pulls <= 20
        assert await place.control() == []
        await place.clock.advance(2 * SECOND)
        await place.until(lambda: place.channels.channel("control").last_position() == 1)
        (told,) = await place.control()
        assert told.type == "rapport.control.timeout"
        assert told.subject == "component:app"
        assert told.payload()["refers_to"] == "m7"
        again = await place.inputs.request(name, requester=APP, ttl_ms=1)
        await place.clock.advance(2 * SECOND)
        await place.until(lambda: place.channels.channel("control").last_position() == 2)
        assert (await place.control())[1].payload()["refers_to"] == again, "the request itself"
        assert told.causes() == (asked,)
        pulls = folder.pulls
        await place.clock.advance(600 * SECOND)
        assert folder.pulls == pulls

    play(scenario)


def test_a_request_is_settled_by_what_comes_in_and_nobody_gets_a_timeout():
    async def scenario(place):
        folder = Folder()
        name = await place.inputs.add_pull(folder)
        await place.inputs.request(name, requester=APP, ttl_ms=600 * SECOND)
        await place.clock.advance(100 * SECOND)
        folder.waiting = [message(1)]
        await place.clock.advance(100 * SECOND)
        assert place.ids() == ["f1"]
        await place.clock.advance(1_000 * SECOND)
        assert await place.control() == []

    play(scenario)


def test_an_open_request_outlives_the_process_and_a_settled_one_does_not_come_back():
    async def scenario(place):
        folder = Folder()
        await place.inputs.add_pull(folder, name="ftp")
        await place.inputs.request("ftp", requester=APP, ttl_ms=600 * SECOND)
        await place.inputs.request("ftp", requester=APP)  # one look, settled first
        await place.until(lambda: folder.pulls >= 1)
        await place.clock.advance(1 * SECOND)
        await place.inputs.close()
        later = Place(place.clock, place.channels)
        again = Folder()
        await later.inputs.add_pull(again, name="ftp")
        await later.clock.advance(700 * SECOND)
        await later.until(lambda: place.channels.channel("control").last_position() == 1)
        assert len(await later.control()) == 1
        await later.inputs.close()
        last = Place(place.clock, place.channels)
        idle = Folder()
        await last.inputs.add_pull(idle, name="ftp")
        await last.clock.advance(700 * SECOND)
        assert idle.pulls == 0
        await last.inputs.close()

    play(scenario)


def test_requests_for_what_is_not_there_or_is_not_pulled_are_refused():
    async def scenario(place):
        await place.inputs.add_pull(Folder(), name="ftp")
        with pytest.raises(UnknownName):
            await place.inputs.request("fpt", requester=APP)
        with pytest.raises(InvalidInput) as caught:
            await place.inputs.request("ftp", requester=APP, ttl_ms=-1)
        assert caught.value.code == "input.bad_ttl"
        with pytest.raises(DuplicateName):
            await place.inputs.add_pull(Folder(), name="ftp")
        with pytest.raises(InvalidInput):
            await place.inputs.add_pull(Folder(), name="F/../x")

    play(scenario)


def test_at_a_deadline_it_looks_once_and_is_gone():
    async def scenario(place):
        folder = Folder(1)
        await place.inputs.add_pull(folder, deadline=NOW + 3_600 * SECOND)
        await place.clock.advance(3_599 * SECOND)
        assert folder.pulls == 0
        await place.clock.advance(2 * SECOND)
        await place.until(lambda: folder.closed == 1)
        assert place.ids() == ["f1"]
        assert place.inputs.status() == []
        assert await place.control() == []

    play(scenario)


def test_a_deadline_at_which_nothing_came_is_a_time_out_for_its_owner():
    async def scenario(place):
        folder = Folder()
        await place.inputs.add_pull(
            folder, 600 * SECOND, deadline=NOW + 3_600 * SECOND, owner="component:app"
        )
        await place.clock.advance(3_601 * SECOND)
        await place.until(lambda: folder.closed == 1)
        assert folder.pulls == 7
        (told,) = await place.control()
        assert (told.type, told.subject) == ("rapport.control.timeout", "component:app")

    play(scenario)


def test_delete_if_successful_ends_it_after_the_first_message_that_counts():
    async def scenario(place):
        folder = Folder()
        place.refuse = {"f1"}
        await place.inputs.add_pull(folder, SECOND, delete_if_successful=True)
        await place.clock.advance(2 * SECOND)
        folder.waiting = [message(1)]
        await place.clock.advance(2 * SECOND)
        assert place.inputs.status()[0].refused == 1
        folder.waiting = [message(2)]
        await place.clock.advance(2 * SECOND)
        await place.until(lambda: folder.closed == 1)
        pulls = folder.pulls
        await place.clock.advance(10 * SECOND)
        assert folder.pulls == pulls
        assert place.ids() == ["f2"]

    play(scenario)


def test_a_pull_that_fails_is_counted_and_tried_again_later_each_time():
    async def scenario(place):
        folder = Folder(1)
        folder.error = OSError("no route")
        await place.inputs.add_pull(folder, 100)
        await place.clock.advance(60 * SECOND)
        assert 4 <= folder.pulls <= 8
        (status,) = place.inputs.status()
        assert status.errors == folder.pulls
        assert "no route" in status.trouble
        folder.error = None
        await place.clock.advance(60 * SECOND)
        await place.until(lambda: place.ids() == ["f1"])
        assert place.inputs.status()[0].trouble == ""

    play(scenario)


def test_a_pull_that_hangs_is_cut_off():
    async def scenario(place):
        folder = Folder(1)
        folder.gate = asyncio.Event()
        await place.inputs.add_pull(folder, 100, within_ms=5 * SECOND)
        await place.until(lambda: folder.pulls == 1)
        await place.clock.advance(5 * SECOND)
        assert "no answer within 5s" in place.inputs.status()[0].trouble
        folder.gate = None
        await place.clock.advance(5 * SECOND)
        await place.until(lambda: place.ids() == ["f1"])
        assert folder.most_at_once == 1

    play(scenario)


def test_what_was_pulled_while_the_engine_could_take_nothing_is_kept_and_handed_in_later():
    async def scenario(place):
        folder = Folder(1)
        place.errors = [Unavailable("disk full"), Unavailable("disk full")]
        await place.inputs.add_pull(folder, 3_600 * SECOND)
        await place.clock.advance(10 * SECOND)
        await place.until(lambda: place.ids() == ["f1"])
        assert folder.pulls == 1

    play(scenario)


def test_an_adapter_that_keeps_a_place_moves_it_only_when_all_is_safe_and_finds_it_again():
    async def scenario(place):
        shelf = Shelf(1, 2)
        place.errors = [Unavailable("disk full")]
        await place.inputs.add_pull(shelf, SECOND, name="shelf")
        await place.until(lambda: place.errors == [])
        assert shelf.noted == []
        await place.clock.advance(5 * SECOND)
        await place.until(lambda: shelf.noted == ["f1", "f2"])
        assert await place.inputs.remove("shelf") is shelf
        assert shelf.closed == 1
        again = Shelf(1, 2, 3)
        await place.inputs.add_pull(again, SECOND, name="shelf")
        await place.until(lambda: again.noted == ["f3"])
        assert place.ids() == ["f1", "f2", "f3"]

    play(scenario)


def test_removing_in_the_middle_of_a_pull_ends_it_and_removing_nothing_gives_none():
    async def scenario(place):
        folder = Folder(1)
        folder.gate = asyncio.Event()
        name = await place.inputs.add_pull(folder, SECOND)
        await place.until(lambda: folder.pulls == 1)
        assert await place.inputs.remove(name) is folder
        assert await place.inputs.remove(name) is None
        folder.gate.set()
        await place.clock.advance(60 * SECOND)
        assert folder.pulls == 1
        assert folder.waiting, "nothing was taken that is lost"

    play(scenario)


def test_what_was_pulled_when_the_adapter_is_removed_is_still_handed_in():
    async def scenario(place):
        begun, gate = asyncio.Event(), asyncio.Event()
        plain = place.publish

        async def slow(messages, *, adapter, trusted=None):
            begun.set()
            await gate.wait()
            return await plain(messages, adapter=adapter)

        place.inputs = Inputs(slow, place.channels, place.channels.records, place.clock)
        name = await place.inputs.add_pull(Folder(1), SECOND)
        await begun.wait()
        removing = asyncio.create_task(place.inputs.remove(name))
        await asyncio.sleep(0)
        gate.set()
        await removing
        assert place.ids() == ["f1"]

    play(scenario)


@pytest.mark.parametrize("seed", range(6))
def test_under_random_requests_failures_and_removals_pulls_never_overlap_and_nothing_is_lost(seed):
    class Wild(Folder):
        async def pull(self):
            self.pulls += 1
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            try:
                await asyncio.sleep(chance.random() / 500)
                if chance.random() < 0.2:
                    raise OSError("broken")
                taken, self.waiting = self.waiting[:2], self.waiting[2:]
                return taken
            finally:
                self._at_once -= 1

    chance = Chance(seed)

    async def scenario(place):
        folder = Wild(*range(20))
        for _ in range(60):
            if not place.inputs.status():
                await place.inputs.add_pull(folder, chance.choice((1, 5, None)), name="wild")
            await place.inputs.request("wild", requester=APP)
            await asyncio.sleep(chance.random() / 500)
            if chance.random() < 0.2:
                await place.inputs.remove("wild")
        left = {one.id for one in folder.waiting}
        await place.inputs.close()
        assert folder.most_at_once == 1
        assert len(place.ids()) == len(set(place.ids()))
        assert set(place.ids()) | left >= {f"f{n}" for n in range(20)}

    async def run():
        async with asyncio.timeout(30):
            await scenario(Place(SystemClock()))

    asyncio.run(run())


HOUR = 3_600 * SECOND


@pytest.mark.parametrize("fails", [False, True], ids=["all is well", "after a failure"])
def test_a_clock_that_is_set_back_puts_no_look_off(fails):
    schedule = PullSchedule(PullPlan(interval_ms=60 * SECOND), NOW)
    schedule.pulled(NOW, NOW, found=False)
    if fails:
        schedule.failed(NOW, NOW, kept=False)
    before = NOW - HOUR
    assert schedule.next_due_ms(None, before) == before + 60 * SECOND
    later = before + 30 * SECOND
    assert schedule.next_due_ms(None, later) == before + 60 * SECOND, "nor a second time"


def test_a_clock_that_is_set_back_puts_no_request_off():
    requests = OpenRequests(0)
    requests.add(1, PullRequest(id="r", requester="component:app", asked_ms=NOW))
    before = NOW - HOUR
    due_ms = requests.next_due_ms(before)
    assert due_ms is not None
    assert due_ms <= before + SECOND
    assert requests.next_due_ms(before + 500) == due_ms


def test_a_delivery_that_waits_for_an_absent_medium_is_reported_in_time():
    """After many failures there is no look for minutes: the time of a request is over all the
    same.
    """

    async def scenario(place):
        folder = Folder(1)
        folder.error = OSError("no route")
        name = await place.inputs.add_pull(folder, 100)
        await place.clock.advance(1_000 * SECOND)
        await place.inputs.request(name, requester=APP, ttl_ms=5 * SECOND)
        pulls = folder.pulls
        await place.clock.advance(6 * SECOND)
        (told,) = await place.control()
        assert (told.type, told.subject) == ("rapport.control.timeout", "component:app")
        assert folder.pulls == pulls
        await place.clock.advance(1_000 * SECOND)
        assert len(await place.control()) == 1

    play(scenario)


def test_a_deadline_at_which_the_medium_is_away_is_a_time_out_too():
    async def scenario(place):
        folder = Folder(1)
        folder.error = OSError("no route")
        await place.inputs.add_pull(folder, deadline=NOW + HOUR, owner="component:app")
        await place.clock.advance(HOUR + SECOND)
        await place.until(lambda: folder.closed == 1)
        assert folder.pulls == 1
        (told,) = await place.control()
        assert (told.type, told.subject) == ("rapport.control.timeout", "component:app")

    play(scenario)


def test_what_was_pulled_at_the_deadline_is_handed_in_when_the_engine_takes_it_again():
    async def scenario(place):
        folder = Folder(1)
        place.errors = [Unavailable("disk full")] * 3
        await place.inputs.add_pull(folder, deadline=NOW + HOUR)
        await place.clock.advance(HOUR + 60 * SECOND)
        await place.until(lambda: folder.closed == 1)
        assert place.ids() == ["f1"]
        assert await place.control() == []

    play(scenario)


MESSAGE = Message(type="NOTE", subtype="", sender=Identifier("peer", "ana"), id="n1", content="hi")


@pytest.mark.parametrize(
    ("given", "count"),
    [
        (None, 0),
        ([], 0),
        (MESSAGE, 1),
        ((MESSAGE,), 1),
        pytest.param(iter([MESSAGE]), 1, id="an iterator"),
        ({MESSAGE.id: 1}, -1),
        ("hi", -1),
        (7, -1),
        ([MESSAGE, "hi"], -1),
    ],
    ids=repr,
)
def test_what_a_pull_gives_is_messages_or_an_error_that_names_the_input(given, count):
    if count >= 0:
        assert messages_of(given, "logbook", "pull") == [MESSAGE] * count
        return
    with pytest.raises(InvalidInput) as raised:
        messages_of(given, "logbook", "pull")
    assert raised.value.code == "input.no_messages"
    assert "pull of the input 'logbook' gave" in raised.value.message


def test_inputs_that_cannot_be_called_are_refused_by_name():
    class Blocking:
        def pull(self):
            return []

    class Deaf:
        async def start(self):
            return

        async def stop(self):
            return

    async def scenario():
        channels = open_memory(SystemClock())
        inputs = Inputs(None, channels, channels.records, SystemClock())
        for adding in (inputs.add_pull(Blocking(), name="x"), inputs.add_push(Deaf(), name="x")):
            with pytest.raises(InvalidInput) as raised:
                await adding
            assert raised.value.code == "input.bad_signature"
            assert "the input 'x'" in raised.value.message
        assert inputs.status() == []

    asyncio.run(scenario())
