"""Where the project lies on each platform, and how lines are counted."""

import re
from urllib.parse import quote, unquote

UNIX = "/home/anna/dradel/"
WINDOWS = "C:\\Projects\\dradel\\"
WEB = "https://dradel.example/"


def from_unix(path):
    return path.removeprefix(UNIX)


def to_unix(path):
    return UNIX + path


def from_windows(path):
    return path.removeprefix(WINDOWS).replace("\\", "/")


def to_windows(path):
    return WINDOWS + path.replace("/", "\\")


def from_web(address):
    return unquote(address.removeprefix(WEB))


def to_web(path):
    return WEB + quote(path)


def from_link(link):
    address, line, column = re.fullmatch(r"(.*)#L(\d+)C(\d+)", link).groups()
    return {"file": from_web(address), "line": int(line), "column": int(column)}


def to_link(spot):
    return f"{to_web(spot['file'])}#L{spot['line']}C{spot['column']}"


def to_line(row):
    return row + 1


def to_row(line):
    return line - 1
