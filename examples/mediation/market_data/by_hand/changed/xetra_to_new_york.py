"""What a desk in New York makes of events from Frankfurt."""

from .conversions import exchange, frankfurt_time


def price(kind):
    def convert(event):
        time = frankfurt_time(event["zeit"])
        return kind, {
            "symbol": event["wkn"],
            "exchange": event["boerse"],
            "time": time,
            "price": _price(event["kurs"], time),
            "size": event["stueck"],
        }

    return convert


def statistics(event):
    time = frankfurt_time(event["zeit"])
    return "Statistics", {
        "symbol": event["wkn"],
        "time": time,
        "open": _price(event["eroeffnung"], time),
        "high": _price(event["hoch"], time),
        "low": _price(event["tief"], time),
        "close": _price(event["schluss"], time),
        "volume": event["umsatz"],
    }


def _price(price, time):
    return exchange(price["betrag"], price["waehrung"], "USD", time)


EVENTS = {
    "Geld": price("Bid"),
    "Brief": price("Ask"),
    "Abschluss": price("Trade"),
    "Tagesdaten": statistics,
}
