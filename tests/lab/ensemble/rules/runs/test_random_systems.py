"""No rule is broken by the real machines, whatever the system looks like."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.protocol import Headers, Part, PublishedKnowledge, Pull, PullParts
from rapport.ensemble.trace import Kind
from rapport_lab.ensemble.rules.check import check_all
from rapport_lab.ensemble.rules.trace_index import report
from support.examples import examples

Laboratory = Any
MEDIA = ((True, False), (False, True), (True, True))


@st.composite
def gossip_settings(draw: st.DrawFn) -> GossipSettings:
    """Periods of about a second, in all combinations of media and of pulling."""
    radio, ip = draw(st.sampled_from(MEDIA))
    pulls = draw(st.booleans())
    local_ms = draw(st.integers(500, 3_000))
    return GossipSettings(
        knowledge_ms=draw(st.integers(500, 1_500)),
        header_ms=draw(st.integers(500, 2_000)) if pulls else 0,
        pull_ms=draw(st.integers(500, 2_000)) if pulls else 0,
        local_ms=local_ms,
        global_ms=local_ms + draw(st.integers(1, 5_000)),
        probability=draw(st.sampled_from((0.0, 0.3, 0.7, 1.0))),
        fan_out=draw(st.integers(1, 3)),
        answers=draw(st.sampled_from(("next", "immediate"))),
        times=draw(st.sampled_from(("created", "received"))),
        answer_gap_ms=draw(st.sampled_from((1, 300, 1_000))),
        part_bytes=draw(st.sampled_from((128, 1_024))),
        radio=radio,
        ip=ip,
    )


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    """Topologies, media, losses, timings, boundaries; nodes die, components leave, links break."""
    nodes = draw(st.integers(2, 5))
    pairs = [(one, other) for one in range(nodes) for other in range(one)]
    any_node, any_time = st.integers(0, nodes - 1), st.integers(0, 8_000)
    shortest_ms = draw(st.sampled_from((0, 1, 50)))
    return {
        "seed": draw(st.integers(0, 2**32)),
        "nodes": nodes,
        "links": tuple(draw(st.lists(st.sampled_from(pairs), unique=True))),
        "settings": draw(gossip_settings()),
        "duration_ms": 8_000,
        "shortest_ms": shortest_ms,
        "longest_ms": shortest_ms + draw(st.sampled_from((0, 20, 400))),
        "loss": draw(st.sampled_from((0.0, 0.1, 0.5))),
        "outside": draw(st.frozensets(st.tuples(any_node, any_node), max_size=6)),
        "body_bytes": draw(st.sampled_from((10, 300))),
        "counting": draw(st.booleans()),
        "media": tuple(draw(st.lists(st.sampled_from(MEDIA), max_size=nodes))),
        "leaves": tuple(draw(st.lists(st.tuples(any_node, any_time), max_size=1))),
        "stops": tuple(draw(st.lists(st.tuples(any_node, any_time), max_size=1))),
        "cuts": tuple(
            (*pair, time)
            for pair, time in draw(
                st.lists(st.tuples(st.sampled_from(pairs), any_time), max_size=3)
            )
        ),
    }


@given(plan=plans())
@settings(max_examples=examples(10))
def test_random_systems_break_no_rule(laboratory: Laboratory, plan: dict[str, Any]) -> None:
    breaches = check_all(laboratory.trace(laboratory.Plan(**plan)))
    assert not breaches, f"{plan}\n{report(breaches)}"


@pytest.mark.long
@given(plan=plans())
@settings(max_examples=examples(1_000))
def test_many_random_systems_break_no_rule(laboratory: Laboratory, plan: dict[str, Any]) -> None:
    breaches = check_all(laboratory.trace(laboratory.Plan(**plan)))
    assert not breaches, f"{plan}\n{report(breaches)}"


@pytest.mark.slow
def test_a_run_with_everything_has_events_of_all_kinds_that_machines_tell(
    laboratory: Laboratory,
) -> None:
    """Else a rule would be kept because nothing ever happened that it speaks of."""
    settings = GossipSettings(
        knowledge_ms=1_000,
        header_ms=1_000,
        pull_ms=1_000,
        local_ms=1_500,
        global_ms=3_000,
        part_bytes=128,
        ip=True,
    )
    outside = frozenset({(0, 1), (1, 2), (2, 0)})
    told: Counter[Kind] = Counter()
    for more in ({"body_bytes": 300}, {"settings": msgspec.structs.replace(settings, ip=False)}):
        plan = {"settings": settings, "outside": outside, "loss": 0.3, "stops": ((0, 30_000),)}
        trace = laboratory.trace(laboratory.Plan(**(plan | more)))
        told.update(event.kind for event in trace.events)
        assert check_all(trace) == []
    by_others = {Kind.TABLE_PUBLISHED, Kind.TABLE_APPLIED, Kind.EVALUATED, Kind.EXCHANGED}
    by_others |= {Kind.PROCESS_RAN, Kind.REMOVED, Kind.UNLINKED, Kind.FORGOTTEN, Kind.WITHHELD}
    assert set(told) == set(Kind) - by_others


def test_a_recorder_tells_every_kind_of_message() -> None:
    """So that a new kind of message is not left out of traces."""
    from rapport.ensemble import trace
    from rapport.ensemble.protocol import Message

    kinds = set(Message.__args__)
    assert kinds == {PublishedKnowledge, Headers, Pull, Part, PullParts}
    assert set(trace._SENT) == set(trace._RECEIVED) == kinds
