"""Currency conversion, with rates from a table of the site or from events. [ME-4]

A rate is the amount of a currency for one unit of `base`, as central banks publish it. The rate in
force is the last that began at or before the event's time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from rapport.core.errors import InvalidInput
from rapport.core.times import from_iso, from_pattern, to_iso
from rapport.mediation.conversion.lookups import ConversionEnvironment
from rapport.mediation.conversion.notations import ISO, whole_number
from rapport.mediation.rejections import (
    SHOWN,
    Calculation,
    Port,
    RejectedValue,
    finite,
    number,
    text,
)
from rapport.units.quantities import parse_number

if TYPE_CHECKING:
    from rapport.mediation.conversion.conversions import Conversion
    from rapport.mediation.memory import ConversionMemory


class RateTable(msgspec.Struct, frozen=True, tag_field="kind", tag="table"):
    """Rates in a site table: currency, rate, and the start of its validity."""

    table: str
    base: str
    currency: str = "currency"
    rate: str = "rate"
    valid_from: str = "valid_from"
    format: str = "iso8601"
    """The format of `valid_from`: `iso8601` or a strptime pattern."""
    zone: str = "UTC"


class RateEvents(msgspec.Struct, frozen=True, tag_field="kind", tag="events"):
    """Rates from events of the type `feed`; the last 1,000 per currency are kept."""

    feed: str
    base: str
    currency: str = "currency"
    rate: str = "rate"
    time: str = "time"
    """A `Time` attribute with the start of validity."""


Rates = RateTable | RateEvents


class ChangeCurrency(msgspec.Struct, frozen=True, tag="currency"):
    """Converts an amount at the rate of the event's time."""

    to: str
    rates: Rates
    amount: str = "amount"
    currency: str = "currency"
    time: str = ""
    """The attribute with the time; empty: the event's time, or the newest rate without one."""
    from_currency: str = ""
    """If set, all amounts are in it, and no currency is taken or returned."""
    digits: int | None = None
    """Number of digits to round to; None: no rounding."""

    def takes(self, arguments: int) -> tuple[Port, ...]:
        named = () if self.from_currency else (Port(self.currency, "text"),)
        timed = (Port(self.time, "integer"),) if self.time else ()
        return (Port(self.amount, "number"), *named, *timed)

    def gives(self, results: int) -> tuple[Port, ...]:
        named = () if self.from_currency else (Port(self.currency, "text"),)
        return (Port(self.amount, "number"), *named)


RateHistory = Sequence[Sequence[Any]]
"""Pairs (start ms, rate) of one currency, oldest first."""
RateHistories = Mapping[str, RateHistory]


def currency_calculation(
    conversion: Conversion,
    how: ChangeCurrency,
    surroundings: ConversionEnvironment,
    memory: ConversionMemory,
) -> Calculation:
    name = conversion.name
    courses = _courses(conversion, how, surroundings, memory)

    def change(amount: Any, *others: Any) -> tuple[Any, ...]:
        currency = how.from_currency or text(others[0], name)
        given = whole_number(others[-1], name) if how.time else surroundings.event_time_ms
        value = number(amount, name)
        if currency != how.to:
            known = courses()
            to = _rate(known, how.to, how.rates.base, given, name)
            value = finite(value / _rate(known, currency, how.rates.base, given, name) * to, name)
        if how.digits is not None:
            value = round(value, how.digits)
        return (value,) if how.from_currency else (value, how.to)

    return change


def rate_at(course: RateHistory, time_ms: int | None) -> float | None:
    """The rate in force at the time, the newest without a time; None if there is none."""
    place = len(course) if time_ms is None else bisect_right(course, time_ms, key=itemgetter(0))
    return float(course[place - 1][1]) if place else None


def _rate(
    courses: RateHistories, currency: str, base: str, time_ms: int | None, name: str
) -> float:
    if currency == base:
        return 1.0
    rate = rate_at(courses.get(currency, ()), time_ms)
    if rate is None:
        at = "" if time_ms is None else f" at {_shown(time_ms)}"
        raise RejectedValue(
            "currency.no_rate",
            f"{name}: there is no rate of {currency[:SHOWN]!r} against {base}{at}",
            "add it to the rates, or correct the currency's name",
        )
    return rate


def _shown(time_ms: int) -> str:
    try:
        return to_iso(time_ms)
    except InvalidInput:
        return str(time_ms)[:SHOWN]


def _courses(
    conversion: Conversion,
    how: ChangeCurrency,
    surroundings: ConversionEnvironment,
    memory: ConversionMemory,
) -> Callable[[], RateHistories]:
    """Returns a function for the known rates; a table is read at the first event and after
    changes.
    """
    if not isinstance(how.rates, RateTable):
        return lambda: memory.state_of(conversion)
    known: dict[int, RateHistories] = {}
    table = how.rates

    def courses() -> RateHistories:
        revision = surroundings.tables.revision if surroundings.tables is not None else 0
        found = known.get(revision)
        if found is None:
            found = read_rates(table, surroundings)
            known.clear()
            known[revision] = found
        return found

    return courses


def read_rates(rates: RateTable, surroundings: ConversionEnvironment) -> RateHistories:
    """Reads all rates of a table; raises Rejected `lookup.bad_number` for an invalid row."""
    if surroundings.tables is None:
        return {}
    found: dict[str, list[tuple[int, float]]] = {}
    columns = (rates.currency, rates.rate, rates.valid_from)
    for currency, rate, valid_from in surroundings.tables.rows(rates.table, columns):
        try:
            began = _time(valid_from, rates)
            value = parse_number(rate)
        except InvalidInput as error:
            message = f"table {rates.table!r}, row of {currency[:SHOWN]!r}: {error.message}"
            raise RejectedValue("lookup.bad_number", message, error.hint) from None
        if not 0 < value < float("inf"):
            message = f"table {rates.table!r}: {rate[:SHOWN]!r} is no rate"
            raise RejectedValue("lookup.bad_number", message, "rates are greater than zero")
        found.setdefault(currency, []).append((began, value))
    return {currency: sorted(course) for currency, course in found.items()}


def _time(written: str, rates: RateTable) -> int:
    if rates.format == ISO:
        return from_iso(written, rates.zone)
    return from_pattern(written, rates.format, rates.zone)
