"""Faults of a running node as conditions: an adapter that fails, a server that is gone, a full
disk, damaged logs. [UX-5]

The parts know their own faults; this watch collects them every few seconds, so that each is in the
log when it begins and when it ends, and in readiness, metrics and page in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rapport.channel.log.channels import LoggedChannels
from rapport.core.errors import StoreUnavailable
from rapport.kernel.clock import Clock
from rapport.kernel.files import sync_path, temporary_path
from rapport.kernel.telemetry import DegradedConditions

if TYPE_CHECKING:
    from rapport.node.node import Node

LOOK_EVERY_MS = 2_000
_STORE, _WRITES, _DAMAGE = "store.unreachable", "store.writes", "log.damaged"
_PROBE_SECONDS = 5.0
_PROBE_BYTES = 64 * 1024

Faults = Mapping[str, str]
"""Name of a condition to its reason."""


class HealthWatch:
    """Keeps the conditions of a node true. Ends only conditions that it has begun itself."""

    def __init__(
        self,
        collect: Callable[[], Faults],
        probe: Callable[[], Faults],
        conditions: DegradedConditions,
        clock: Clock,
    ) -> None:
        """`collect` asks the parts and is quick; `probe` may wait for disks and servers."""
        self._collect, self._probe = collect, probe
        self._conditions, self._clock = conditions, clock
        self._begun: set[str] = set()

    async def run(self) -> None:
        """Looks every few seconds until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(LOOK_EVERY_MS)

    async def look(self) -> None:
        """Begins what is wrong now, and ends what is not any more."""
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                probed = await asyncio.to_thread(self._probe)
        except TimeoutError:
            probed = {_STORE: "the store does not answer"}
        found = {**self._collect(), **probed}
        for name, reason in found.items():
            self._conditions.begin(name, reason)
        for name in self._begun - found.keys():
            self._conditions.end(name)
        self._begun = set(found)


def watch_node(node: Node, directory: Path) -> HealthWatch:
    """The watch of a node that keeps its log in `directory`."""

    def collect() -> Faults:
        return dict(_faults_of(node))

    def probe() -> Faults:
        return probe_stores(node.channels, directory)

    return HealthWatch(collect, probe, node.conditions, node.clock)


def probe_stores(channels: LoggedChannels, directory: Path) -> dict[str, str]:
    """Faults of the stores, probed now. A fault of writing that is over without anybody
    writing is ended by a small write of our own.
    """
    try:
        channels.records.get("health", "probe")
    except StoreUnavailable as error:
        return {_STORE: f"the record store cannot be reached: {error.message}"}
    writer = channels.parts.writer
    if writer.fault and _can_write(directory):
        writer.fault = ""
    found = {_WRITES: f"nothing can be written: {writer.fault}"} if writer.fault else {}
    damage = channels.damage()
    if damage:
        more = f", and {len(damage) - 1} more" if len(damage) > 1 else ""
        found[_DAMAGE] = f"{damage[0].message}{more}"
    return found


def _can_write(directory: Path) -> bool:
    probe = temporary_path(directory / "probe")
    try:
        probe.write_bytes(bytes(_PROBE_BYTES))
        sync_path(probe)
    except OSError:
        return False
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
    return True


def _faults_of(node: Node) -> Iterator[tuple[str, str]]:
    for output in node.outputs.status():
        if output.trouble:
            yield f"adapter.{output.name}", f"{output.name} cannot deliver: {output.trouble}"
    for one in node.inputs.status():
        if one.trouble:
            yield f"input.{one.name}", f"the input {one.name} fails: {one.trouble}"
    for row in (*node.links.status(), *node.bridges.status()):
        if row.counts.trouble:
            kind = "mqtt" if row.way.startswith("mqtt") else "link"
            yield f"{kind}.{row.link}", f"{row.link} ({row.url}): {row.counts.trouble}"
    for table in node.fresh_tables.status():
        if table.failures and table.error is not None:
            yield f"table.{table.table}", f"{table.table} is not refreshed: {table.error.message}"
    for channel, code in node.maintenance.export_faults().items():
        yield f"export.{channel}", f"{channel} is not exported to the lake: {code}"
