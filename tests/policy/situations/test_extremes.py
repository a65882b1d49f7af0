"""The largest and smallest values of windows, over many readings and any batches. [SI-6]"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import pytest

from rapport.policy.compiler.compile import compile_situation
from rapport.policy.situations.situation_operator import SituationOperator
from support.judge.holding import Reading
from support.situation_worlds import NAME, ONTOLOGY, SituationTables
from support.varied.worlds import readings_batch

WINDOW_MS = 20_000
COUNT = 1_500


def expected(times: list[int], values: list[float], keys: list[str], largest: bool) -> list[int]:
    """When the extreme value begins to be beyond the limit, at any of the stations."""
    found = []
    for key in sorted(set(keys)):
        own = [place for place in range(COUNT) if keys[place] == key]
        own_times = [times[place] for place in own]
        instants = sorted({*own_times, *(time + WINDOW_MS for time in own_times)})
        was = False
        for instant in (one for one in instants if one <= times[-1]):
            low = bisect_right(own_times, instant - WINDOW_MS)
            high = bisect_right(own_times, instant)
            window = [values[own[place]] for place in range(low, high)]
            if not window:
                continue  # unknown: neither begins nor ends
            holds = max(window) > 30 if largest else min(window) < 22
            if holds and not was:
                found.append(instant)
            was = holds
    return sorted(found)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("batch", [3, 100, COUNT])
def test_extremes_are_those_of_every_window(largest: bool, batch: int) -> None:
    chance = np.random.default_rng(7)
    times = np.cumsum(chance.integers(0, 900, COUNT)).tolist()
    values = np.round(chance.normal(26, 2, COUNT), 1).tolist()
    keys = chance.choice(["2", "10", "x1"], COUNT).tolist()
    what = "max of temperature of S in the last 20 s above 30 degC"
    if not largest:
        what = "min of temperature of S in the last 20 s below 22 degC"
    text = f"concepts\n  station S\nsituation\n  {what}\nactions\n  look\n"
    plan = compile_situation(text, name=NAME, ontology=ONTOLOGY).plan
    tables = SituationTables().version().pull
    operator = SituationOperator([plan], tables, ONTOLOGY.sources, None)
    readings = [
        Reading(time, f"e{place:04}", "station.temperature", key, (value,), "hut")
        for place, (time, key, value) in enumerate(zip(times, keys, values, strict=True))
    ]
    found, first = [], 0
    while first < COUNT:
        end = min(first + batch, COUNT)
        while end < COUNT and times[end] == times[end - 1]:
            end += 1
        watermark = times[end] if end < COUNT else times[-1] + 1
        found += operator.process(readings_batch(readings[first:end], ONTOLOGY), watermark)
        first = end
    begun = sorted(one.time for one in found if one.began is None)
    assert begun == expected(times, values, keys, largest)
    assert len(begun) > 20
