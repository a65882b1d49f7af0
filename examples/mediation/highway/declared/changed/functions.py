"""How old and new locations relate."""


def with_altitude(location):
    return {**location, "altitude": 0.0}


def without_altitude(location):
    return {"x": location["x"], "y": location["y"]}
