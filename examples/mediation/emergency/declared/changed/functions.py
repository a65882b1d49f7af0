"""How points with and without accuracy relate: a device that does not tell may be 100 m off."""


def with_accuracy(point):
    return {**point, "accuracy": 100.0}


def without_accuracy(point):
    return {"x": point["x"], "y": point["y"]}
