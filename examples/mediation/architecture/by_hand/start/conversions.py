"""Where the project lies on each platform."""

_UNIX = "/home/anna/dradel/"
_WINDOWS = "C:\\Projects\\dradel\\"


def to_windows(path):
    return _WINDOWS + path.removeprefix(_UNIX).replace("/", "\\")


def to_unix(path):
    return _UNIX + path.removeprefix(_WINDOWS).replace("\\", "/")
