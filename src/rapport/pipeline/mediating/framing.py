"""From a device's frame to the building's and back, as column operations in the order in which
Python adds up. [ME-14, PI-4]
"""

from __future__ import annotations

from rapport.mediation.conversion.places import ToAbsolute, ToRelative
from rapport.pipeline.mediating.nodes import Arithmetic, Constant, Node, Sum
from rapport.units.coordinates import direction
from rapport.units.quantities import Affine, converter


def fixed_at(numbers: tuple[float, float, float]) -> tuple[Node, ...]:
    """x, y and heading of a device that never moves, and the direction it looks along."""
    return tuple(Constant(each, "number") for each in (*numbers, *direction(numbers[2])))


def framed(
    how: ToAbsolute | ToRelative, x: Node, y: Node, at: tuple[Node, ...]
) -> tuple[Node, Node]:
    """Where it is, or how the device sees it; `at` as `fixed_at` gives it."""
    x, y = (_applied(each, converter(how.unit, "m")) for each in (x, y))
    at_x, at_y, _heading, ahead_x, ahead_y = at
    found: tuple[Node, Node]
    if isinstance(how, ToAbsolute):
        found = (
            Sum(at_x, ((x, ahead_y), (y, ahead_x)), (False, False)),
            Sum(at_y, ((x, ahead_x), (y, ahead_y)), (True, False)),
        )
    else:
        x, y = Sum(x, ((at_x, None),), (True,)), Sum(y, ((at_y, None),), (True,))
        found = (
            Sum(None, ((x, ahead_y), (y, ahead_x)), (False, True)),
            Sum(None, ((x, ahead_x), (y, ahead_y)), (False, False)),
        )
    outward = converter("m", how.to_unit)
    return _applied(found[0], outward), _applied(found[1], outward)


def _applied(node: Node, affine: Affine) -> Node:
    """`Affine.apply` does every step: adding 0.0 makes 0.0 of -0.0."""
    return Arithmetic(node, affine, every=True)
