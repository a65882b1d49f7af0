"""What the fire brigade makes of events from headquarters."""

from .conversions import METRES_PER_FOOT, MILES_PER_HOUR, off_the_plan


def sighting(event):
    return "FireSighting", {**event, "area": _region(event["area"])}


def deployment(event):
    return "FireDeployment", {
        "team": event["team"],
        "area": _region(event["area"]),
        "route": [_place(point) for point in event["route"]],
    }


def hazard(event):
    return "FireHazard", {
        "danger": event["danger"],
        "area": _region(event["area"]),
        "spread": event["spread"] / MILES_PER_HOUR,
    }


def team_status(event):
    return "FireTeamStatus", {**event, "at": _place(event["at"])}


def request(event):
    return "FireRequest", {**event, "at": _place(event["at"])}


def cleared(event):
    return "FireCleared", {**event, "area": _region(event["area"])}


def evacuation(event):
    return "FireEvacuation", {"area": _region(event["area"]), "shelter": _place(event["shelter"])}


def _region(region):
    if region["@type"] == "Circle":
        return {
            "@type": "FireCircle",
            "title": region["name"],
            "middle": _place(region["centre"]),
            "radius": region["radius"] / METRES_PER_FOOT,
        }
    return {
        "@type": "FireBox",
        "title": region["name"],
        "south_west": _place(region["low"]),
        "north_east": _place(region["high"]),
    }


def _place(point):
    lat, lon = off_the_plan(point["x"], point["y"])
    return {"lat": lat, "lon": lon}


EVENTS = {
    "Sighting": sighting,
    "Deployment": deployment,
    "Hazard": hazard,
    "TeamStatus": team_status,
    "Request": request,
    "Cleared": cleared,
    "Evacuation": evacuation,
}
