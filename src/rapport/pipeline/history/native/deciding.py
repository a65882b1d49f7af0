"""Which values of an event can make a term hold, by what the tables offer it to meet. [PI-5]"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rapport.pipeline.history.native.possible import Possible, satisfying
from rapport.pipeline.history.native.values import (
    BOOLEANS,
    Boxes,
    Texts,
    Values,
    boxes_around,
    compared_with,
    texts_of,
)
from rapport.policy import measures, relations
from rapport.policy.language.tree import Operator
from rapport.policy.operators.base import PullData
from rapport.policy.plan import (
    Compared,
    Constant,
    LookedUp,
    Measure,
    Operand,
    QueryTerm,
    ReadingTerm,
    Side,
    SideValue,
)

FLIPPED: dict[Operator, Operator] = {
    "<": ">",
    ">": "<",
    "<=": ">=",
    ">=": "<=",
    "=": "=",
    "!=": "!=",
}
Column = npt.NDArray[Any]


class Deciding:
    """One term of which one event at a time decides, beside the tables."""

    def __init__(self, term: QueryTerm | ReadingTerm, pull: PullData, possible: Possible) -> None:
        self._term, self._pull, self._possible = term, pull, possible
        self._sides = (term.first, term.second)
        self._place = 0 if term.first.stream is not None else 1

    def values(self) -> Values | None:
        """The values among which are all that can make it hold; None: any."""
        if self._term.compared is not None:
            return self._by_comparison(self._term.compared)
        relation = relations.get(self._term.function)
        other = self._sides[1 - self._place]
        if relation.shape == "contains":
            return Boxes.of(_wide(self._column(other), 4)) if self._place == 0 else None
        if relation.shape == "distance":
            reach = float(self._term.parameter or 0.0)
            return _around(_wide(self._column(other), 2), reach)
        if relation is relations.SAME:
            return texts_of(text for text in self._column(other).tolist() if text is not None)
        return None

    def _by_comparison(self, compared: Compared) -> Values | None:
        """Where one operand is what the event brings, by what the other can be."""
        left, operator, right = compared.left, compared.operator, compared.right
        for own, how, other in ((left, operator, right), (right, FLIPPED[operator], left)):
            if isinstance(own, Measure):
                near = self._near(own, how, other)
                if near is not None:
                    return near
            elif self._is_own(own) and not self._reads_own(other):
                return self._against(how, self._offered(other))
        return None

    def _near(self, measure: Measure, operator: Operator, bound: Operand) -> Boxes | None:
        """`distance(A, S) < c` of the event's point and one of the tables."""
        if operator not in ("<", "<=") or measures.get(measure.function).shape != "distance":
            return None
        reaches = self._offered(bound) if isinstance(bound, Constant | LookedUp) else None
        others = [value for value in measure.of if not self._is_own(value)]
        if reaches is None or len(others) != 1:
            return None
        known = [float(reach) for reach in reaches if not math.isnan(reach)]
        side = self._sides[others[0].side]
        points = _wide(self._column(side, others[0].attribute), 2)
        return _around(points, max(max(known, default=0.0), 0.0))

    def _is_own(self, operand: Operand) -> bool:
        """Whether it is the value that the event brings."""
        own = self._sides[self._place]
        return (
            isinstance(operand, SideValue)
            and operand.attribute == own.attribute
            and self._sides[operand.side].stream is not None
        )

    def _reads_own(self, operand: Operand) -> bool:
        if isinstance(operand, Measure | LookedUp):
            return any(self._is_own(value) for value in operand.of)
        return self._is_own(operand)

    def _offered(self, operand: Operand) -> Sequence[Any] | None:
        """All that an operand of the tables can be; None where it is not known."""
        if isinstance(operand, Constant):
            return [operand.value]
        if isinstance(operand, LookedUp):
            return list(self._pull.pairs(operand.function).values())
        if isinstance(operand, Measure):
            return None
        if operand.attribute == "id":
            return None
        column = self._column(self._sides[operand.side], operand.attribute)
        return None if column.ndim > 1 else list(column.tolist())

    def _against(self, operator: Operator, offered: Sequence[Any] | None) -> Values | None:
        if offered is None:
            return None
        known = [value for value in offered if value is not None]
        if not known:
            return Texts(frozenset())
        if all(isinstance(value, float | int) and not isinstance(value, bool) for value in known):
            return compared_with(operator, known)
        if operator != "=":
            return None
        return texts_of(text for value in known for text in _as_written(value))

    def _column(self, side: Side, attribute: str = "") -> Column:
        """What the tables give of an attribute for those who can stand at a side."""
        instances = self._pull.instances(side.concept)
        column = instances.columns.get(attribute or side.attribute)
        if column is None:
            return np.empty(0, object)
        allowed = satisfying(side, self._pull, self._possible)
        if allowed is None:
            return column
        rows = instances.rows([identity for identity in instances.ids if identity in allowed])
        return np.asarray(column[rows])


def _around(points: Column, reach: float) -> Boxes | None:
    boxes = boxes_around(points, reach)
    return None if boxes is None else Boxes.of(boxes)


def _as_written(value: Any) -> tuple[str, ...]:
    """The texts of readings that equal a value; one of a boolean may be spelt otherwise."""
    text, spelt = str(value), str(value).lower()
    return (text, spelt) if spelt in BOOLEANS else (text,)


def _wide(column: Column, parts: int) -> Column:
    """A column of points or rectangles; empty where the tables do not give it."""
    return column if column.ndim == 2 else np.empty((0, parts), np.float64)
