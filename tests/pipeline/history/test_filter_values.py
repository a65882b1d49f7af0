"""Sets of values: what they hold, joined and compared; squares that lose no point."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rapport.kernel.clock import Chance
from rapport.pipeline.history.reading_filter import (
    Boxes,
    Interval,
    ListedTexts,
    Numbers,
    ReadingSelection,
    RowFilter,
    WantedReadings,
    boxes_around,
    compared_with,
    is_nothing,
    joined_intervals,
    texts_of,
    union,
)
from rapport.policy.operators.columns import OPERATIONS
from rapport.policy.relations import INSIDE, WITHIN

ENDS = (-math.inf, -1.5, -0.0, 0.0, 1.0, 1.0000000000000002, 2.0, 1e300, math.inf)
HUGE = 1e308


def holds(numbers: Numbers, value: float) -> bool:
    return any(
        (one.low < value or (value == one.low and not one.open_low))
        and (value < one.high or (value == one.high and not one.open_high))
        for one in numbers.intervals
    )


@pytest.mark.parametrize("operator", list(OPERATIONS))
def test_compared_numbers_are_those_that_stand_so_to_one_of_the_bounds(operator: str) -> None:
    chance = Chance(1)
    for _ in range(200):
        bounds = [chance.choice((*ENDS, math.nan)) for _ in range(chance.randint(0, 3))]
        found = compared_with(operator, bounds)
        for value in ENDS:
            expected = any(
                OPERATIONS[operator](value, bound) for bound in bounds if not math.isnan(bound)
            )
            assert holds(found, value) or not expected
            if operator != "!=" or len(set(bounds)) < 2:
                assert holds(found, value) == expected
        assert not holds(found, math.nan)


def test_joined_intervals_hold_what_each_held_and_nothing_else() -> None:
    chance = Chance(2)
    for _ in range(500):
        some = []
        for _ in range(chance.randint(1, 5)):
            low, high = sorted((chance.choice(ENDS), chance.choice(ENDS)))
            opened = (chance.choice((True, False)), chance.choice((True, False)))
            some.append(Interval(low, high, *opened))
        joined = joined_intervals(some)
        for value in ENDS:
            assert holds(joined, value) == any(holds(Numbers((one,)), value) for one in some)


def test_too_many_intervals_or_texts_are_taken_together() -> None:
    points = [Interval(float(number), float(number)) for number in range(100)]
    assert joined_intervals(points) == Numbers((Interval(0.0, 99.0),))
    assert texts_of(str(number) for number in range(2_000)) is None
    assert union([ListedTexts(frozenset("a")), ListedTexts(frozenset("b"))]) == ListedTexts(
        frozenset("ab")
    )
    assert union([ListedTexts(frozenset("a")), Numbers(())]) is None
    assert is_nothing(Boxes.of(np.array([[1.0, 1.0, 0.0, 2.0], [math.nan, 0.0, 1.0, 1.0]])))


def varied_boxes(chance: Chance, count: int) -> np.ndarray:
    """Rectangles on a grid, some without width, endless, huge, or the wrong way round."""
    rows = []
    for _ in range(count):
        x, y = chance.randint(-4, 4), chance.randint(-4, 4)
        row = [x, y, x + chance.randint(0, 3), y + chance.randint(0, 3)]
        if chance.randint(0, 9) == 0:
            row[chance.randint(0, 3)] = chance.choice((math.inf, -math.inf, HUGE, -HUGE, math.nan))
        if chance.randint(0, 19) == 0:
            row = [-HUGE, -HUGE, HUGE, HUGE]
        rows.append(row)
    return np.array(rows, np.float64)


def varied_points(chance: Chance, count: int) -> np.ndarray:
    odd = (math.inf, -math.inf, math.nan, HUGE, -HUGE, 1e-320, -0.0)
    rows = [
        [
            chance.choice(odd) if chance.randint(0, 15) == 0 else chance.randint(-10, 14) / 2
            for _ in range(2)
        ]
        for _ in range(count)
    ]
    return np.array(rows, np.float64)


def inside_pairs(points: np.ndarray, boxes: np.ndarray) -> set[tuple[int, int]]:
    owners = np.repeat(np.arange(len(points)), len(boxes))
    others = np.tile(np.arange(len(boxes)), len(points))
    mask = INSIDE.holds_many(points[owners], boxes[others], None)
    return set(zip(owners[mask].tolist(), others[mask].tolist(), strict=True))


@pytest.mark.parametrize("seed", range(30))
def test_a_filter_by_many_boxes_keeps_every_point_in_one_of_them(seed: int) -> None:
    chance = Chance(seed)
    boxes = Boxes.of(varied_boxes(chance, chance.choice((1, 8, 9, 300))))
    points, nobody = varied_points(chance, 300), np.zeros(300, np.int64)
    inside = {owner for owner, _ in inside_pairs(points, boxes.array())}

    def part(name: str) -> np.ndarray:
        return points[:, "xy".index(name)]

    mask = RowFilter(WantedReadings((ReadingSelection("a.b", None, boxes),))).wanted(
        "a.b", ["k"], nobody, part
    )
    kept = set(np.flatnonzero(mask).tolist())
    assert inside <= kept
    assert kept <= set(np.flatnonzero(~np.isnan(points).any(axis=1)).tolist())


def test_one_box_far_away_leaves_the_squares_of_others_narrow() -> None:
    numbers = np.random.default_rng(7)
    corner = numbers.uniform(0, 1_000, (500, 2))
    near = np.hstack((corner, corner + 5))
    far = np.array([[1e300, 1e300, 1e301, 1e301], [-np.inf, 0.0, np.inf, 0.0]])
    boxes = Boxes.of(np.vstack((near, far)))
    points = numbers.uniform(0, 1_000, (10_000, 2))

    def part(name: str) -> np.ndarray:
        return points[:, "xy".index(name)]

    chosen = RowFilter(WantedReadings((ReadingSelection("a.b", None, boxes),)))
    mask = chosen.wanted("a.b", ["k"], np.zeros(len(points), np.int64), part)
    inside = {owner for owner, _ in inside_pairs(points[:500], boxes.array())}
    assert inside <= set(np.flatnonzero(mask[:500]).tolist())
    assert mask.mean() < 0.1  # 1.25 % of the ground is in a box


def test_boxes_around_points_hold_all_that_counts_as_within_reach() -> None:
    chance = np.random.default_rng(5)
    for reach in (0.0, 1e-200, 1e-155, 1e-3, 5.0, 1e9, 1e150):
        points = chance.uniform(-10, 10, (300, 2)) * 10.0 ** chance.integers(-170, 3, (300, 1))
        turn = chance.uniform(0, 7, 300)
        others = points + reach * np.column_stack((np.cos(turn), np.sin(turn)))
        boxes = boxes_around(points, reach)
        assert boxes is not None
        near = WITHIN.holds_many(points, others, reach)
        assert INSIDE.holds_many(others, boxes, None)[near].all()
        assert near.any()
    assert boxes_around(points, 1e200) is None
    assert boxes_around(points, math.inf) is None
