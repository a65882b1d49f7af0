"""What the Red Cross makes of events from headquarters."""

from .conversions import to_camp


def sighting(event):
    return "RcSighting", {**event, "area": _region(event["area"])}


def deployment(event):
    return "RcDeployment", {
        "team": event["team"],
        "area": _region(event["area"]),
        "route": [to_camp(point) for point in event["route"]],
    }


def hazard(event):
    return "RcHazard", {
        "danger": event["danger"],
        "area": _region(event["area"]),
        "spread": event["spread"] * 3.6,
    }


def team_status(event):
    return "RcTeamStatus", {**event, "at": to_camp(event["at"])}


def request(event):
    return "RcRequest", {**event, "at": to_camp(event["at"])}


def cleared(event):
    return "RcCleared", {**event, "area": _region(event["area"])}


def _region(region):
    if region["@type"] == "Circle":
        return {
            "@type": "RcCircle",
            "name": region["name"],
            "around": to_camp(region["centre"]),
            "radius": region["radius"] / 1000,
        }
    return {
        "@type": "RcBox",
        "name": region["name"],
        "from": to_camp(region["low"]),
        "to": to_camp(region["high"]),
    }


EVENTS = {
    "Sighting": sighting,
    "Deployment": deployment,
    "Hazard": hazard,
    "TeamStatus": team_status,
    "Request": request,
    "Cleared": cleared,
}
