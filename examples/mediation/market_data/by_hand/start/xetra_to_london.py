"""What a desk in London makes of events from Frankfurt, without going through dollars."""

from .conversions import exchange, frankfurt_time


def price(kind):
    def convert(event):
        time = frankfurt_time(event["zeit"])
        return kind, {
            "ticker": event["wkn"],
            "venue": event["boerse"],
            "ts": time / 1000,
            "px": exchange(event["kurs"], "EUR", "GBP", time),
            "qty": event["stueck"],
        }

    return convert


def statistics(event):
    time = frankfurt_time(event["zeit"])
    return "UkStatistics", {
        "ticker": event["wkn"],
        "ts": time / 1000,
        "open": exchange(event["eroeffnung"], "EUR", "GBP", time),
        "high": exchange(event["hoch"], "EUR", "GBP", time),
        "low": exchange(event["tief"], "EUR", "GBP", time),
        "close": exchange(event["schluss"], "EUR", "GBP", time),
        "qty": event["umsatz"],
    }


EVENTS = {
    "Geld": price("UkBid"),
    "Brief": price("UkAsk"),
    "Abschluss": price("UkTrade"),
    "Tagesdaten": statistics,
}
