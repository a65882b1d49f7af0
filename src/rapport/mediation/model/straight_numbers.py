"""How large the numbers of a straight way can become, known before the first event: so that results
need not be looked at one by one. [ME-8]
"""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

from rapport.mediation.model.conversions import Formula, UnitChange
from rapport.mediation.model.plan import Convert, Part
from rapport.units.quantities import Affine

MOST = 1e100
"""Numbers to calculate with that are larger are nothing usual; hardly a formula makes such a number
too large for a float.
"""
Number = Annotated[float, msgspec.Meta(ge=-MOST, le=MOST)]
_NEARLY_TOO_LARGE = 1e300


def affine_of(part: Part) -> Affine:
    """The arithmetic of a part that is a formula."""
    assert isinstance(part.step, Convert)
    how = part.step.conversion.how
    assert isinstance(how, (Formula, UnitChange))
    return how.affine()


def most_after(affine: Affine, given: float) -> float:
    """How large results are at most, whatever their sign, and what they are calculated by; infinite
    where that comes near what a float can be.

    >>> most_after(Affine(5.0, -160.0, 9.0), 320.0), most_after(Affine(1e250, 0.0, 1.0), MOST)
    (195.55555555555554, inf)
    """
    if affine.divide == 0.0:
        return math.inf
    product = given * abs(affine.multiply) + abs(affine.add)
    result = product / abs(affine.divide)
    return result if max(product, result) < _NEARLY_TOO_LARGE else math.inf
