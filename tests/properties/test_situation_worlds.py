"""The random worlds and policies with situations are what property tests need: policies parse and
compile, all kinds occur, most begin something; and the judge misses no instant. [SI-11]
"""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.core.detection import detection_lines
from rapport.kernel.clock import Chance
from rapport.policy.compiler.compile import CompiledSituation, compile_situation
from support.examples import examples
from support.situation_worlds import (
    NAME,
    SituationWorld,
    judge_lines,
    judge_world,
    situation_trials,
    varied_situation,
)

KINDS = (
    *("mean of", "min of", "max of", "median of", "percentile ", "sum of", "change of", "rate of"),
    *(
        "count of position",
        "count of temperature",
        "count of (",
        " readings)",
        "in degC",
        "in degF",
    ),
    *("some ", "no person", "at least 1 ", "at least 2 ", "at most 1 ", "no event of", ") for "),
    *("no temperature of", "no position of", "between ", "is one of", "is not one of", "NOT ("),
    *("time is between", "time is not", " on holidays", " in 'Asia", "cleared by", "at most once"),
    *("may be the same", "distance(", "minimumDistance(", " is inside ", " is within ", "employee"),
    *(" AND ", " OR ", "actions when cleared", "is not inside", "is not between", "limit of"),
)


@pytest.mark.slow
def test_policies_compile_have_all_kinds_and_most_begin_something() -> None:
    met: Counter[str] = Counter()
    number = 120
    for seed in range(3 * number):
        world, text = varied_situation(Chance(seed))
        compiled = compile_situation(text, name=NAME, ontology=world.ontology)
        assert isinstance(compiled, CompiledSituation)
        met.update(kind for kind in KINDS if kind in text)
        if seed >= number:
            continue
        found = judge_world(world, text)
        met["begins"] += any(one.began is None for one in found.detections)
        met["ends"] += any(one.began is not None for one in found.detections)
        met["causes"] += any(one.causes for one in found.detections)
        met["unknown"] += any(one.unknown_since is not None for one in found.open)
        met["left out"] += bool(found.suppressed or found.pending)
    assert met["begins"] > number * 0.55, met
    assert met["ends"] > number / 3, met
    assert met["causes"] > number / 3, met
    assert met["unknown"] > number * 0.05, met
    assert met["left out"] > number * 0.01, met
    assert [kind for kind in KINDS if not met[kind]] == []


@settings(max_examples=examples(20))
@given(situation_trials(), st.lists(st.integers(0, 90_000), max_size=40))
def test_looking_at_more_instants_changes_nothing(
    trial: tuple[SituationWorld, str], instants: list[int]
) -> None:
    world, text = trial
    first = world.readings[0].time - 1000
    more = judge_world(world, text, also_at=[first + instant for instant in instants])
    assert detection_lines(more.detections) == judge_lines(world, text)


@settings(max_examples=examples(15))
@given(st.integers(0, 2**32))
def test_the_order_of_the_readings_does_not_matter(seed: int) -> None:
    chance = Chance(seed)
    world, text = varied_situation(chance)
    readings = tuple(chance.sample(world.readings, len(world.readings)))
    moved = msgspec.structs.replace(world, readings=readings)
    assert judge_lines(moved, text) == judge_lines(world, text)
