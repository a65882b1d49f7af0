"""Where the project lies on each platform, and how lines are counted."""

UNIX = "/home/anna/dradel/"
WINDOWS = "C:\\Projects\\dradel\\"


def from_unix(path):
    return path.removeprefix(UNIX)


def to_unix(path):
    return UNIX + path


def from_windows(path):
    return path.removeprefix(WINDOWS).replace("\\", "/")


def to_windows(path):
    return WINDOWS + path.replace("/", "\\")


def to_line(row):
    return row + 1


def to_row(line):
    return line - 1
