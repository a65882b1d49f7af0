"""What every output adapter must do, whatever the medium; for ours and for those of plug-in
authors. [CO-4, UX-9]

Bind it by subclassing `AdapterSuite` in a test module and saying how to reach a working medium.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

from rapport.communication.adapters.base import (
    BatchAdapter,
    Confirmed,
    Delivery,
    Failed,
    Outcome,
    OutputAdapter,
    Sent,
    declaration_of,
)
from rapport.communication.adapters.outputs import check_output


class Medium:
    """One adapter with its medium up and listening; a binding makes one per test."""

    def __init__(self, adapter: OutputAdapter, address: str, *, can_fail: bool = True) -> None:
        self.adapter, self.address, self.can_fail = adapter, address, can_fail

    async def received(self) -> list[tuple[str, str]]:
        """What arrived at the other side: (idempotency key, text) in order."""
        raise NotImplementedError

    async def go_down(self) -> None:
        """The medium stops answering at its address."""
        raise NotImplementedError

    async def come_up(self) -> None:
        """It answers again, at the same address."""
        raise NotImplementedError


class AdapterSuite:
    """Tests shared by all adapters."""

    def open_medium(self) -> AbstractAsyncContextManager[Medium]:
        """A fresh adapter and medium."""
        raise NotImplementedError

    def test_a_delivery_arrives_with_its_key_and_text(self) -> None:
        async def scenario(medium: Medium) -> None:
            delivery = make_delivery(medium.address)
            assert is_sent(await medium.adapter.send(delivery))
            assert await medium.received() == [(delivery.key, delivery.text)]

        self._play(scenario)

    def test_every_attempt_carries_the_same_key(self) -> None:
        async def scenario(medium: Medium) -> None:
            await medium.adapter.send(make_delivery(medium.address, attempt=1))
            await medium.adapter.send(make_delivery(medium.address, attempt=2))
            keys = {key for key, _ in await medium.received()}
            assert len(keys) == 1

        self._play(scenario)

    def test_a_medium_that_is_down_is_a_failure_worth_a_retry(self) -> None:
        async def scenario(medium: Medium) -> None:
            if not medium.can_fail:
                return
            await medium.go_down()
            outcome = await medium.adapter.send(make_delivery(medium.address))
            assert isinstance(outcome, Failed)
            assert outcome.retry
            assert outcome.reason
            await medium.come_up()
            again = await medium.adapter.send(make_delivery(medium.address, attempt=2))
            assert is_sent(again)

        self._play(scenario)

    def test_hostile_text_arrives_as_text_and_nothing_else(self) -> None:
        async def scenario(medium: Medium) -> None:
            text = "Guest \N{SNOWMAN} <b>\r\nBcc: eve@example.org\r\n\r\n.\r\nQUIT"
            outcome = await medium.adapter.send(make_delivery(medium.address, text=text))
            assert is_sent(outcome)
            ((_, arrived),) = await medium.received()
            assert arrived.split() == text.split()

        self._play(scenario)

    def test_many_sends_at_once_do_not_disturb_each_other(self) -> None:
        async def scenario(medium: Medium) -> None:
            deliveries = [make_delivery(medium.address, message=f"m{n}") for n in range(20)]
            outcomes: list[Outcome | None] = await asyncio.gather(
                *(medium.adapter.send(delivery) for delivery in deliveries)
            )
            assert all(is_sent(outcome) for outcome in outcomes)
            keys = [key for key, _ in await medium.received()]
            assert sorted(keys) == sorted(delivery.key for delivery in deliveries)

        self._play(scenario)

    def test_it_says_what_it_is_and_addresses_begin_with_its_name(self) -> None:
        async def scenario(medium: Medium) -> None:
            name = medium.address.partition(":")[0]
            assert declaration_of(medium.adapter).name == medium.adapter.name == name

        self._play(scenario)

    def test_of_many_given_at_once_each_has_its_outcome_and_arrives(self) -> None:
        async def scenario(medium: Medium) -> None:
            if not isinstance(medium.adapter, BatchAdapter):
                return
            deliveries = [make_delivery(medium.address, message=f"m{n}") for n in range(5)]
            outcomes = await medium.adapter.send_many(deliveries)
            assert outcomes is None or [is_sent(one) for one in outcomes] == [True] * 5
            keys = [key for key, _ in await medium.received()]
            if medium.adapter.keeps_order:
                assert keys == [delivery.key for delivery in deliveries]
            assert sorted(keys) == sorted(delivery.key for delivery in deliveries)

        self._play(scenario)

    def test_its_methods_can_be_called_as_the_engine_calls_them(self) -> None:
        async def scenario(medium: Medium) -> None:
            check_output(medium.adapter, medium.adapter.name)

        self._play(scenario)

    def test_closing_twice_is_no_error(self) -> None:
        async def scenario(medium: Medium) -> None:
            await medium.adapter.close()

        self._play(scenario)

    def _play(self, scenario: Any) -> None:
        async def run() -> None:
            async with self.open_medium() as medium:
                try:
                    await scenario(medium)
                finally:
                    await medium.adapter.close()

        asyncio.run(run())


def is_sent(outcome: object) -> bool:
    """Whether an adapter says that the medium took it; saying nothing says so."""
    return outcome is None or isinstance(outcome, (Sent, Confirmed))


def make_delivery(
    address: str,
    *,
    message: str = "m1",
    peer: str = "ana",
    attempt: int = 1,
    text: str = "Guest 5 alone in r1",
) -> Delivery:
    """A delivery as the engine writes it."""
    return Delivery(
        message=message,
        peer=peer,
        address=address,
        attempt=attempt,
        text=text,
        policy="secure-building",
        detection="d1",
        time=1_772_452_800_000,
        queued=1_772_452_800_500,
        urgent=True,
        wants_answer=True,
    )
