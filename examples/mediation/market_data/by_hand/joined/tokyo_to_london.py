"""What a desk in London makes of events from Tokyo, by way of New York's form."""

from . import nyse_to_london, tokyo_to_new_york
from .conversions import by_way_of

EVENTS = by_way_of(tokyo_to_new_york, nyse_to_london)
