"""What a user with a browser is told of a user on Unix."""

from .conversions import to_link, to_web


def component_added(event):
    return "WebComponentAdded", {**event, "at": to_link(event["at"])}


def connector_added(event):
    return "WebConnectorAdded", {**event, "at": to_link(event["at"])}


def linked(event):
    return "WebLinked", {
        "model": event["model"],
        "source": to_link(event["source"]),
        "target": to_link(event["target"]),
    }


def renamed(event):
    return "WebRenamed", {**event, "at": to_link(event["at"]), "uses": _links(event["uses"])}


def fault(event):
    return "WebFault", {**event, "at": to_link(event["at"]), "related": _links(event["related"])}


def generated(event):
    return "WebGenerated", {
        "model": event["model"],
        "main": to_web(event["main"]),
        "files": [to_web(path) for path in event["files"]],
    }


def opened(event):
    return "WebOpened", {"user": event["user"], "view": _view(event["view"])}


def _links(spots):
    return [to_link(spot) for spot in spots]


def _view(view):
    return {"page": to_web(view["file"]), "first": view["first"], "last": view["last"]}


EVENTS = {
    "UnixComponentAdded": component_added,
    "UnixConnectorAdded": connector_added,
    "UnixLinked": linked,
    "UnixRenamed": renamed,
    "UnixFault": fault,
    "UnixGenerated": generated,
    "UnixOpened": opened,
}
