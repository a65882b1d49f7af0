"""Faults of a running node as conditions: an adapter that fails, a server that is gone, a full
disk, damaged logs. [UX-5]

The parts know their own faults; the watch collects them every few seconds, so that each is in the
log when it begins and when it ends, and in readiness, metrics and page in between. A fault is shown
within `NOTICE_WITHIN_MS`: the periods and time limits of probes, links and brokers are chosen so.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rapport.channel.log.channels import LoggedChannels
from rapport.core.errors import StoreUnavailable
from rapport.kernel.clock import Clock
from rapport.kernel.files import sync_path, temporary_path
from rapport.kernel.tasks import first_of
from rapport.kernel.telemetry import DegradedConditions

if TYPE_CHECKING:
    from rapport.node.node import Node

NOTICE_WITHIN_MS = 10_000
"""At most so long after a fault begins it is a condition."""
_PERIOD_MS = 2_000
_STORE_LIMIT_MS = 3_000
_STORE, _WRITES, _DAMAGE = "store.unreachable", "store.writes", "log.damaged"
_PROBE_BYTES = 64 * 1024

Faults = Mapping[str, str]
"""Name of a condition to its reason."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One way to find faults, used again `period_ms` after it has finished."""

    find: Callable[[], Faults]
    period_ms: int = _PERIOD_MS
    limit_ms: int = 0
    """0: `find` is quick and runs on the event loop. Otherwise it may wait for disks and servers,
    so it runs in a thread; after this long `overdue` are its faults, until it returns.
    """
    overdue: Faults = msgspec.field(default_factory=dict)

    @property
    def notice_ms(self) -> int:
        """The longest time from a fault to its condition: a look that just missed the fault, the
        pause, and the look that finds it.
        """
        return self.limit_ms + self.period_ms + self.limit_ms


class HealthWatch:
    """Keeps the conditions of a node true. Each probe ends only conditions that it began."""

    def __init__(
        self, probes: tuple[Probe, ...], conditions: DegradedConditions, clock: Clock
    ) -> None:
        self.probes, self._conditions, self._clock = probes, conditions, clock

    async def run(self) -> None:
        """Looks until cancelled."""
        async with asyncio.TaskGroup() as group:
            for probe in self.probes:
                group.create_task(self._repeat(probe))

    async def _repeat(self, probe: Probe) -> None:
        begun: set[str] = set()
        pending: asyncio.Future[Faults] | None = None
        try:
            while True:
                if not probe.limit_ms:
                    found = probe.find()
                else:
                    # A call that hangs is waited for again: there is never a second thread.
                    pending = pending or asyncio.ensure_future(asyncio.to_thread(probe.find))
                    await first_of(asyncio.shield(pending), self._clock.sleep(probe.limit_ms))
                    found = probe.overdue
                    if pending.done():
                        found, pending = pending.result(), None
                for name, reason in found.items():
                    self._conditions.begin(name, reason)
                for name in begun - found.keys():
                    self._conditions.end(name)
                begun = set(found)
                await self._clock.sleep(probe.period_ms)
        finally:
            if pending is not None:
                pending.cancel()


def watch_node(node: Node, directory: Path) -> HealthWatch:
    """The watch of a node that keeps its log in `directory`."""
    parts = Probe(find=lambda: dict(_faults_of(node)))
    stores = Probe(
        find=lambda: probe_stores(node.channels, directory),
        limit_ms=_STORE_LIMIT_MS,
        overdue={_STORE: "the store does not answer"},
    )
    return HealthWatch((parts, stores), node.conditions, node.clock)


def probe_stores(channels: LoggedChannels, directory: Path) -> dict[str, str]:
    """Faults of the stores, probed now. A fault of writing that is over without anybody
    writing is ended by a small write of our own.
    """
    try:
        channels.records.get("health", "probe")
    except StoreUnavailable as error:
        return {_STORE: f"the record store cannot be reached: {error.message}"}
    found = {}
    writer = channels.parts.writer
    if writer.fault and _can_write(directory):
        writer.fault = ""
    if writer.fault:
        found[_WRITES] = f"nothing can be written: {writer.fault}"
    elif _free_bytes(directory) < _PROBE_BYTES:
        found[_WRITES] = f"no space is left on the disk of {directory}"
    damage = channels.damage()
    if damage:
        more = f", and {len(damage) - 1} more" if len(damage) > 1 else ""
        found[_DAMAGE] = f"{damage[0].message}{more}"
    return found


def _free_bytes(directory: Path) -> int:
    try:
        return shutil.disk_usage(directory).free
    except OSError:  # a node without a directory keeps its channels elsewhere
        return _PROBE_BYTES


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
