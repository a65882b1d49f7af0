"""What every endpoint must do; bound to memory, UDP and simulation in tests/conformance, open to
other media. [CX-2, EN-10]

A class that inherits the suite gives the fixture `medium`: where endpoints are opened that reach
each other without loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import pytest

from rapport.core.errors import InvalidInput
from rapport.transport.base import Address, Endpoint


class TransportMedium(Protocol):
    """Where endpoints live."""

    async def open(self) -> Endpoint:
        """A new endpoint in range of the others."""

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns when the condition holds, or after a while: the caller looks again."""

    async def close(self) -> None:
        """Closes what was opened."""


class ListeningEndpoint:
    """An endpoint and all that it heard."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint, self.address = endpoint, endpoint.address
        self.heard: list[tuple[bytes, Address]] = []
        endpoint.receive(self._hear)

    def _hear(self, datagram: bytes, sender: Address) -> None:
        self.heard.append((datagram, sender))

    def datagrams(self) -> list[bytes]:
        """What was heard, sorted: no medium promises an order."""
        return sorted(datagram for datagram, _sender in self.heard)


def run(medium: TransportMedium, scenario: Callable[[TransportMedium], Awaitable[None]]) -> None:
    """Plays a scenario on a loop of its own."""

    async def play() -> None:
        try:
            await scenario(medium)
        finally:
            await medium.close()

    asyncio.run(play())


class EndpointSuite:
    """Needs the fixture `medium`: Medium."""

    def test_a_datagram_arrives_with_the_address_to_answer_to(
        self, medium: TransportMedium
    ) -> None:
        async def scenario(medium: TransportMedium) -> None:
            one, other = (
                ListeningEndpoint(await medium.open()),
                ListeningEndpoint(await medium.open()),
            )
            one.endpoint.send(b"hello", other.address)
            await medium.until(lambda: bool(other.heard))
            assert other.heard == [(b"hello", one.address)]
            other.endpoint.send(b"hello back", other.heard[0][1])
            await medium.until(lambda: bool(one.heard))
            assert one.heard == [(b"hello back", other.address)]

        run(medium, scenario)

    def test_datagrams_of_every_size_arrive_whole(self, medium: TransportMedium) -> None:
        async def scenario(medium: TransportMedium) -> None:
            one, other = await medium.open(), ListeningEndpoint(await medium.open())
            sizes = [0, 1, 2, 255, 256, one.max_datagram - 1, one.max_datagram]
            sent = [bytes([size % 251]) * size for size in sizes]
            for datagram in sent:
                one.send(datagram, other.address)
            await medium.until(lambda: len(other.heard) == len(sent))
            assert other.datagrams() == sorted(sent)

        run(medium, scenario)

    def test_a_datagram_that_is_too_large_is_refused_and_nothing_is_sent(
        self, medium: TransportMedium
    ) -> None:
        async def scenario(medium: TransportMedium) -> None:
            one, other = await medium.open(), ListeningEndpoint(await medium.open())
            with pytest.raises(InvalidInput) as found:
                one.send(b"x" * (one.max_datagram + 1), other.address)
            assert found.value.code == "transport.too_large"
            one.send(b"small", other.address)
            await medium.until(lambda: bool(other.heard))
            assert other.datagrams() == [b"small"]

        run(medium, scenario)

    def test_many_datagrams_from_many_senders_all_arrive(self, medium: TransportMedium) -> None:
        async def scenario(medium: TransportMedium) -> None:
            other = ListeningEndpoint(await medium.open())
            senders = [await medium.open() for _ in range(5)]
            sent = []
            for number in range(200):
                sender = senders[number % 5]
                sent.append((b"%03d" % number, sender.address))
                sender.send(sent[-1][0], other.address)
            await medium.until(lambda: len(other.heard) == len(sent))
            assert sorted(other.heard) == sorted(sent)

        run(medium, scenario)

    def test_sending_to_nobody_is_no_error(self, medium: TransportMedium) -> None:
        async def scenario(medium: TransportMedium) -> None:
            one, other = (
                ListeningEndpoint(await medium.open()),
                ListeningEndpoint(await medium.open()),
            )
            gone = await medium.open()
            address = gone.address
            await gone.close()
            for _ in range(3):
                one.endpoint.send(b"anybody?", address)
                one.endpoint.send(b"hello", other.address)
            await medium.until(lambda: len(other.heard) == 3)
            assert other.datagrams() == [b"hello"] * 3
            assert one.heard == []

        run(medium, scenario)

    def test_one_may_send_to_oneself(self, medium: TransportMedium) -> None:
        async def scenario(medium: TransportMedium) -> None:
            one = ListeningEndpoint(await medium.open())
            one.endpoint.send(b"note", one.address)
            await medium.until(lambda: bool(one.heard))
            assert one.heard == [(b"note", one.address)]

        run(medium, scenario)

    def test_a_broadcast_reaches_all_others_and_not_oneself(self, medium: TransportMedium) -> None:
        async def scenario(medium: TransportMedium) -> None:
            all_three = [ListeningEndpoint(await medium.open()) for _ in range(3)]
            one, *others = all_three
            one.endpoint.broadcast(b"all")
            await medium.until(lambda: all(other.heard for other in others))
            others[0].endpoint.send(b"done", one.address)
            await medium.until(lambda: bool(one.heard))
            assert [other.heard for other in others] == [[(b"all", one.address)]] * 2
            assert one.datagrams() == [b"done"]

        run(medium, scenario)

    def test_a_second_handler_takes_the_place_of_the_first(self, medium: TransportMedium) -> None:
        async def scenario(medium: TransportMedium) -> None:
            one, other = await medium.open(), await medium.open()
            first, second = ListeningEndpoint(other), ListeningEndpoint(other)
            one.send(b"hello", other.address)
            await medium.until(lambda: bool(second.heard))
            assert (first.heard, second.datagrams()) == ([], [b"hello"])

        run(medium, scenario)

    def test_after_closing_nothing_is_received_and_closing_twice_is_no_error(
        self, medium: TransportMedium
    ) -> None:
        async def scenario(medium: TransportMedium) -> None:
            one, other = (
                ListeningEndpoint(await medium.open()),
                ListeningEndpoint(await medium.open()),
            )
            one.endpoint.send(b"under way", other.address)
            await other.endpoint.close()
            heard_before = len(other.heard)
            one.endpoint.send(b"too late", other.address)
            await medium.until(lambda: len(other.heard) > heard_before)
            assert len(other.heard) == heard_before
            other.endpoint.send(b"from nobody", one.address)
            await other.endpoint.close()
            await medium.until(lambda: bool(one.heard))
            assert one.heard == []

        run(medium, scenario)

    def test_a_handler_may_answer_at_once(self, medium: TransportMedium) -> None:
        async def scenario(medium: TransportMedium) -> None:
            one, echo = ListeningEndpoint(await medium.open()), await medium.open()
            echo.receive(lambda datagram, sender: echo.send(datagram[::-1], sender))
            for word in (b"abc", b"xyz"):
                one.endpoint.send(word, echo.address)
            await medium.until(lambda: len(one.heard) == 2)
            assert one.datagrams() == [b"cba", b"zyx"]

        run(medium, scenario)
