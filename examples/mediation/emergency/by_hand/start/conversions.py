"""What all sides need to know: units, and the plan of the city."""

from rapport.units.coordinates import PlanOrigin, from_plan, to_plan

METRES_PER_FOOT = 0.3048
MILES_PER_HOUR = 1609.344 / 3600
"""In metres per second."""

_CENTRE = PlanOrigin(52.52, 13.405)


def on_the_plan(lat, lon):
    return to_plan(lat, lon, _CENTRE)


def off_the_plan(x, y):
    return from_plan(x, y, _CENTRE)
