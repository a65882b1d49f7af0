"""What a user on Unix is told of a user with a browser."""

from .conversions import from_link, from_web


def component_added(event):
    return "UnixComponentAdded", {**event, "at": from_link(event["at"])}


def connector_added(event):
    return "UnixConnectorAdded", {**event, "at": from_link(event["at"])}


def linked(event):
    return "UnixLinked", {
        "model": event["model"],
        "source": from_link(event["source"]),
        "target": from_link(event["target"]),
    }


def renamed(event):
    return "UnixRenamed", {**event, "at": from_link(event["at"]), "uses": _spots(event["uses"])}


def fault(event):
    return "UnixFault", {**event, "at": from_link(event["at"]), "related": _spots(event["related"])}


def generated(event):
    return "UnixGenerated", {
        "model": event["model"],
        "main": from_web(event["main"]),
        "files": [from_web(path) for path in event["files"]],
    }


def opened(event):
    return "UnixOpened", {"user": event["user"], "view": _view(event["view"])}


def _spots(links):
    return [from_link(link) for link in links]


def _view(view):
    return {"file": from_web(view["page"]), "first": view["first"], "last": view["last"]}


EVENTS = {
    "WebComponentAdded": component_added,
    "WebConnectorAdded": connector_added,
    "WebLinked": linked,
    "WebRenamed": renamed,
    "WebFault": fault,
    "WebGenerated": generated,
    "WebOpened": opened,
}
