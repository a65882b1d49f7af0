"""Where the project lies on each platform."""

import re
from urllib.parse import quote, unquote

_UNIX = "/home/anna/dradel/"
_WINDOWS = "C:\\Projects\\dradel\\"
_WEB = "https://dradel.example/"


def to_windows(path):
    return _WINDOWS + path.removeprefix(_UNIX).replace("/", "\\")


def to_unix(path):
    return _UNIX + path.removeprefix(_WINDOWS).replace("\\", "/")


def to_web(path):
    return _WEB + quote(path.removeprefix(_UNIX))


def from_web(address):
    return _UNIX + unquote(address.removeprefix(_WEB))


def to_link(spot):
    return f"{to_web(spot['file'])}#L{spot['line']}C{spot['column']}"


def from_link(link):
    address, line, column = re.fullmatch(r"(.*)#L(\d+)C(\d+)", link).groups()
    return {"file": from_web(address), "line": int(line), "column": int(column)}


def by_way_of(first, second):
    """The events of the first module as the second would have them of the participant between."""

    def then(convert):
        def both(event):
            kind, between = convert(event)
            return second.EVENTS[kind](between)

        return both

    return {kind: then(convert) for kind, convert in first.EVENTS.items()}
