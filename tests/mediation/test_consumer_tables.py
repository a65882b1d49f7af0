"""What consumers are told by a table of the site follows the table. [ME-4, ME-9]"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import msgspec

from rapport.channel.backends.local import open_memory
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import ManualClock
from rapport.mediation.conversion.conversions import converts
from rapport.mediation.conversion.currencies import ChangeCurrency, RateTable
from rapport.mediation.interpretations.model import Interpretation, Rule, TypeMapping
from rapport.mediation.interpretations.repository import Repository, activate
from rapport.mediation.outgoing.service import OutgoingMediation
from rapport.mediation.types import Attribute, ComplexType, PrimitiveType

ROOT = Interpretation(
    name="root",
    parent="",
    types=(PrimitiveType("Euro", "number"), ComplexType("Offer", (Attribute("price", "Euro"),))),
)
SHOP = Interpretation(
    name="shop",
    types=(PrimitiveType("Dollar", "number"), ComplexType("Said", (Attribute("price", "Dollar"),))),
    mappings=(TypeMapping("Offer", "Said", "out"),),
    rules=(Rule("Euro", "dollars", "out"),),
    conversions=(
        converts(
            "dollars",
            "Euro",
            "Dollar",
            ChangeCurrency("USD", RateTable("rates", "EUR"), from_currency="EUR"),
        ),
    ),
)


class Rates:
    """A table whose rows change; see SiteTables."""

    def __init__(self) -> None:
        self.dollar, self.revision = "1.25", 1

    def lookup(self, table: str, key: str, column: str) -> str | None:
        return None

    def rows(self, table: str, columns: Sequence[str]) -> list[tuple[str, ...]]:
        return [("USD", self.dollar, "2026-01-01T00:00:00Z")]


def offer(place: int) -> StoredEvent:
    data = msgspec.json.encode({"price": 100})
    return StoredEvent(place, 9, Event("shop", f"e{place}", "Offer", "", 1_800_000_000_000, data))


def test_new_rates_apply_to_later_deliveries() -> None:
    in_force, _ = activate({}, [ROOT, SHOP], concepts={})
    assert not in_force.refused

    async def scenario() -> None:
        rates = Rates()
        outgoing = OutgoingMediation(
            Repository(in_force), open_memory(ManualClock()), tables=lambda: rates
        )

        async def price(place: int) -> Any:
            (result,) = await outgoing.view("events", [offer(place)], "shop")
            return msgspec.json.decode(result.event.data)["price"]

        assert await price(1) == 125.0
        rates.dollar, rates.revision = "1.5", 2
        with patch(
            "rapport.mediation.outgoing.consumer_transformer.make_transformer",
            side_effect=AssertionError,
        ):
            assert await price(2) == 150.0
        assert await price(1) == 150.0, "what was said by the rates of before is said anew"

    asyncio.run(scenario())
