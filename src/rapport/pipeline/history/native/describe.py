"""An interest in words, for dry runs and people. [PI-5]"""

from __future__ import annotations

import math

from rapport.pipeline.history.native.interest import Interest, Wanted
from rapport.pipeline.history.native.values import Boxes, Interval, Numbers, Values
from rapport.policy.operators.base import PullData

_MOST_PARTS = 4
_FEW = 3


def described(interest: Interest, pull: PullData) -> str:
    """`person.position of 40 of 200 person, inside 30 rectangles; all of source gate`."""
    parts = [_wanted(part, pull) for part in interest.wanted]
    parts = parts[:_MOST_PARTS] + (
        [f"{len(parts) - _MOST_PARTS} more"] * (len(parts) > _MOST_PARTS)
    )
    parts += [f"all of source {name}" for name in sorted(interest.sources)]
    return "; ".join(parts) or "nothing at all"


def _wanted(part: Wanted, pull: PullData) -> str:
    found = part.stream
    if part.keys is not None:
        concept = part.stream.partition(".")[0]
        known = len(pull.instances(concept))
        whose = ", ".join(sorted(part.keys)) if len(part.keys) <= _FEW else f"{len(part.keys)}"
        found += f" of {whose} of {known} {concept}"
    if part.values is not None:
        found += f" {_values(part.values)}"
    return found


def _values(values: Values) -> str:
    if isinstance(values, Numbers):
        return " or ".join(_interval(one) for one in values.intervals)
    if isinstance(values, Boxes):
        count = len(values.array())
        return "inside one rectangle" if count == 1 else f"inside {count} rectangles"
    named = sorted(repr(text) for text in values.texts)
    return f"among {', '.join(named[:_FEW])}{' and others' if len(named) > _FEW else ''}"


def _interval(one: Interval) -> str:
    if one.low == one.high:
        return f"= {one.low:g}"
    ends = []
    if one.low > -math.inf:
        ends.append(f"{'>' if one.open_low else '>='} {one.low:g}")
    if one.high < math.inf:
        ends.append(f"{'<' if one.open_high else '<='} {one.high:g}")
    return " and ".join(ends) or "any number"
