"""`rapport ensemble status`: what a running node knows, and what went wrong on it. [EN-10]"""

from __future__ import annotations

import asyncio
from typing import Annotated

from cyclopts import Parameter

from rapport.cli.context.options import JsonOption, keys_of
from rapport.cli.ensemble.run import KeysOption
from rapport.cli.output import stderr, write_json, write_table
from rapport.core.times import format_time
from rapport.ensemble.runtime.node_status import NodeStatus, fetch_status
from rapport.kernel.chance import Chance
from rapport.kernel.clock import SystemClock
from rapport.transport.addresses import parse_address


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
    write_table(f"node {found.node}", ("what", "now"), _rows(found))
    for fault in found.faults:
        whose = " ".join(word for word in (fault.component, fault.name) if word)
        text = f"fault {fault.code} x{fault.count} ({whose}): {fault.message}. {fault.hint}"
        stderr().print(text, markup=False, soft_wrap=True)


def _rows(found: NodeStatus) -> list[tuple[str, str]]:
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
