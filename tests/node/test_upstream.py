"""The clock moves time on only when what was received has its meaning; a source that hangs is not
waited for."""

from __future__ import annotations

import asyncio

from rapport.channel.backends.local import open_memory
from rapport.core.event import make_event
from rapport.kernel.clock import ManualClock
from rapport.mediation.interpretations.repository import Repository
from rapport.mediation.reader import MediationReader
from rapport.mediation.source_bindings import SourceBinding

SECOND = 1_000


def raw(id: str) -> object:
    return make_event(
        source="plain", id=id, type="raw", time=0, data={"id": id, "key": "k", "x": 1, "y": 2}
    )


def make_reader(clock: ManualClock) -> MediationReader:
    plain = SourceBinding(source="plain", concept="person", attribute="position", type="point")
    return MediationReader(open_memory(clock), [plain], Repository(), clock)


def test_a_node_without_readings_is_idle(clock: ManualClock) -> None:
    async def scenario() -> None:
        reader = make_reader(clock)
        reader.lane("plain")
        assert reader.is_idle()

    asyncio.run(scenario())


def test_a_reading_that_waits_for_its_meaning_holds_time(clock: ManualClock) -> None:
    async def scenario() -> None:
        reader = make_reader(clock)
        lane = reader.lane("plain")
        await reader._channels.channel("raw.plain").append([raw("1"), raw("2")])
        assert not reader.is_idle()
        await lane.step(timeout_ms=0)
        assert reader.is_idle()
        await reader._channels.channel("raw.plain").append([raw("3")])
        assert not reader.is_idle()

    asyncio.run(scenario())


def test_a_source_that_is_behind_for_ten_seconds_holds_time_no_longer(clock: ManualClock) -> None:
    async def scenario() -> None:
        reader = make_reader(clock)
        lane = reader.lane("plain")
        await reader._channels.channel("raw.plain").append([raw("1")])
        assert not reader.is_idle()
        await clock.advance(10 * SECOND)
        assert not reader.is_idle()
        await clock.advance(1)
        assert reader.is_idle()
        await lane.step(timeout_ms=0)
        assert reader.is_idle()
        await reader._channels.channel("raw.plain").append([raw("2")])
        assert not reader.is_idle()

    asyncio.run(scenario())
