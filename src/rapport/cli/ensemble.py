"""`rapport ensemble`: runs components that form groups by what they know, and shows a running node.
[EN-10]

SIGTERM and Ctrl-C say goodbye to the other nodes; after SIGKILL they find out by themselves.
Simulations, experiments and the trace checker come with the package `rapport_lab`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from rapport.cli.arguments import JsonOption, lab_command, run_until_stopped
from rapport.cli.context import keys_of
from rapport.cli.output import print_note, write_json, write_table
from rapport.core.knowledge import Knowledge
from rapport.core.times import format_time
from rapport.ensemble.gossip.gossip_settings import advice
from rapport.ensemble.runtime.ensemble_node import EnsembleNode
from rapport.ensemble.runtime.node_status import NodeStatus, check_sealed, fetch_status
from rapport.ensemble.runtime.program import Program, load_program
from rapport.ensemble.trace import Recorder
from rapport.ensemble.trace_files import TraceFile
from rapport.kernel.clock import Chance, Now, SystemClock
from rapport.kernel.telemetry import configure_logs
from rapport.transport.addresses import format_address, parse_address
from rapport.transport.base import Address
from rapport.transport.keys import KeyFileWatch
from rapport.transport.udp import MulticastGroup

app = App(name="ensemble", help="Run components that form groups and gossip; measure them.")
for _name, _path, _help in (
    ("check-trace", "check_trace:check_trace", "Check a trace by the rules."),
    ("experiment", "experiment_command:experiment", "Repeat the experiments of the source."),
    ("membership", "membership_command:membership", "Measure failure detection."),
):
    app.command(lab_command(f"rapport_lab.commands.{_path}"), name=_name, help=_help)
app.command(lab_command("rapport_lab.commands.cars:cars"), name="cars", show=False)
app.command("rapport.cli.context_keys:app", name="keys", help="Make, list and retire keys.")

_LOOK_AT_KEYS_MS = 2_000

KeysOption = Annotated[
    Path | None,
    Parameter(
        name="--keys",
        env_var="RAPPORT_ENSEMBLE_KEYS",
        help="The file of keys; needed off this machine.",
    ),
]


@app.command
def run(
    file: Annotated[Path, Parameter(help="A Python file with components and ensembles.")],
    *,
    node: Annotated[
        str, Parameter(help="The node's name, which no other node has; a new one by default.")
    ] = "",
    listen: Annotated[
        str, Parameter(help="Where other nodes reach it; port 0 takes a free one.")
    ] = "127.0.0.1:0",
    group: Annotated[
        str, Parameter(help="Who is in range: a multicast group or broadcast address, HOST:PORT.")
    ] = "",
    interface: Annotated[str, Parameter(help="The network interface of an IPv6 group.")] = "",
    join: Annotated[
        list[str] | None, Parameter(negative="", help="A node of the network; repeat it.")
    ] = None,
    groupers: Annotated[
        list[str] | None, Parameter(negative="", help="A well-known grouper; repeat it.")
    ] = None,
    grouper: Annotated[bool, Parameter(negative="", help="Be a grouper.")] = False,
    keys: KeysOption = None,
    follow: Annotated[
        bool, Parameter(negative="", help="Print what comes from other nodes, a JSON line each.")
    ] = False,
    trace: Annotated[
        Path | None,
        Parameter(help="Record all that happens here, for `rapport ensemble check-trace`."),
    ] = None,
    log_json: Annotated[bool, Parameter(negative="", help="Logs as JSON lines.")] = False,
) -> None:
    """Run the components of a Python file on a node; the file is trusted as your own code is.

    rapport ensemble run cars.py --node car-7 --join 127.0.0.1:7511
    """
    configure_logs(json=log_json)
    name = node or f"{file.stem}-{os.getpid()}"
    place, others, known = parse_address(listen), _addresses(join), _addresses(groupers)
    check_sealed([place, *others, *known], has_keys=keys is not None)
    radio = MulticastGroup(*parse_address(group), interface=interface) if group else None
    watch = KeyFileWatch(keys) if keys is not None else None
    program = load_program(file, name)
    _print_advice(program)
    run_until_stopped(
        _serve(
            name, program, place, radio, others, known, grouper, watch, follow=follow, trace=trace
        )
    )


def _addresses(texts: Sequence[str] | None) -> list[Address]:
    return [parse_address(text) for one in texts or [] for text in one.split(",")]


def _print_advice(program: Program) -> None:
    for problem in advice(program.settings.gossip):
        print_note(f"{problem.severity}: {problem.message} ({problem.hint})")


async def _serve(
    name: str,
    program: Program,
    listen: Address,
    group: MulticastGroup | None,
    join: list[Address],
    groupers: list[Address],
    is_grouper: bool,
    keys: KeyFileWatch | None,
    *,
    follow: bool,
    trace: Path | None,
) -> None:
    clock = SystemClock()
    recorder = Recorder() if trace is not None else None
    one = await EnsembleNode.open(
        name,
        program.components,
        program.ensembles,
        listen=listen,
        clock=clock,
        chance=Chance.from_machine(),
        group=group,
        join=join,
        groupers=groupers,
        is_grouper=is_grouper,
        keys=keys.keys if keys is not None else None,
        settings=program.settings,
        on_changed=_print if follow else None,
        recorder=recorder,
    )
    written: TraceFile | None = None
    try:
        if trace is not None and recorder is not None:
            written = TraceFile(trace, recorder, one.machine)
        _announce(one, len(program.components), group)
        while True:
            await clock.sleep(_LOOK_AT_KEYS_MS)
            if written is not None:
                written.write_due(Now(clock.now_ms(), clock.steady_ns() / 1e6))
            if keys is not None and keys.refresh():
                print_note("took up the changed keys")
    finally:
        await one.close()
        if written is not None:
            written.write_all()


def _print(knowledge: Knowledge) -> None:
    write_json(knowledge)


def _announce(one: EnsembleNode, components: int, group: MulticastGroup | None) -> None:
    radio = f", broadcasts to {format_address((group.host, group.port))}" if group else ""
    print_note(
        f"ensemble node is up: {format_address(one.address)}  "
        f"({one.node}, {components} component(s){radio}; stop with Ctrl-C)"
    )


@app.command
def status(
    node: Annotated[str, Parameter(help="Where the node listens: HOST:PORT.")],
    *,
    keys: KeysOption = None,
    json: JsonOption = False,
) -> None:
    """Show a running node: its components, the nodes and components it knows, its faults."""
    found = asyncio.run(
        fetch_status(
            parse_address(node),
            clock=SystemClock(),
            chance=Chance.from_machine(),
            keys=keys_of(keys),
        )
    )
    if json:
        write_json(found)
        return
    write_table(f"node {found.node}", ("what", "now"), _status_rows(found))
    for fault in found.faults:
        whose = " ".join(word for word in (fault.component, fault.name) if word)
        print_note(f"fault {fault.code} x{fault.count} ({whose}): {fault.message}. {fault.hint}")


def _status_rows(found: NodeStatus) -> list[tuple[str, str]]:
    rows = [("address", found.address), ("components", ", ".join(found.components) or "none")]
    if found.group:
        rows.append(("broadcasts to", found.group))
    if found.health:
        rows.append(("slow, of 8", str(found.health)))
    rows += [
        (f"component {one.component}", f"WITHHELD since {format_time(one.since_ms)}: {one.message}")
        for one in found.withheld
    ]
    rows += [(f"node {one.name}", f"{one.state}, {one.address}") for one in found.members]
    rows += [("same name", f"another node at {address}") for address in found.namesakes]
    rows += [
        (f"component {one.component}", f"of {one.node}, {one.age_ms / 1_000:.1f} s old")
        for one in found.replicas
    ]
    if found.replica_count > len(found.replicas):
        rows.append(("components in all", str(found.replica_count)))
    rows += [(name.replace("_", " "), str(count)) for name, count in found.counters.items()]
    return rows
