"""What a user on Unix is told of a user on Windows."""

from .conversions import to_unix


def component_added(event):
    return "UnixComponentAdded", {**event, "at": _spot(event["at"])}


def connector_added(event):
    return "UnixConnectorAdded", {**event, "at": _spot(event["at"])}


def linked(event):
    return "UnixLinked", {
        "model": event["model"],
        "source": _spot(event["source"]),
        "target": _spot(event["target"]),
    }


def renamed(event):
    return "UnixRenamed", {**event, "at": _spot(event["at"]), "uses": _spots(event["uses"])}


def fault(event):
    return "UnixFault", {**event, "at": _spot(event["at"]), "related": _spots(event["related"])}


def generated(event):
    return "UnixGenerated", {
        "model": event["model"],
        "main": to_unix(event["main"]),
        "files": [to_unix(path) for path in event["files"]],
    }


def opened(event):
    return "UnixOpened", {"user": event["user"], "view": _view(event["view"])}


def _spot(spot):
    return {
        "file": to_unix(spot["path"]),
        "line": spot["start"]["row"] + 1,
        "column": spot["start"]["column"],
    }


def _spots(spots):
    return [_spot(spot) for spot in spots]


def _view(view):
    return {
        "file": to_unix(view["path"]),
        "first": view["top"] + 1,
        "last": view["end"] + 1,
    }


EVENTS = {
    "WinComponentAdded": component_added,
    "WinConnectorAdded": connector_added,
    "WinLinked": linked,
    "WinRenamed": renamed,
    "WinFault": fault,
    "WinGenerated": generated,
    "WinOpened": opened,
}
