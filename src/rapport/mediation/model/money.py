"""Kinds of conversion between currencies, and where their rates come from. [ME-4]

A rate says how much of a currency one unit of `base` is worth, as central banks publish it. The one
in force is the last that began at or before the event's time. What it does is in `exchanging.py`.
"""

from __future__ import annotations

import msgspec

from rapport.mediation.model.ports import Port


class RateTable(msgspec.Struct, frozen=True, tag_field="kind", tag="table"):
    """Rates in a table of the site: currency, rate, and the time from which it holds."""

    table: str
    base: str
    currency: str = "currency"
    rate: str = "rate"
    valid_from: str = "valid_from"
    format: str = "iso8601"
    """Of `valid_from`: `iso8601` or a pattern of strptime."""
    zone: str = "UTC"


class RateEvents(msgspec.Struct, frozen=True, tag_field="kind", tag="events"):
    """Rates that events of the type `feed` tell; the last 1,000 of each currency are known."""

    feed: str
    base: str
    currency: str = "currency"
    rate: str = "rate"
    time: str = "time"
    """A `Time` in the event, from which the rate holds."""


Rates = RateTable | RateEvents


class ChangeCurrency(msgspec.Struct, frozen=True, tag="currency"):
    """An amount in one currency to the amount in another, at the rate of the event's time."""

    to: str
    rates: Rates
    amount: str = "amount"
    currency: str = "currency"
    time: str = ""
    """The `Time` that counts; empty: the event's own, or the newest rate when nobody tells it."""
    from_currency: str = ""
    """Given: all amounts are in it, and no currency is taken or given."""
    digits: int | None = None
    """Rounded to so many digits; empty: not."""

    def takes(self, arguments: int) -> tuple[Port, ...]:
        named = () if self.from_currency else (Port(self.currency, "text"),)
        timed = (Port(self.time, "integer"),) if self.time else ()
        return (Port(self.amount, "number"), *named, *timed)

    def gives(self, results: int) -> tuple[Port, ...]:
        named = () if self.from_currency else (Port(self.currency, "text"),)
        return (Port(self.amount, "number"), *named)
