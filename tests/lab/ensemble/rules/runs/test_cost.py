"""A long trace costs as much for each event as a short one."""

from __future__ import annotations

from typing import Any

import pytest

from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.trace import Trace
from rapport_lab.ensemble.rules.check import RULES
from rapport_lab.ensemble.rules.trace_index import TraceIndex
from support.work import calls

Laboratory = Any
PULL = GossipSettings(
    knowledge_ms=1_000, header_ms=1_000, pull_ms=1_000, local_ms=2_000, global_ms=4_000
)


def _cost_of_each_event(trace: Trace) -> list[float]:
    """Of making the index, and of each rule."""
    costs = [calls(lambda: TraceIndex(trace))]
    index = TraceIndex(trace)
    costs += [calls(lambda rule=rule: list(rule.breaches(index))) for rule in RULES]
    return [cost / len(trace.events) for cost in costs]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [PULL, GossipSettings(knowledge_ms=1_000)], ids=["pull", "push"]
)
def test_the_cost_of_an_event_does_not_grow_with_the_trace(
    laboratory: Laboratory, settings: GossipSettings
) -> None:
    short = laboratory.trace(laboratory.Plan(settings=settings, duration_ms=8_000))
    long = laboratory.trace(laboratory.Plan(settings=settings, duration_ms=80_000))
    assert len(long.events) > 8 * len(short.events)
    for before, after in zip(_cost_of_each_event(short), _cost_of_each_event(long), strict=True):
        assert after < 1.5 * before + 1
