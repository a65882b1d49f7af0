"""Stateful adapters: one instance per peer, made on first use, closed when idle or outdated."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest

from rapport.communication.adapters.base import Failed, Sent, adapter, declaration_of
from rapport.communication.adapters.outputs import PeerInstances, instance_factory
from rapport.core.errors import InvalidInput
from rapport.kernel.clock import ManualClock
from rapport.testing.suites.adapter import make_delivery

IDLE = 600_000


class Line:
    """Keeps how it was made, what it sent, and whether it was closed."""

    made: ClassVar[list[Line]] = []

    def __init__(self, address: str = "") -> None:
        if address.endswith("broken"):
            raise RuntimeError("secret detail")
        self.address, self.sent, self.closed = address, [], 0
        self.gate: asyncio.Event | None = None
        Line.made.append(self)

    async def send(self, delivery):
        if self.gate:
            await self.gate.wait()
        self.sent.append(delivery.message)
        return Sent()

    async def close(self):
        self.closed += 1


@pytest.fixture(autouse=True)
def _fresh():
    Line.made = []


def to(peer, number=1, address=""):
    return make_delivery(f"line:{address or peer}", peer=peer, message=f"m{number}")


def test_every_peer_has_an_instance_of_its_own_made_once_with_its_address():
    async def scenario():
        instances = PeerInstances("line", Line, ManualClock())
        assert Line.made == []
        for number in range(3):
            await instances.send(to("ana", number))
            await instances.send(to("ben", number))
        assert [line.address for line in Line.made] == ["line:ana", "line:ben"]
        assert Line.made[0].sent == ["m0", "m1", "m2"]
        await instances.close()
        await instances.close()
        assert [line.closed for line in Line.made] == [1, 1]

    asyncio.run(scenario())


def test_an_instance_that_cannot_be_made_is_a_failed_address_without_its_secrets():
    async def scenario():
        outcome = await PeerInstances("line", Line, ManualClock()).send(to("ana", address="broken"))
        assert isinstance(outcome, Failed)
        assert not outcome.retry
        assert "adapter.not_made" in outcome.reason
        assert "secret detail" not in outcome.reason

    asyncio.run(scenario())


def test_idle_instances_are_closed_and_made_again_when_needed():
    async def scenario():
        clock = ManualClock()
        instances = PeerInstances("line", Line, clock, idle_ms=IDLE)
        running = asyncio.create_task(instances.run())
        await instances.send(to("ana"))
        await clock.advance(IDLE // 2)
        await instances.send(to("ben"))
        await clock.advance(IDLE // 2)
        assert [line.closed for line in Line.made] == [1, 0]
        assert instances.count() == 1
        await instances.send(to("ana"))
        assert len(Line.made) == 3
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


def test_an_instance_in_use_is_never_idle_and_is_closed_only_after_its_send():
    async def scenario():
        clock = ManualClock()
        instances = PeerInstances("line", Line, clock, idle_ms=IDLE)
        await instances.send(to("ana"))
        line = Line.made[0]
        line.gate = asyncio.Event()
        sending = asyncio.create_task(instances.send(to("ana", 2)))
        await asyncio.sleep(0)
        await clock.advance(2 * IDLE)
        assert await instances.close_idle() == 0
        instances.peer_changed("ana")
        assert await instances.close_idle() == 0
        assert line.closed == 0
        line.gate.set()
        await sending
        assert await instances.close_idle() == 1
        assert line.closed == 1

    asyncio.run(scenario())


def test_a_changed_peer_gets_a_new_instance_and_the_others_keep_theirs():
    async def scenario():
        clock = ManualClock()
        instances = PeerInstances("line", Line, clock)
        running = asyncio.create_task(instances.run())
        await instances.send(to("ana"))
        await instances.send(to("ben"))
        instances.peer_changed("ana")
        await clock.advance(0)
        assert [line.closed for line in Line.made] == [1, 0]
        await instances.send(to("ana", address="elsewhere"))
        assert Line.made[-1].address == "line:elsewhere"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


def test_an_instance_that_cannot_be_closed_keeps_no_other_open():
    class Sticky(Line):
        async def close(self):
            await super().close()
            raise RuntimeError("stuck")

    async def scenario():
        instances = PeerInstances("line", Sticky, ManualClock())
        await instances.send(to("ana"))
        await instances.send(to("ben"))
        await instances.close()
        assert [line.closed for line in Line.made] == [1, 1]

    asyncio.run(scenario())


def test_an_instance_that_hangs_while_it_is_closed_keeps_no_other_open():
    class Hanging(Line):
        async def close(self):
            await super().close()
            if self.address == "line:ana":
                await asyncio.Event().wait()

    async def scenario():
        clock = ManualClock()
        instances = PeerInstances("line", Hanging, clock, idle_ms=IDLE)
        running = asyncio.ensure_future(instances.run())
        await instances.send(to("ana"))
        instances.peer_changed("ana")
        await instances.send(to("ben"))
        await clock.advance(2 * IDLE)
        assert [line.closed for line in Line.made] == [1, 1]
        assert instances.count() == 0
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


def test_a_stateful_class_takes_the_address_or_nothing_and_no_more():
    @adapter("a", stateful=True)
    class Nothing:
        pass

    @adapter("b", stateful=True)
    class Address:
        def __init__(self, address, *, extra=1):
            self.address = address

    @adapter("c", stateful=True)
    class More:
        def __init__(self, address, password):
            pass

    assert isinstance(instance_factory(Nothing)("a:x"), Nothing)
    assert instance_factory(Address)("b:x").address == "b:x"
    with pytest.raises(InvalidInput) as caught:
        instance_factory(More)
    assert caught.value.code == "adapter.bad_constructor"
    assert "password" in caught.value.message


def test_a_class_that_does_not_say_what_it_is_is_no_adapter():
    with pytest.raises(InvalidInput) as caught:
        declaration_of(Line)
    assert caught.value.code == "adapter.not_declared"
    assert "@adapter" in caught.value.hint
