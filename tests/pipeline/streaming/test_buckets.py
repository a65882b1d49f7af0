"""Buckets find together what one runner finds, however the stream is cut and shared."""

from __future__ import annotations

from typing import Any

import pytest

from rapport.kernel.clock import Chance
from rapport.pipeline.datasource.offsets import limit_offset
from rapport.pipeline.streaming.decoder import DETECTIONS, EVENTS

_SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 8))]
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


@pytest.mark.parametrize("seed", _SEEDS)
def test_buckets_give_the_situations_and_guarded_matches_of_one_runner(
    ways: Any, seed: int
) -> None:
    chance, told = Chance(seed), 0
    for _ in range(_ROUNDS):
        stream = ways.stateful(chance)
        expected = ways.alone(stream)
        told += len(expected[0])
        for buckets in (1, 2, 7):
            batches = ways.cut(chance, stream)
            assert ways.shared(stream, batches, buckets, chance) == expected
    assert told, "some of them find something"
