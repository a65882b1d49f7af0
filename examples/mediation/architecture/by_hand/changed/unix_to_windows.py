"""What a user on Windows is told of a user on Unix."""

from .conversions import to_windows


def component_added(event):
    return "WinComponentAdded", {**event, "at": _spot(event["at"])}


def connector_added(event):
    return "WinConnectorAdded", {**event, "at": _spot(event["at"])}


def linked(event):
    return "WinLinked", {
        "model": event["model"],
        "source": _spot(event["source"]),
        "target": _spot(event["target"]),
    }


def renamed(event):
    return "WinRenamed", {**event, "at": _spot(event["at"]), "uses": _spots(event["uses"])}


def fault(event):
    return "WinFault", {**event, "at": _spot(event["at"]), "related": _spots(event["related"])}


def generated(event):
    return "WinGenerated", {
        "model": event["model"],
        "main": to_windows(event["main"]),
        "files": [to_windows(path) for path in event["files"]],
    }


def opened(event):
    return "WinOpened", {"user": event["user"], "view": _view(event["view"])}


def _spot(spot):
    return {
        "path": to_windows(spot["file"]),
        "start": {"row": spot["line"] - 1, "column": spot["column"]},
    }


def _spots(spots):
    return [_spot(spot) for spot in spots]


def _view(view):
    return {
        "path": to_windows(view["file"]),
        "top": view["first"] - 1,
        "end": view["last"] - 1,
    }


EVENTS = {
    "UnixComponentAdded": component_added,
    "UnixConnectorAdded": connector_added,
    "UnixLinked": linked,
    "UnixRenamed": renamed,
    "UnixFault": fault,
    "UnixGenerated": generated,
    "UnixOpened": opened,
}
