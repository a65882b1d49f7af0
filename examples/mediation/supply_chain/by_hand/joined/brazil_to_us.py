"""What a US supplier makes of Brazilian events, by way of the European form."""

from . import brazil_to_europe, europe_to_us
from .conversions import by_way_of

EVENTS = by_way_of(brazil_to_europe, europe_to_us)
