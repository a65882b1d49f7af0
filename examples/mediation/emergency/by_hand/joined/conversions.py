"""What all sides need to know: units, and the plan of the city."""

import math

from rapport.units.coordinates import PlanOrigin, from_plan, to_plan

METRES_PER_FOOT = 0.3048
MILES_PER_HOUR = 1609.344 / 3600
"""In metres per second."""

_CENTRE = PlanOrigin(52.52, 13.405)
_CAMP = (2_500.0, -1_200.0)


def on_the_plan(lat, lon):
    return to_plan(lat, lon, _CENTRE)


def off_the_plan(x, y):
    return from_plan(x, y, _CENTRE)


def from_camp(sector):
    angle, metres = math.radians(sector["bearing"]), sector["distance"] * 1000
    x, y = _CAMP
    return {"x": x + metres * math.sin(angle), "y": y + metres * math.cos(angle)}


def to_camp(point):
    x, y = point["x"] - _CAMP[0], point["y"] - _CAMP[1]
    bearing = math.degrees(math.atan2(x, y)) % 360
    return {"bearing": bearing, "distance": math.hypot(x, y) / 1000}


def by_way_of(first, second):
    """The events of the first module as the second would have them of the participant between."""

    def then(convert):
        def both(event):
            kind, between = convert(event)
            return second.EVENTS[kind](between)

        return both

    return {kind: then(convert) for kind, convert in first.EVENTS.items()}
