"""Buckets find together what one runner finds, however the stream is cut and shared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rapport.core.errors import Unsupported
from rapport.kernel.clock import Chance
from rapport.pipeline.datasource.offsets import limit_offset
from rapport.pipeline.streaming.decoder import DETECTIONS, EVENTS
from rapport.pipeline.streaming.live_job import plan_for_live
from rapport.site.site import load_site

_SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))]
_ROUNDS = 5


@pytest.mark.parametrize("seed", _SEEDS)
def test_buckets_and_batches_give_what_one_runner_gives(ways: Any, seed: int) -> None:
    chance = Chance(seed)
    for _ in range(_ROUNDS):
        stream = ways.stream(chance)
        expected = ways.alone(stream)
        for buckets in (1, 2, 7):
            batches = ways.cut(chance, stream)
            assert ways.shared(stream, batches, buckets, chance) == expected


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_backlog_that_is_read_in_turn_gives_what_one_runner_gives(ways: Any, seed: int) -> None:
    """The clock's channel before the events, few rows at a time."""
    chance = Chance(seed)
    for _ in range(_ROUNDS):
        stream = ways.stream(chance)
        ends = {DETECTIONS: len(stream.beats), EVENTS: len(stream.readings)}
        batches, at = [], dict.fromkeys(ends, 0)
        while at != ends:
            before, at = at, limit_offset(at, ends, chance.randint(1, 15), in_turn=True)
            stretches = [(before[EVENTS] + 1, at[EVENTS])] if at[EVENTS] > before[EVENTS] else []
            beats = stream.beats[before[DETECTIONS] : at[DETECTIONS]]
            batches.append(ways.batch(stretches, beats))
        assert ways.shared(stream, batches, 2, chance) == ways.alone(stream)


def test_a_situation_is_refused_with_what_to_do() -> None:
    site = Path(__file__).parents[2] / "data" / "situations"
    plan = load_site(site, policies=["freezer"]).policies["freezer"].plan
    with pytest.raises(Unsupported, match="the situation of policy 'freezer'") as caught:
        plan_for_live(plan)
    assert "on_spark" in caught.value.hint
