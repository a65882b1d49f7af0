"""What the radio station makes of the southern sensors."""

from .conversions import (
    METRES_PER_MILE,
    METRES_PER_YARD,
    MILES_PER_HOUR,
    MILLIMETRES_PER_INCH,
    fahrenheit,
    to_iso_time,
)


def speed(event):
    return "RadioSpeed", {
        "sensor": _sensor(event["sensor"]),
        "speed": event["speed"] / MILES_PER_HOUR,
    }


def temperature(event):
    return "RadioTemperature", {
        "sensor": _sensor(event["sensor"]),
        "surface": fahrenheit(event["surface"]),
        "air": fahrenheit(event["air"]),
    }


def rain(event):
    return "RadioRain", {
        "sensor": _sensor(event["sensor"]),
        "rate": event["rate"] / MILLIMETRES_PER_INCH,
    }


def visibility(event):
    return "RadioVisibility", {
        "sensor": _sensor(event["sensor"]),
        "distance": event["distance"] / METRES_PER_YARD,
    }


def wind(event):
    return "RadioWind", {
        "sensor": _sensor(event["sensor"]),
        "speed": event["speed"] / MILES_PER_HOUR,
        "gust": event["gust"] / MILES_PER_HOUR,
    }


def queue(event):
    return "RadioQueue", {
        "sensor": _sensor(event["sensor"]),
        "length": event["length"] / METRES_PER_MILE,
        "end": _spot(event["end"]),
    }


def _sensor(sensor):
    return {
        "id": sensor["id"],
        "since": to_iso_time(sensor["time"]),
        "spot": _spot(sensor["location"]),
    }


def _spot(location):
    return {"east": location["x"] / METRES_PER_MILE, "north": location["y"] / METRES_PER_MILE}


EVENTS = {
    "Speed": speed,
    "Temperature": temperature,
    "Rain": rain,
    "Visibility": visibility,
    "Wind": wind,
    "Queue": queue,
}
