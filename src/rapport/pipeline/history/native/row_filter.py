"""An interest asked of columns of numpy in which numbers stand for identities: for tasks that hold
their rows so. [PI-5]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rapport.pipeline.history.native.cover import Cover, cover_of
from rapport.pipeline.history.native.interest import Interest, Keys
from rapport.pipeline.history.native.values import Boxes, Floats, Interval, Numbers, Texts, Values

Mask = npt.NDArray[np.bool_]
Codes = npt.NDArray[Any]
Part = Callable[[str], npt.NDArray[Any]]
"""The column of a part (`value`, `x`, `y`) of the rows asked about; nothing is asked for twice."""


class RowFilter:
    """Asks each identity once, each value by a few comparisons: some 5 to 20 ns a row.

    Of rows of one stream at a time. Watched sources and the moment of the begin (`Interest.sources`
    and `began`) are the caller's.
    """

    def __init__(self, interest: Interest) -> None:
        self.interest = interest
        self._members: dict[Keys, Mask] = {}
        self._squares: dict[Boxes, _Squares] = {}

    def wanted(self, stream: str, known: Sequence[str], codes: Codes, part: Part) -> Mask:
        """Which rows of a stream matter: `codes` are the places of their keys in `known`, which
        may grow from call to call but not change.
        """
        found = np.zeros(len(codes), np.bool_)
        columns: dict[str, npt.NDArray[Any]] = {}

        def once(name: str) -> npt.NDArray[Any]:
            if name not in columns:
                columns[name] = part(name)
            return columns[name]

        for one in self.interest.of_stream(stream):
            mask = None if one.keys is None else self._member(one.keys, known)[codes]
            if one.values is not None:
                fits = self._fits(one.values, once)
                mask = fits if mask is None else mask & fits
            if mask is None:
                return np.ones(len(codes), np.bool_)
            found |= mask
        return found

    def _member(self, keys: Keys, known: Sequence[str]) -> Mask:
        """One answer per identity known so far."""
        answers = self._members.get(keys, np.zeros(0, np.bool_))
        if len(answers) < len(known):
            new = [key in keys for key in known[len(answers) :]]
            answers = self._members[keys] = np.concatenate((answers, np.array(new, np.bool_)))
        return answers

    def _fits(self, values: Values, part: Part) -> Mask:
        if isinstance(values, Numbers):
            numbers = part("value")
            if numbers.dtype == object:  # booleans of which some are missing
                numbers = np.array([np.nan if one is None else one for one in numbers.tolist()])
            return _any_of([_within(numbers, one) for one in values.intervals], len(numbers))
        if isinstance(values, Texts):
            return _listed(part("value"), values.texts)
        if values not in self._squares:
            self._squares[values] = _Squares(cover_of(values.array()))
        return self._squares[values].hold(part("x"), part("y"))


class _Squares:
    """A cover, its squares as a table of answers."""

    def __init__(self, cover: Cover) -> None:
        self._cover = cover
        cells = np.array(cover.cells)
        across, upward = (cells // cover.stride).astype(int), (cells % cover.stride).astype(int)
        # A rim of squares that are not covered, for all points beyond.
        shape = (across.max(initial=-1) + 2, upward.max(initial=-1) + 2)
        self._covered = np.zeros(shape, np.bool_)
        self._covered[across, upward] = True

    def hold(self, x: Floats, y: Floats) -> Mask:
        """Which points lie in what is covered."""
        cover = self._cover
        found = _in_box(x, y, cover.hull)
        if not cover.cells and len(cover.boxes) == 1:
            return found
        rows = np.flatnonzero(found)
        x, y = x[rows], y[rows]
        near = _any_of([_in_box(x, y, box) for box in cover.boxes], len(rows))
        if cover.cells:
            near |= self._covered[self._square(x, 0), self._square(y, 1)]
        found[rows] = near
        return found

    def _square(self, values: Floats, axis: int) -> npt.NDArray[np.int64]:
        rim = self._covered.shape[axis] - 1
        with np.errstate(over="ignore"):
            exact = np.floor((values - self._cover.low[axis]) / self._cover.width[axis])
        # What lies before the first square counts as beyond the last.
        return np.asarray(np.where(exact < 0, rim, np.minimum(exact, rim)), np.int64)


def _in_box(x: Floats, y: Floats, box: tuple[float, float, float, float]) -> Mask:
    return np.asarray((box[0] <= x) & (x <= box[2]) & (box[1] <= y) & (y <= box[3]), np.bool_)


def _within(numbers: npt.NDArray[Any], one: Interval) -> Mask:
    above = numbers > one.low if one.open_low else numbers >= one.low
    below = numbers < one.high if one.open_high else numbers <= one.high
    return np.asarray(above & below, np.bool_)


def _listed(values: npt.NDArray[Any], texts: frozenset[str]) -> Mask:
    if values.dtype == np.bool_:
        values = np.where(values, "true", "false")
    answers = {True: "true" in texts, False: "false" in texts}
    found = (
        answers[value] if isinstance(value, bool) else value in texts for value in values.tolist()
    )
    return np.fromiter(found, np.bool_, len(values))


def _any_of(masks: list[Mask], rows: int) -> Mask:
    return np.asarray(np.logical_or.reduce(masks), np.bool_) if masks else np.zeros(rows, np.bool_)
