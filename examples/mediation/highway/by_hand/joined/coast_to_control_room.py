"""What the control room makes of the sensors along the coast."""

from .conversions import KNOTS, METRES_PER_NAUTICAL_MILE, from_the_lighthouse


def speed(event):
    return "Speed", {"sensor": _sensor(event["sensor"]), "speed": event["speed"] * KNOTS}


def in_the_same_units(kind):
    return lambda event: (kind, {**event, "sensor": _sensor(event["sensor"])})


def visibility(event):
    return "Visibility", {
        "sensor": _sensor(event["sensor"]),
        "distance": event["distance"] * METRES_PER_NAUTICAL_MILE,
    }


def wind(event):
    return "Wind", {
        "sensor": _sensor(event["sensor"]),
        "speed": event["speed"] * KNOTS,
        "gust": event["gust"] * KNOTS,
    }


def queue(event):
    return "Queue", {
        "sensor": _sensor(event["sensor"]),
        "length": event["length"] * METRES_PER_NAUTICAL_MILE,
        "end": from_the_lighthouse(event["end"]),
    }


def _sensor(sensor):
    return {
        "id": sensor["id"],
        "time": sensor["seconds"] * 1000,
        "location": from_the_lighthouse(sensor["seen"]),
    }


EVENTS = {
    "CoastSpeed": speed,
    "CoastFlow": in_the_same_units("Flow"),
    "CoastTemperature": in_the_same_units("Temperature"),
    "CoastRain": in_the_same_units("Rain"),
    "CoastVisibility": visibility,
    "CoastWind": wind,
    "CoastQueue": queue,
}
