"""What a user with a browser is told of a user on Windows, by way of Unix."""

from . import unix_to_browser, windows_to_unix
from .conversions import by_way_of

EVENTS = by_way_of(windows_to_unix, unix_to_browser)
