"""What a desk in London makes of events from New York."""

from .conversions import exchange


def price(kind):
    def convert(event):
        return kind, {
            "ticker": event["symbol"],
            "venue": event["exchange"],
            "ts": event["time"] / 1000,
            "px": exchange(event["price"], "USD", "GBP", event["time"]),
            "qty": event["size"],
        }

    return convert


def statistics(event):
    time = event["time"]
    return "UkStatistics", {
        "ticker": event["symbol"],
        "ts": time / 1000,
        "open": exchange(event["open"], "USD", "GBP", time),
        "high": exchange(event["high"], "USD", "GBP", time),
        "low": exchange(event["low"], "USD", "GBP", time),
        "close": exchange(event["close"], "USD", "GBP", time),
        "qty": event["volume"],
    }


def dividend(event):
    return "UkDividend", {
        "ticker": event["symbol"],
        "ts": event["time"] / 1000,
        "px": exchange(event["amount"], "USD", "GBP", event["time"]),
        "ex_day": event["ex_day"],
    }


EVENTS = {
    "Bid": price("UkBid"),
    "Ask": price("UkAsk"),
    "Trade": price("UkTrade"),
    "Statistics": statistics,
    "Dividend": dividend,
}
