"""What a Brazilian supermarket makes of US events, by way of the European form."""

from . import europe_to_brazil, us_to_europe
from .conversions import by_way_of

EVENTS = by_way_of(us_to_europe, europe_to_brazil)
