"""What headquarters make of events from the fire brigade."""

from .conversions import METRES_PER_FOOT, MILES_PER_HOUR, on_the_plan


def sighting(event):
    return "Sighting", {**event, "area": _region(event["area"])}


def deployment(event):
    return "Deployment", {
        "team": event["team"],
        "area": _region(event["area"]),
        "route": [_place(point) for point in event["route"]],
    }


def hazard(event):
    return "Hazard", {
        "danger": event["danger"],
        "area": _region(event["area"]),
        "spread": event["spread"] * MILES_PER_HOUR,
    }


def team_status(event):
    return "TeamStatus", {**event, "at": _place(event["at"])}


def request(event):
    return "Request", {**event, "at": _place(event["at"])}


def cleared(event):
    return "Cleared", {**event, "area": _region(event["area"])}


def _region(region):
    if region["@type"] == "FireCircle":
        return {
            "@type": "Circle",
            "name": region["title"],
            "centre": _place(region["middle"]),
            "radius": region["radius"] * METRES_PER_FOOT,
        }
    return {
        "@type": "Box",
        "name": region["title"],
        "low": _place(region["south_west"]),
        "high": _place(region["north_east"]),
    }


def _place(point):
    x, y = on_the_plan(point["lat"], point["lon"])
    return {"x": x, "y": y, "accuracy": 100.0}


EVENTS = {
    "FireSighting": sighting,
    "FireDeployment": deployment,
    "FireHazard": hazard,
    "FireTeamStatus": team_status,
    "FireRequest": request,
    "FireCleared": cleared,
}
