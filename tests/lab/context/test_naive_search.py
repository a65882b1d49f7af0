"""The judge itself is judged by the formulas."""

import random
from statistics import mean

import pytest

from rapport_lab.context.formulas import expected_hops, expected_success, slope
from support.judge.naive_search import ask_in_turn, chosen, walk, within

MESH = [[other for other in range(60) if other != each] for each in range(60)]
RING = [[(each - 1) % 12, (each + 1) % 12] for each in range(12)]


@pytest.mark.parametrize("copies", [1, 5])
def test_on_a_mesh_a_walk_that_avoids_where_it_was_needs_n_over_r_plus_1_hops(copies):
    chance = random.Random(copies)
    hops = []
    for _ in range(3_000):
        holders = chance.sample(range(60), copies)
        hops.append(walk(MESH, holders, 0, 100, chance).hops)
    assert mean(hops) == pytest.approx(expected_hops(60, copies), rel=0.05)


def test_success_within_a_limit_is_as_the_formula_says():
    chance = random.Random(1)
    walks = [walk(MESH, chance.sample(range(1, 60), 3), 0, 10, chance) for _ in range(3_000)]
    share = mean(walked.found for walked in walks)
    assert share == pytest.approx(expected_success(60, 3, 10), abs=0.04)


def test_a_dead_end_is_left_backwards_and_the_path_forgets_it():
    line = [[1, 2], [0], [0, 3], [2]]
    walked = [walk(line, {3}, 0, 10, random.Random(seed)) for seed in range(20)]
    assert {(each.hops, tuple(each.path)) for each in walked} == {(2, (0, 2, 3)), (4, (0, 2, 3))}
    assert not walk(line, {9}, 0, 20, random.Random(1)).found


def test_look_ahead_sees_those_beside():
    assert within(RING, 0, 1) == {11, 0, 1}
    assert within(RING, 0, 2) == {10, 11, 0, 1, 2}
    assert walk(RING, {2}, 0, 5, random.Random(1), depth=2).hops == 0


def test_marks_lie_on_the_path_and_are_as_many_as_said():
    chance = random.Random(1)
    assert chosen([1, 2, 3, 4], "none", chance) == []
    assert len(chosen([1, 2, 3, 4], "one", chance)) == 1
    assert len(set(chosen([1, 2, 3, 4, 5], "path", chance)) & {1, 2, 3, 4, 5}) == 3
    assert chosen([], "path", chance) == []


@pytest.mark.parametrize(("marks", "steepness"), [("path", 0.4), ("one", 0.8)])
def test_copies_follow_the_rate_with_the_expected_steepness(marks, steepness):
    chance = random.Random(3)
    n, keys = 300, 30
    neighbours = [chance.sample([o for o in range(n) if o != each], 4) for each in range(n)]
    weights = [1 / (key + 1) for key in range(keys)]
    asked = chance.choices(range(keys), weights, k=4_000)
    told = ask_in_turn(
        neighbours,
        [chance.randrange(n) for _ in range(keys)],
        asked,
        chance,
        marks=marks,
        lifetime=500,
    )
    assert slope(weights, told.copies) == pytest.approx(steepness, abs=0.15)
