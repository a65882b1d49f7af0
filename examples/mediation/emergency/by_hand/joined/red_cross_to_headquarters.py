"""What headquarters make of events from the Red Cross."""

from .conversions import from_camp


def sighting(event):
    return "Sighting", {**event, "area": _region(event["area"])}


def deployment(event):
    return "Deployment", {
        "team": event["team"],
        "area": _region(event["area"]),
        "route": [from_camp(point) for point in event["route"]],
    }


def hazard(event):
    return "Hazard", {
        "danger": event["danger"],
        "area": _region(event["area"]),
        "spread": event["spread"] / 3.6,
    }


def team_status(event):
    return "TeamStatus", {**event, "at": from_camp(event["at"])}


def request(event):
    return "Request", {**event, "at": from_camp(event["at"])}


def cleared(event):
    return "Cleared", {**event, "area": _region(event["area"])}


def _region(region):
    if region["@type"] == "RcCircle":
        return {
            "@type": "Circle",
            "name": region["name"],
            "centre": from_camp(region["around"]),
            "radius": region["radius"] * 1000,
        }
    return {
        "@type": "Box",
        "name": region["name"],
        "low": from_camp(region["from"]),
        "high": from_camp(region["to"]),
    }


EVENTS = {
    "RcSighting": sighting,
    "RcDeployment": deployment,
    "RcHazard": hazard,
    "RcTeamStatus": team_status,
    "RcRequest": request,
    "RcCleared": cleared,
}
