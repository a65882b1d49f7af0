"""What the radio station makes of the coast's sensors, by way of the control room."""

from . import coast_to_control_room, south_to_radio
from .conversions import by_way_of

EVENTS = by_way_of(coast_to_control_room, south_to_radio)
