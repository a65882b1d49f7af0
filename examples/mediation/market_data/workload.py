"""What the exchanges say, each in its own words."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from both_ways import Participant, Sent

from rapport.tables.config import TableDeclaration
from rapport.tables.tables import Tables

FIRST_MS, LAST_MS = 1_712_620_800_000, 1_719_705_600_000
"""April to June 2024: rates change three times, the clocks do not."""
PRICES = ("open", "high", "low", "close")
KINDS = {
    "Bid": ("price",),
    "Ask": ("price",),
    "Trade": ("price",),
    "Statistics": PRICES,
    "Dividend": ("amount",),
}

Words = dict[str, Any]


def participants(step: str) -> list[Participant]:
    """Two exchanges and two desks; an exchange in Tokyo joins."""
    found = [
        Participant("nyse", receives=False),
        Participant("xetra", "xetra", receives=False),
        Participant("new_york", sends=False),
        Participant("london", "london", sends=False),
    ]
    return [*found, Participant("tokyo", "tokyo", receives=False)] if step == "joined" else found


def tables() -> Tables:
    """The rates of the European Central Bank: how much one euro is worth."""
    keys: dict[str, Any] = {"key": "currency", "further_keys": ("valid_from",)}
    rates = TableDeclaration(name="rates", csv="rates.csv", **keys)
    return Tables.load(Path(__file__).parent, [rates], {})


def events(step: str, count: int, seed: int) -> Iterator[Sent]:
    """Random events of all exchanges and types."""
    chance = random.Random(seed)
    senders = [each.name for each in participants(step) if each.sends]
    for _ in range(count):
        sender = chance.choice(senders)
        kind = chance.choice([*KINDS] if step == "added" else [*KINDS][:-1])
        time_ms = chance.randint(FIRST_MS, LAST_MS)
        if sender == "xetra":
            time_ms -= time_ms % 1000
        yield Sent(sender, *WRITERS[sender](kind, time_ms, chance, step), time_ms)


def _event(kind: str, exchange: str, time: Any, price: Any, chance: random.Random) -> Words:
    """An event in the words of New York, with times and prices as the sender writes them."""
    found: Words = {"symbol": chance.choice(("SAP", "IBM", "7203")), "time": time}
    found |= {name: price(round(chance.uniform(1, 900), 2)) for name in KINDS[kind]}
    if kind == "Dividend":
        return found | {"ex_day": f"2024-07-{chance.randint(10, 28)}"}
    if kind == "Statistics":
        return found | {"volume": chance.randint(0, 10_000_000)}
    return found | {"exchange": exchange, "size": chance.randint(1, 5_000)}


def _nyse(kind: str, time_ms: int, chance: random.Random, step: str) -> tuple[str, Words]:
    return kind, _event(kind, "XNYS", time_ms, lambda price: price, chance)


def _xetra(kind: str, time_ms: int, chance: random.Random, step: str) -> tuple[str, Words]:
    local = datetime.fromtimestamp(time_ms / 1000, ZoneInfo("Europe/Berlin"))

    def price(euros: float) -> Any:
        if step != "changed":
            return euros
        currency = chance.choice(("EUR", "GBP"))
        return {"betrag": euros, "waehrung": currency}

    event = _event(kind, "XETR", local.strftime("%d.%m.%Y %H:%M:%S"), price, chance)
    return IN_GERMAN[kind], {IN_GERMAN[name]: value for name, value in event.items()}


def _tokyo(kind: str, time_ms: int, chance: random.Random, step: str) -> tuple[str, Words]:
    local = datetime.fromtimestamp(time_ms / 1000, ZoneInfo("Asia/Tokyo"))
    event = _event(kind, "XTKS", local.isoformat(timespec="milliseconds"), lambda yen: yen, chance)
    return f"Jp{kind}", {IN_JAPANESE.get(name, name): value for name, value in event.items()}


WRITERS = {"nyse": _nyse, "xetra": _xetra, "tokyo": _tokyo}
IN_GERMAN = {
    "Bid": "Geld",
    "Ask": "Brief",
    "Trade": "Abschluss",
    "Statistics": "Tagesdaten",
    "Dividend": "Ausschuettung",
    "symbol": "wkn",
    "exchange": "boerse",
    "time": "zeit",
    "price": "kurs",
    "size": "stueck",
    "open": "eroeffnung",
    "high": "hoch",
    "low": "tief",
    "close": "schluss",
    "volume": "umsatz",
    "amount": "betrag",
    "ex_day": "ex_tag",
}
IN_JAPANESE = {"symbol": "meigara", "time": "jikoku", "price": "kakaku", "size": "suuryou"}
