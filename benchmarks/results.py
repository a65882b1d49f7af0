"""The fixed form of a benchmark's results; a goal is an issue's number or none. [UX-3]"""

from __future__ import annotations

Result = dict[str, object]


def rate(metric: str, value: float, unit: str, goal: float | None = None) -> Result:
    """A figure that should be high."""
    return _result(metric, value, unit, "higher", goal, None if goal is None else value >= goal)


def limit(metric: str, value: float, unit: str, goal: float | None = None) -> Result:
    """A figure that should be low."""
    return _result(metric, value, unit, "lower", goal, None if goal is None else value <= goal)


def absent(metric: str, unit: str) -> Result:
    """What could not be measured here: never a pass."""
    return _result(metric, 0, unit, "higher", None, None)


def share(values: list[float], percent: int) -> float:
    """The value below which so many percent lie.

    >>> share([3.0, 1.0, 2.0], 50)
    2.0
    """
    ordered = sorted(values)
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)]


def _result(
    metric: str, value: float, unit: str, better: str, goal: float | None, ok: bool | None
) -> Result:
    shown = round(value) if value >= 1000 else round(value, 3)
    return {
        "metric": metric,
        "value": shown,
        "unit": unit,
        "better": better,
        "goal": goal,
        "ok": ok,
    }
