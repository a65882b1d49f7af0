"""A broker knows how long it took to answer, and what. [CX-12, PI-6]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rapport.channel.backends.local import open_embedded
from rapport.context.api import ContextConsumer, ContextProvider, EntityRef
from rapport.context.broker.broker_machine import BrokerMachine
from rapport.context.broker.broker_settings import BrokerSettings, SearchSettings
from rapport.context.broker.broker_state import AuditEffect
from rapport.context.broker_status import BrokerSummary, ResponseTimes
from rapport.context.connections import ContextNotFound
from rapport.context.protocol import (
    NOT_ALLOWED,
    NOT_FOUND,
    PROCESSED,
    Ask,
    FoundRecord,
    Question,
    Request,
)
from rapport.core.context_record import ContextRecord
from rapport.core.times import DurationCounts
from rapport.kernel.clock import Chance, Now, SystemClock
from rapport.transport.base import Sender

ROOM = EntityRef("room", "r3")
Opened = Callable[..., Any]


def test_answers_are_distinguished_by_what_they_were() -> None:
    times = ResponseTimes("10.0.0.1:7", 1_000)
    times.note(PROCESSED, 0, 0.0305)
    times.note(PROCESSED, 3, 2.0)
    times.note(NOT_FOUND, 0, 1_800.0)
    times.note(NOT_ALLOWED, 0, 0.0)
    times.note(PROCESSED, 0, 0.0305)
    told = times.take(61_000)
    assert told is not None
    assert (told.broker, told.since, told.until) == ("10.0.0.1:7", 1_000, 61_000)
    assert {how: one.count for how, one in told.answers.items()} == {
        "elsewhere": 1, "here": 2, "not_found": 1, "refused": 1,
    }  # fmt: skip
    assert told.answers["here"] == DurationCounts(2, 30, ((30, 2),))
    assert told.answers["elsewhere"].longest == 2_000


def test_a_stretch_begins_where_the_last_one_ended_and_silence_says_nothing() -> None:
    times = ResponseTimes("b", 0)
    assert times.take(60_000) is None
    times.note(PROCESSED, 0, 1.0)
    told = times.take(50_000)  # the clock was set back
    assert told is not None
    assert (told.since, told.until) == (60_000, 60_000)


def test_the_event_reads_back_and_is_the_same_twice() -> None:
    counts = DurationCounts(1, 9, ((9, 1),))
    told = BrokerSummary(broker="b", since=1, until=2, answers={"here": counts})
    event = told.to_event(source="site")
    assert msgspec.json.decode(event.data, type=BrokerSummary) == told
    assert event == told.to_event(source="site")
    assert (event.type, event.subject, event.time) == ("rapport.context.summary", "b", 2)


def test_a_search_is_timed_from_its_request_to_its_answer() -> None:
    settings = BrokerSettings(audits=True, search=SearchSettings(look_ahead="off"))
    broker = BrokerMachine(("b", 1), settings, Chance(1))
    broker.adopt([("b", 2)], Now(1_000, 50.0))
    client = Sender(("c", 9), "x", "client")
    broker.handle(Request(5, Question(ROOM, "status")), client, Now(1_000, 50.0))
    (ask,) = [one for one, to in broker.outbox if isinstance(one, Ask) and to == ("b", 2)]
    record = ContextRecord("p", ROOM, "status", 0, 90_000, {"n": 1})
    found = FoundRecord(ask.search, ask.walker, ask.hop + 1, record, ask.path[:1], (), ("b", 2), 1)
    broker.handle(found, Sender(("b", 2), "", "network"), Now(1_042, 92.5))
    (told,) = [one for one in broker.effects if isinstance(one, AuditEffect)]
    assert (told.what, told.status, told.hops, told.took_ms) == ("request", PROCESSED, 1, 42.5)


@pytest.mark.slow
def test_brokers_that_run_say_what_they_answered_to_clients_and_their_own_process(
    line_of_brokers: Opened, tmp_path: Path
) -> None:
    async def scenario() -> None:
        channels = open_embedded(tmp_path, SystemClock())
        async with line_of_brokers(2, channels=channels) as (far, near):
            async with await ContextProvider.open([far.address], name="desk") as desk:
                await desk.update(ROOM, "status", {"n": 1}, valid_for_ms=60_000)
            assert near.take_summary() is None
            await near.ask(ROOM, "status")
            async with await ContextConsumer.open([far.address]) as consumer:
                for _ in range(5):
                    await consumer.request(ROOM, "status")
                with pytest.raises(ContextNotFound):
                    await consumer.request(ROOM, "other", within_ms=300)
            told, other = near.take_summary(), far.take_summary()
            assert told is not None
            assert other is not None
            assert {how: one.count for how, one in told.answers.items()} == {"elsewhere": 1}
            assert set(other.answers) == {"here", "not_found"}
            assert other.answers["here"].count >= 5  # a slow machine asks again
            assert 0 < other.answers["here"].longest < 1_000_000
            assert 0 < told.answers["elsewhere"].longest < 2_000_000
        await channels.close()

    asyncio.run(scenario())
