"""The rules hold on real sockets as they do in simulations. [EN-3, EN-10]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rapport.cli.main import run as rapport
from rapport.ensemble.runtime.node_status import RuntimeSettings
from rapport.ensemble.trace import IP, RADIO, Kind, Recorder, System, Trace, TraceEvent
from rapport.ensemble.trace_files import facts_of, write_trace
from rapport.transport.base import Address
from rapport.transport.udp import MulticastGroup
from rapport_lab.ensemble.rules.check import RULES, check_all
from rapport_lab.ensemble.rules.trace_index import report

Opened = Callable[[], Any]
PULLING = {"header_ms": 60, "pull_ms": 90, "local_ms": 120, "global_ms": 1_000}

PUNCTUAL = {9, 18, 20, 22}
"""Rules that are told by the schedule: a busy machine leaves out a period of 60 ms, so they are
checked in simulations only.
"""


def linked(nodes: list[Any], media: tuple[str, ...], recorder: Recorder) -> None:
    """Each reaches each from the beginning: tells the trace so, before all else."""
    recorder.events[:0] = [
        TraceEvent(0.0, 0, Kind.LINKED, one.node, other=other.node, medium=medium)
        for medium in media
        for one in nodes
        for other in nodes
        if one is not other
    ]


def system_of(nodes: list[Any]) -> System:
    facts = {
        node.node: facts_of(node.machine.gossip.settings, address=node.machine.address)
        for node in nodes
    }
    return System(nodes=facts, late_ms=200, losses=False)


@pytest.mark.slow
@pytest.mark.parametrize("media", [(IP,), (RADIO,), (RADIO, IP)], ids=" and ".join)
def test_no_rule_is_broken_by_nodes_on_sockets(
    opened: Opened,
    quick: RuntimeSettings,
    group: MulticastGroup,
    media: tuple[str, ...],
    tmp_path: Path,
) -> None:
    async def scenario() -> Trace:
        names: dict[Address, str] = {}
        recorder = Recorder(names)
        gossip = msgspec.structs.replace(quick.gossip, probability=0.5, **PULLING)
        settings = msgspec.structs.replace(quick, gossip=gossip)
        async with opened() as world:
            for name in "abc":
                join = [world.nodes[0].address] if world.nodes and IP in media else []
                node = await world.person(
                    name,
                    recorder=recorder,
                    settings=settings,
                    join=join,
                    ip=IP in media,
                    group=group if RADIO in media else None,
                )
                names[node.address] = node.node
            await asyncio.sleep(0.6)
            nodes = list(world.nodes)
        linked(nodes, media, recorder)
        # What threads did is told when they ended, with the time of the knowledge they saw.
        events = sorted(recorder.events, key=lambda event: event.time_ms)
        return Trace(system_of(nodes), events)

    trace = asyncio.run(scenario())
    sent = {Kind.KNOWLEDGE_SENT, Kind.KNOWLEDGE_RECEIVED, Kind.EXCHANGED}
    assert sent <= {event.kind for event in trace.events}
    received = [event for event in trace.events if event.kind is Kind.KNOWLEDGE_RECEIVED]
    assert {event.medium for event in received} == set(media)
    breaches = check_all(trace, [rule for rule in RULES if rule.number not in PUNCTUAL])
    assert not breaches, report(breaches)
    file = tmp_path / "trace.jsonl"
    write_trace(trace, file)
    assert rapport(["ensemble", "check-trace", str(file)]) in (0, 1)
