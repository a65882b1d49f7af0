"""What a desk in New York makes of events from Frankfurt."""

from .conversions import exchange, frankfurt_time


def price(kind):
    def convert(event):
        time = frankfurt_time(event["zeit"])
        return kind, {
            "symbol": event["wkn"],
            "exchange": event["boerse"],
            "time": time,
            "price": exchange(event["kurs"], "EUR", "USD", time),
            "size": event["stueck"],
        }

    return convert


def statistics(event):
    time = frankfurt_time(event["zeit"])
    return "Statistics", {
        "symbol": event["wkn"],
        "time": time,
        "open": exchange(event["eroeffnung"], "EUR", "USD", time),
        "high": exchange(event["hoch"], "EUR", "USD", time),
        "low": exchange(event["tief"], "EUR", "USD", time),
        "close": exchange(event["schluss"], "EUR", "USD", time),
        "volume": event["umsatz"],
    }


def dividend(event):
    time = frankfurt_time(event["zeit"])
    return "Dividend", {
        "symbol": event["wkn"],
        "time": time,
        "amount": exchange(event["betrag"], "EUR", "USD", time),
        "ex_day": event["ex_tag"],
    }


EVENTS = {
    "Geld": price("Bid"),
    "Brief": price("Ask"),
    "Abschluss": price("Trade"),
    "Tagesdaten": statistics,
    "Ausschuettung": dividend,
}
