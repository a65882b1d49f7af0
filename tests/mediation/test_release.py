"""What is held back is listed, released once its interpretation is mended, and corrected when it
was wrong; each once, whenever the process dies. [ME-11, ME-16]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rapport.channel.backends.local import open_memory
from rapport.channel.log.channels import LoggedChannels
from rapport.core.errors import InvalidInput, Problem, UnknownName
from rapport.core.event import Event, make_event
from rapport.core.release import (
    BATCH_RELEASED,
    CORRECTS,
    RELEASE_DONE,
    RELEASED,
    ReleaseDone,
    ReleaseRequest,
)
from rapport.kernel.clock import ManualClock
from rapport.mediation.interpretations.repository import ActiveInterpretations, Repository
from rapport.mediation.quarantine.index import QuarantineFilter, QuarantineIndex, group_quarantined
from rapport.mediation.quarantine.release import ReleaseService
from rapport.mediation.reader import MediationReader
from rapport.policy.engine.stream_steps import quarantine_event

SENSOR = """
[interpretations.sensor]
time = {{ field = "t", format = "epoch_ms" }}
identity = {{ field = "name" }}
value = {{ field = "{field}"{unit} }}
"""
NOW = 1_000_000


class Site:
    """Mediation of one source on channels that outlive it."""

    def __init__(self, load: Any, bind: Any) -> None:
        self.load, self.bind = load, bind
        self.clock = ManualClock(NOW)
        self.channels = open_memory(self.clock)
        self.numbers = iter(range(1, 1_000))
        self.interpret(unit="")

    def interpret(self, unit: str, field: str = "humidity") -> None:
        """Puts an interpretation in force, in a process of its own."""
        found, problems = self.load(
            SENSOR.format(field=field, unit=f', unit = "{unit}"' if unit else "")
        )
        assert not problems
        binding = self.bind(
            "sensor", "sensor", concept="room", attribute="humidity", type="number", units=("%",)
        )
        self.reader = MediationReader(
            self.channels, [binding], Repository(ActiveInterpretations(found)), self.clock
        )
        self.releasing = self.start()

    def start(self, channels: Any = None) -> ReleaseService:
        """As after a crash."""
        return ReleaseService(
            channels or self.channels,
            self.reader.isolated_transformer,
            self.clock,
            new_id=lambda: f"release-{next(self.numbers)}",
        )

    async def receive(self, *values: Any, field: str = "humidity") -> None:
        raw = self.channels.channel("raw.sensor")
        first = raw.last_position() + 1
        events = [
            make_event(
                source="sensor",
                id=f"e{number}",
                type="measured",
                time=0,
                data={"t": number * 1_000, "name": "attic", field: value},
            )
            for number, value in enumerate(values, start=first)
        ]
        await raw.append(events)
        await self.reader.lane("sensor").step(timeout_ms=0)

    async def release(self, **request: Any) -> ReleaseDone:
        await self.releasing.request(ReleaseRequest(**request))
        await self.releasing.step(timeout_ms=0)
        done = (await self.events("releases", RELEASE_DONE))[-1]
        found: ReleaseDone = done.payload_as(ReleaseDone)
        return found

    async def events(self, channel: str, type: str = "") -> list[Event]:
        stored = await self.channels.channel(channel).read_after(0, limit=10_000)
        return [one.event for one in stored if type in ("", one.event.type)]

    async def values(self) -> list[float]:
        return [event.payload()["value"][0] for event in await self.events("events")]

    async def held(self) -> list[tuple[str, str, int]]:
        held_back = QuarantineIndex(self.channels)
        await held_back.refresh()
        return [(one.reason, one.state, one.attempts) for one in await held_back.held()]


Scenario = Callable[[Site], Coroutine[Any, Any, None]]


@pytest.fixture
def play(load: Any, bind: Any) -> Callable[[Scenario], None]:
    """Runs a scenario on a site of its own."""

    def play(scenario: Scenario) -> None:
        async def run() -> None:
            site = Site(load, bind)
            try:
                await scenario(site)
            finally:
                await site.reader.stop()
                await site.channels.close()

        asyncio.run(run())

    return play


def test_quarantined_events_are_grouped_with_a_hint_over_all_their_values(play: Any) -> None:
    async def scenario(site: Site) -> None:
        await site.receive(0.15, 0.5, 0.97, "wet")
        held_back = QuarantineIndex(site.channels)
        await held_back.refresh()
        groups = await group_quarantined(site.channels, held_back)
        by_reason = {group.reason: group for group in groups}
        held = by_reason["unit.undeclared"]
        assert (held.source, held.count) == ("sensor", 4)
        (field,) = held.fields
        assert (field.field, field.count, field.low, field.high) == ("humidity", 3, 0.15, 0.97)
        assert "always within 0.15..0.97" in held.hint
        assert 'unit = "1"' in held.hint

    play(scenario)


def test_one_value_beyond_one_turns_the_hint_to_percent(play: Any) -> None:
    async def scenario(site: Site) -> None:
        await site.receive(0.15, 45)
        held_back = QuarantineIndex(site.channels)
        await held_back.refresh()
        (group,) = await group_quarantined(site.channels, held_back)
        assert "up to 45" in group.hint
        assert 'unit = "%"' in group.hint

    play(scenario)


def test_quarantined_events_are_released_once_their_unit_is_declared(play: Any) -> None:
    async def scenario(site: Site) -> None:
        await site.receive(0.25, 0.5)
        assert await site.held() == [("unit.undeclared", "held", 1)] * 2
        site.interpret(unit="1")
        done = await site.release(source="sensor")
        assert (done.released, done.rejected) == (2, 0)
        assert (done.streams, done.first_ms, done.last_ms) == (["room.humidity"], 1_000, 2_000)
        assert await site.values() == [25.0, 50.0]
        first = (await site.events("events"))[0]
        assert (first.source, first.id) == ("sensor", "e1")
        assert first.headers[RELEASED] == "1970-01-01T00:16:40.000Z"
        assert first.causes() == ("e1", "release-1")
        assert await site.held() == []

    play(scenario)


def test_an_event_rejected_again_keeps_the_newest_reason(play: Any) -> None:
    async def scenario(site: Site) -> None:
        await site.receive(0.25, "wet")
        site.interpret(unit="1")
        done = await site.release()
        assert (done.released, done.rejected) == (1, 1)
        assert await site.held() == [("value.not_a_number", "rejected again", 2)]
        assert (await site.release()).rejected == 1
        assert await site.held() == [("value.not_a_number", "rejected again", 2)]
        assert len(await site.events("quarantine")) == 3

    play(scenario)


def test_only_requested_events_are_released(play: Any) -> None:
    async def scenario(site: Site) -> None:
        await site.receive(0.25, 0.5, 0.75)
        held_back = QuarantineIndex(site.channels)
        await held_back.refresh()
        second = (await held_back.held())[1]
        site.interpret(unit="1")
        with pytest.raises(InvalidInput) as nothing:
            await site.releasing.request(ReleaseRequest(reason="time.no_zone"))
        assert nothing.value.code == "release.nothing_held"
        with pytest.raises(UnknownName):
            await site.releasing.request(ReleaseRequest(ids=("no such id",)))
        await site.release(ids=(second.id,))
        assert await site.values() == [50.0]
        await held_back.refresh()
        found = held_back.one(second.id)
        assert found is not None
        assert (found.state, found.release) == ("released", "release-1")
        assert held_back.released() == {"sensor": 1}
        assert len(await held_back.held(QuarantineFilter(source="sensor"))) == 2
        assert await held_back.held(QuarantineFilter(since_ms=NOW + 1)) == []

    play(scenario)


def test_a_trial_reports_the_result_and_changes_nothing(play: Any) -> None:
    async def scenario(site: Site) -> None:
        await site.receive(0.25, "wet")
        site.interpret(unit="1")
        trial = await site.releasing.try_out(ReleaseRequest())
        assert (trial.released, trial.rejected) == (1, 1)
        assert trial.reasons == {"value.not_a_number": 1}
        assert trial.examples == ['{"key":"attic","value":[25.0]}']
        assert await site.events("events") == []
        assert await site.events("releases") == []

    play(scenario)


def test_an_event_removed_by_retention_is_released_from_its_copy(play: Any) -> None:
    async def scenario(site: Site) -> None:
        await site.receive(0.25)
        await site.receive(0.5)
        taken = site.channels.channel("raw.sensor")
        site.channels.parts.log.trim("raw.sensor", 2)
        site.channels.decoded.drop_before("raw.sensor", 2)
        assert taken.first_position() >= 2
        site.interpret(unit="1")
        assert (await site.release()).released == 2
        assert await site.values() == [25.0, 50.0]
        assert {event.headers["rawposition"] for event in await site.events("events")} == {"1", "2"}

    play(scenario)


def test_thousands_are_released_batch_by_batch(play: Any) -> None:
    async def scenario(site: Site) -> None:
        for _ in range(3):
            await site.receive(*[0.5] * 600)
        while await site.reader.lane("sensor").step(timeout_ms=0):
            pass
        site.interpret(unit="1")
        assert (await site.release()).released == 1_800
        assert len(await site.events("releases", BATCH_RELEASED)) == 4
        assert len(await site.values()) == 1_800
        state = await site.releasing.state("release-1")
        assert (state.released, state.is_done, state.second_look) == (1_800, True, None)

    play(scenario)


def test_mediating_again_corrects_different_readings_and_leaves_the_others(play: Any) -> None:
    async def scenario(site: Site) -> None:
        site.interpret(unit="%")
        await site.receive(0.25, 0)
        site.interpret(unit="1")
        trial = await site.releasing.try_out(ReleaseRequest(what="again", source="sensor"))
        assert (trial.corrected, trial.unchanged) == (1, 1)
        done = await site.release(what="again", source="sensor")
        assert (done.corrected, done.unchanged, done.released) == (1, 1, 0)
        wrong, _zero, right = await site.events("events")
        version = right.headers["interpretation"].partition("@")[2]
        assert (right.id, right.headers[CORRECTS]) == (f"e1~{version}", wrong.id)
        assert right.payload() == {"key": "attic", "value": [25.0]}
        assert (await site.release(what="again", source="sensor")).unchanged == 2
        assert len(await site.events("events")) == 3

    play(scenario)


def test_going_back_to_a_former_version_corrects_again(play: Any) -> None:
    async def scenario(site: Site) -> None:
        for unit in ("%", "1", "%", "1"):
            site.interpret(unit=unit)
            if not await site.events("events"):
                await site.receive(0.25)
            await site.release(what="again", source="sensor")
        assert await site.values() == [0.25, 25.0, 0.25, 25.0]
        assert len({event.id for event in await site.events("events")}) == 4

    play(scenario)


def test_mediating_again_is_limited_to_the_requested_period(play: Any) -> None:
    async def scenario(site: Site) -> None:
        site.interpret(unit="%")
        for later in range(4):
            site.clock.set_ms(NOW + later * 200_000)
            await site.receive(0.25)
        site.interpret(unit="1")
        done = await site.release(
            what="again", source="sensor", since_ms=NOW + 200_000, until_ms=NOW + 600_000
        )
        assert (done.corrected, done.unchanged) == (2, 0)
        corrected = [event.headers.get(CORRECTS) for event in await site.events("events")]
        assert corrected[4:] == ["e2", "e3"]
        with pytest.raises(UnknownName) as unknown:
            await site.releasing.request(ReleaseRequest(what="again", source="sensors"))
        assert unknown.value.nearest == ("sensor",)
        with pytest.raises(UnknownName) as unknown:
            await site.releasing.request(ReleaseRequest(what="again", source="policies"))
        assert unknown.value.hint == "known: sensor", "other channels are no sources"

    play(scenario)


def test_a_raw_event_cannot_pass_itself_off_as_a_correction(play: Any) -> None:
    async def scenario(site: Site) -> None:
        site.interpret(unit="1")
        raw = make_event(
            source="sensor",
            id="x",
            type="measured",
            time=0,
            data={"t": 1, "name": "attic", "humidity": 0.5},
            headers={CORRECTS: "e1", RELEASED: "never"},
        )
        await site.channels.channel("raw.sensor").append([raw])
        await site.reader.lane("sensor").step(timeout_ms=0)
        (reading,) = await site.events("events")
        assert CORRECTS not in reading.headers
        assert RELEASED not in reading.headers

    play(scenario)


class Crash(Exception):
    """The process ends here."""


class DyingChannels:
    """Channels of a process that dies at its n-th append or commit, before or after it is done."""

    def __init__(self, channels: LoggedChannels, dies_at: int, after: bool) -> None:
        self._channels, self._left, self._after = channels, dies_at, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channels, name)

    def channel(self, name: str) -> Any:
        return _Dying(self._channels.channel(name), self.do)

    async def subscribe(self, channel: str, reader: str) -> Any:
        return _Dying(await self._channels.subscribe(channel, reader), self.do)

    async def do(self, act: Callable[..., Any], *arguments: Any) -> Any:
        self._left -= 1
        if self._left == 0 and not self._after:
            raise Crash
        done = await act(*arguments)
        if self._left == 0:
            raise Crash
        return done


class _Dying:
    def __init__(self, inner: Any, do: Callable[..., Any]) -> None:
        self._inner, self._do = inner, do

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def append(self, *arguments: Any) -> Any:
        return await self._do(self._inner.append, *arguments)

    async def commit(self, *arguments: Any) -> Any:
        return await self._do(self._inner.commit, *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("dies_at", range(1, 9))
def test_dying_at_any_step_neither_loses_nor_doubles(play: Any, dies_at: int, after: bool) -> None:
    async def scenario(site: Site) -> None:
        await site.receive(*[0.5] * 700, "wet", 0.25)
        site.interpret(unit="1")
        await site.releasing.request(ReleaseRequest(source="sensor"))
        dying = site.start(DyingChannels(site.channels, dies_at, after))
        try:
            await dying.step(timeout_ms=0)
        except Crash:
            await site.start().step(timeout_ms=0)
        ids = [event.id for event in await site.events("events")]
        assert sorted(ids) == sorted(set(ids))
        assert len(ids) == 701
        (done,) = await site.events("releases", RELEASE_DONE)
        total = done.payload_as(ReleaseDone)
        assert (total.released, total.rejected) == (701, 1)
        assert (total.first_ms, total.last_ms) == (1_000, 702_000)
        assert await site.held() == [("value.not_a_number", "rejected again", 2)]

    play(scenario)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("dies_at", range(1, 7))
def test_dying_while_mediating_again_corrects_each_once(
    play: Any, dies_at: int, after: bool
) -> None:
    async def scenario(site: Site) -> None:
        site.interpret(unit="%")
        await site.receive(*[0.5] * 600)
        site.interpret(unit="1")
        await site.releasing.request(ReleaseRequest(what="again", source="sensor"))
        dying = site.start(DyingChannels(site.channels, dies_at, after))
        try:
            await dying.step(timeout_ms=0)
        except Crash:
            await site.start().step(timeout_ms=0)
        corrected = [
            e.headers[CORRECTS] for e in await site.events("events") if CORRECTS in e.headers
        ]
        assert sorted(corrected) == sorted({f"e{number}" for number in range(1, 601)})
        (done,) = await site.events("releases", RELEASE_DONE)
        assert done.payload_as(ReleaseDone).corrected == 600

    play(scenario)


def test_readings_quarantined_by_policies_are_listed_and_corrected_by_mediating_again(
    play: Any,
) -> None:
    async def scenario(site: Site) -> None:
        site.interpret(unit="%")
        await site.receive(0.25)
        (reading,) = await site.events("events")
        aside = quarantine_event(
            "site", reading, Problem(code="policy.ahead_of_clock", message="m")
        )
        await site.channels.channel("quarantine").append([aside])
        assert await site.held() == [("policy.ahead_of_clock", "held", 1)]
        with pytest.raises(InvalidInput):
            await site.releasing.request(ReleaseRequest(source="sensor"))
        site.interpret(unit="1")
        await site.release(what="again", source="sensor")
        assert await site.held() == []
        held_back = QuarantineIndex(site.channels)
        await held_back.refresh()
        assert not held_back.counts()

    play(scenario)


def test_counts_follow_the_state_of_quarantined_events(play: Any) -> None:
    async def scenario(site: Site) -> None:
        held_back = QuarantineIndex(site.channels)
        await site.receive(0.25, "wet")
        await held_back.refresh()
        assert held_back.counts() == {("sensor", "unit.undeclared"): 2}
        site.interpret(unit="1")
        await site.release()
        await held_back.refresh()
        assert held_back.counts() == {("sensor", "value.not_a_number"): 1}

    play(scenario)
