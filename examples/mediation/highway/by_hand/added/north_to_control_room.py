"""What the control room makes of the northern sensors."""

from .conversions import (
    METRES_PER_FOOT,
    METRES_PER_YARD,
    MILES_PER_HOUR,
    MILLIMETRES_PER_INCH,
    celsius,
    from_local_time,
    on_the_plan,
)


def speed(event):
    return "Speed", {
        "sensor": _sensor(event["sensor"]),
        "speed": event["speed"] * MILES_PER_HOUR,
    }


def flow(event):
    return "Flow", {**event, "sensor": _sensor(event["sensor"])}


def temperature(event):
    return "Temperature", {
        "sensor": _sensor(event["sensor"]),
        "surface": celsius(event["surface"]),
        "air": celsius(event["air"]),
    }


def rain(event):
    return "Rain", {
        "sensor": _sensor(event["sensor"]),
        "rate": event["rate"] * MILLIMETRES_PER_INCH,
    }


def visibility(event):
    return "Visibility", {
        "sensor": _sensor(event["sensor"]),
        "distance": event["distance"] * METRES_PER_YARD,
    }


def wind(event):
    return "Wind", {
        "sensor": _sensor(event["sensor"]),
        "speed": event["speed"] * MILES_PER_HOUR,
        "gust": event["gust"] * MILES_PER_HOUR,
    }


def queue(event):
    return "Queue", {
        "sensor": _sensor(event["sensor"]),
        "length": event["length"] * METRES_PER_FOOT,
        "end": _location(event["end"]),
    }


def oil(event):
    return "Oil", {
        "sensor": _sensor(event["sensor"]),
        "length": event["length"] * METRES_PER_FOOT,
    }


def _sensor(sensor):
    return {
        "id": sensor["id"],
        "time": from_local_time(sensor["at"]),
        "location": _location(sensor["position"]),
    }


def _location(position):
    x, y = on_the_plan(position["lat"], position["lon"])
    return {"x": x, "y": y}


EVENTS = {
    "NorthSpeed": speed,
    "NorthFlow": flow,
    "NorthTemperature": temperature,
    "NorthRain": rain,
    "NorthVisibility": visibility,
    "NorthWind": wind,
    "NorthQueue": queue,
    "NorthOil": oil,
}
