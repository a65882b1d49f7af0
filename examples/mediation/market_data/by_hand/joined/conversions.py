"""What all desks need to know: times, and rates in force at a time."""

import bisect
import csv
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo


def _read_rates():
    """Of each currency (from ms, rate), oldest first; a rate is what one euro is worth."""
    found = {}
    with (Path(__file__).parents[2] / "rates.csv").open() as file:
        for row in csv.DictReader(file):
            began = datetime.fromisoformat(row["valid_from"]).replace(tzinfo=ZoneInfo("UTC"))
            course = found.setdefault(row["currency"], [])
            course.append((began.timestamp() * 1000, float(row["rate"])))
    return {currency: sorted(course) for currency, course in found.items()}


_RATES = _read_rates()


def exchange(amount, source, target, time_ms):
    """The amount in another currency at the rate of that time."""
    return amount / _rate(source, time_ms) * _rate(target, time_ms)


def _rate(currency, time_ms):
    if currency == "EUR":
        return 1.0
    course = _RATES[currency]
    return course[bisect.bisect(course, (time_ms, float("inf"))) - 1][1]


def frankfurt_time(text):
    """Milliseconds since 1970 UTC."""
    local = datetime.strptime(text, "%d.%m.%Y %H:%M:%S").replace(tzinfo=ZoneInfo("Europe/Berlin"))
    return round(local.timestamp() * 1000)


def iso_time(text):
    """Milliseconds since 1970 UTC."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def by_way_of(first, second):
    """The events of the first module as the second would have them of the participant between."""

    def then(convert):
        def both(event):
            kind, between = convert(event)
            return second.EVENTS[kind](between)

        return both

    return {kind: then(convert) for kind, convert in first.EVENTS.items()}
