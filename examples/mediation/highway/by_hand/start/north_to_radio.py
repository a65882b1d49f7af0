"""What the radio station makes of the northern sensors: most of it is in its units already."""

from .conversions import (
    METRES_PER_FOOT,
    METRES_PER_MILE,
    from_local_time,
    on_the_plan,
    to_iso_time,
)


def in_the_same_units(kind):
    return lambda event: (kind, {**event, "sensor": _sensor(event["sensor"])})


def queue(event):
    return "RadioQueue", {
        "sensor": _sensor(event["sensor"]),
        "length": event["length"] * METRES_PER_FOOT / METRES_PER_MILE,
        "end": _spot(event["end"]),
    }


def _sensor(sensor):
    return {
        "id": sensor["id"],
        "since": to_iso_time(from_local_time(sensor["at"])),
        "spot": _spot(sensor["position"]),
    }


def _spot(position):
    x, y = on_the_plan(position["lat"], position["lon"])
    return {"east": x / METRES_PER_MILE, "north": y / METRES_PER_MILE}


EVENTS = {
    "NorthSpeed": in_the_same_units("RadioSpeed"),
    "NorthTemperature": in_the_same_units("RadioTemperature"),
    "NorthRain": in_the_same_units("RadioRain"),
    "NorthVisibility": in_the_same_units("RadioVisibility"),
    "NorthWind": in_the_same_units("RadioWind"),
    "NorthQueue": queue,
}
