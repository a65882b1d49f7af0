"""Buckets find together what one runner finds, however the stream is cut and shared."""

from __future__ import annotations

from typing import Any

import pytest

from rapport.kernel.chance import Chance

_SEEDS = 8
_ROUNDS = 5


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_buckets_and_batches_give_what_one_runner_gives(ways: Any, seed: int) -> None:
    chance = Chance(seed)
    for _ in range(_ROUNDS):
        stream = ways.stream(chance)
        expected = ways.alone(stream)
        for buckets in (1, 2, 7):
            batches = ways.cut(chance, stream)
            assert ways.shared(stream, batches, buckets, chance) == expected
