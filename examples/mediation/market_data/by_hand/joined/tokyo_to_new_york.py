"""What a desk in New York makes of events from Tokyo."""

from .conversions import exchange, iso_time


def price(kind):
    def convert(event):
        time = iso_time(event["jikoku"])
        return kind, {
            "symbol": event["meigara"],
            "exchange": event["exchange"],
            "time": time,
            "price": exchange(event["kakaku"], "JPY", "USD", time),
            "size": event["suuryou"],
        }

    return convert


def statistics(event):
    time = iso_time(event["jikoku"])
    return "Statistics", {
        "symbol": event["meigara"],
        "time": time,
        "open": exchange(event["open"], "JPY", "USD", time),
        "high": exchange(event["high"], "JPY", "USD", time),
        "low": exchange(event["low"], "JPY", "USD", time),
        "close": exchange(event["close"], "JPY", "USD", time),
        "volume": event["volume"],
    }


EVENTS = {
    "JpBid": price("Bid"),
    "JpAsk": price("Ask"),
    "JpTrade": price("Trade"),
    "JpStatistics": statistics,
}
