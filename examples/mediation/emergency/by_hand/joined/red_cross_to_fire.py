"""What the fire brigade makes of events from the Red Cross, by way of headquarters."""

from . import headquarters_to_fire, red_cross_to_headquarters
from .conversions import by_way_of

EVENTS = by_way_of(red_cross_to_headquarters, headquarters_to_fire)
