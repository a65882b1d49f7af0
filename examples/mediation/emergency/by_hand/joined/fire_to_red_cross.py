"""What the Red Cross makes of events from the fire brigade, by way of headquarters."""

from . import fire_to_headquarters, headquarters_to_red_cross
from .conversions import by_way_of

EVENTS = by_way_of(fire_to_headquarters, headquarters_to_red_cross)
