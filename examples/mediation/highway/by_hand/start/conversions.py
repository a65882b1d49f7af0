"""What all receivers need to know: units, times and the plan of the region."""

from datetime import datetime
from zoneinfo import ZoneInfo

from rapport.units.coordinates import PlanOrigin, to_plan

METRES_PER_FOOT = 0.3048
METRES_PER_YARD = 0.9144
METRES_PER_MILE = 1609.344
MILLIMETRES_PER_INCH = 25.4
MILES_PER_HOUR = METRES_PER_MILE / 3600
"""In metres per second."""

_CHICAGO = ZoneInfo("America/Chicago")
_CENTRE = PlanOrigin(41.88, -87.63)


def celsius(fahrenheit):
    return (fahrenheit - 32) * 5 / 9


def fahrenheit(celsius):
    return celsius * 9 / 5 + 32


def on_the_plan(lat, lon):
    """Metres to the east and to the north of the centre."""
    return to_plan(lat, lon, _CENTRE)


def from_local_time(text):
    """Milliseconds since 1970 UTC."""
    local = datetime.strptime(text, "%m/%d/%Y %H:%M:%S").replace(tzinfo=_CHICAGO)
    return round(local.timestamp() * 1000)


def to_iso_time(time_ms):
    return datetime.fromtimestamp(time_ms / 1000, _CHICAGO).isoformat()
