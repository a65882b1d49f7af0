"""What a desk in London makes of events from Frankfurt, without going through dollars."""

from .conversions import exchange, frankfurt_time


def price(kind):
    def convert(event):
        time = frankfurt_time(event["zeit"])
        return kind, {
            "ticker": event["wkn"],
            "venue": event["boerse"],
            "ts": time / 1000,
            "px": _price(event["kurs"], time),
            "qty": event["stueck"],
        }

    return convert


def statistics(event):
    time = frankfurt_time(event["zeit"])
    return "UkStatistics", {
        "ticker": event["wkn"],
        "ts": time / 1000,
        "open": _price(event["eroeffnung"], time),
        "high": _price(event["hoch"], time),
        "low": _price(event["tief"], time),
        "close": _price(event["schluss"], time),
        "qty": event["umsatz"],
    }


def _price(price, time):
    return exchange(price["betrag"], price["waehrung"], "GBP", time)


EVENTS = {
    "Geld": price("UkBid"),
    "Brief": price("UkAsk"),
    "Abschluss": price("UkTrade"),
    "Tagesdaten": statistics,
}
