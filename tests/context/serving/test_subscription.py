"""A subscription by itself: what it hands on of the notices that come, and what it leaves out.
[CX-3]
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from rapport.context.clients.broker_link import BrokerLink
from rapport.context.clients.consumer import ContextSubscription
from rapport.context.connections import ClientSettings
from rapport.context.protocol import Message, Notice, Question
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.kernel.clock import ManualClock
from rapport.transport.base import Address

BROKER, ROOM = ("127.0.0.1", 7411), EntityRef("room", "r3")
NOW = 1_772_442_000_000


class QuietLink:
    """A tie to brokers that says nothing."""

    def __init__(self) -> None:
        self.clock, self.settings = ManualClock(NOW), ClientSettings()
        self.posted: list[Message] = []

    def new_id(self) -> int:
        return 7

    def post(self, message: Message, _to: Address) -> None:
        self.posted.append(message)


def heard(*notices: tuple[int, int, ContextRecord], every_ms: int = 0) -> list[Any]:
    """What a reader gets of notices: each at a time, with its number."""

    async def scenario() -> list[Any]:
        link = QuietLink()
        subscription = ContextSubscription(
            cast(BrokerLink, link), Question(ROOM, "status"), every_ms
        )
        got: list[Any] = []
        for at_ms, number, record in notices:
            link.clock.set_ms(NOW + at_ms)
            subscription._take(Notice(7, number, record), BROKER)
            while subscription._records:
                got.append((await subscription.next()).values["n"])
        assert len(link.posted) == len(notices), "each is acknowledged"
        return got

    return asyncio.run(scenario())


def record(start: int, end: int, n: int) -> ContextRecord:
    return ContextRecord("p", ROOM, "status", NOW + start, NOW + end, {"n": n})


def test_a_change_is_sent_once_and_what_was_overtaken_not_at_all() -> None:
    old, new = record(0, 9_000, 0), record(50, 9_000, 1)
    assert heard((60, 1, old), (61, 2, new), (62, 2, new), (63, 1, old)) == [0, 1]


def test_what_began_earlier_is_sent_when_what_began_later_is_over() -> None:
    """A request finds it then, so a subscription must not be silent about it."""
    short, long = record(0, 100, 0), record(-5_000, 60_000, 1)
    assert heard((10, 1, short), (200, 2, long)) == [0, 1]
    assert heard((10, 1, short), (50, 2, long)) == [0], "while it is valid, it counts"
    repeated = heard((10, 1, long), (20, 2, short), (200, 1, long))
    assert repeated == [1, 0], "a notice that was only late says nothing new"


@pytest.mark.parametrize("set_back_ms", [0, 5_000, 3_600_000])
def test_a_broker_that_began_anew_with_its_clock_set_back_is_heard(set_back_ms: int) -> None:
    """It counts its notices from its clock."""
    same = record(0, 60_000, 0)
    first = NOW - set_back_ms
    before = [(at, NOW - 4_000 + at, same) for at in (0, 1, 2)]
    after = [(at, first + at, same) for at in (10, 11, 11, 10, 12)]
    assert heard(*before, *after, every_ms=50) == [0] * 6
