"""The trace of a running node in a file. [EN-3, EN-10]"""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.model.host import Host
from rapport.ensemble.model.work_scheduler import HostSettings
from rapport.ensemble.node_machine import NodeMachine
from rapport.ensemble.trace import Kind, Recorder, TraceEvent
from rapport.ensemble.trace_files import TraceFile
from rapport.kernel.clock import Chance, Now
from rapport_lab.ensemble.rules.recorded_traces import read_trace
from support.examples import examples

PROCESS_MS = 500


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, PROCESS_MS)), max_size=20))
def test_what_ends_late_is_written_in_the_order_in_which_it_began(
    tmp_path_factory: object, steps: list[tuple[int, int]]
) -> None:
    """Each step: time that passes, and how long ago what is told then began."""
    path: Path = tmp_path_factory.mktemp("trace") / "t.jsonl"  # type: ignore[attr-defined]
    host = Host("a", (), Chance(1), HostSettings(process_ms=PROCESS_MS))
    machine = NodeMachine(host, GossipSettings(knowledge_ms=1_000), Chance(1))
    recorder = Recorder()
    file = TraceFile(path, recorder, machine)
    now_ms, told = 10_000.0, []
    for passed_ms, ago_ms in steps:
        now_ms += passed_ms
        event = TraceEvent(now_ms - ago_ms, 0, Kind.PROCESS_RAN, "a")
        recorder(event)
        told.append(event)
        file.write_due(Now(0, now_ms))
    file.write_all()
    trace = read_trace(path)
    assert trace.events == sorted(told, key=lambda event: event.time_ms)
    assert recorder.events == []
    facts = trace.system.nodes["a"]
    assert facts.knowledge_offset_ms is not None
    assert machine.gossip.next_due_ms() == facts.knowledge_offset_ms
