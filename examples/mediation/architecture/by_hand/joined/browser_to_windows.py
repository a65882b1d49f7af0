"""What a user on Windows is told of a user with a browser, by way of Unix."""

from . import browser_to_unix, unix_to_windows
from .conversions import by_way_of

EVENTS = by_way_of(browser_to_unix, unix_to_windows)
