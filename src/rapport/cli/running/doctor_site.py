"""What `rapport doctor` finds out about a site: its disk, and the servers that it names. [UX-3,
CH-13]
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from rapport.channel.backends.stores import declared_stores, reach_store
from rapport.channel.config import channels_from_site
from rapport.channel.mqtt.bridge import Bridge, bridges_from_site
from rapport.channel.mqtt.client import reach_broker
from rapport.cli.local import data_directory
from rapport.cli.running.doctor_context import declared_brokers, reach_context_broker
from rapport.cli.running.doctor_ensemble import declared_ensemble_nodes, reach_ensemble_node
from rapport.core.errors import RapportError
from rapport.kernel.clock import Clock, SystemClock
from rapport.kernel.settings import read_secret
from rapport.kernel.toml import TomlFile
from rapport.transport.addresses import format_address

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


def examine_site(site: Path, clock: Clock | None = None) -> Iterator[Finding]:
    """Looks at the data directory and asks every server that the site declares, each for about two
    seconds at the most. Changes nothing but a file that is removed again; raises for a site file
    that cannot be read.
    """
    file = TomlFile.load(site / "site.toml")
    data = data_directory(site)
    yield from _examine_disk(data, clock or SystemClock())
    declared, _problems = channels_from_site(file)
    for name in declared_stores(declared):
        hint = _NATS_HINT if name == "nats" else ""
        reach = partial(reach_store, name, declared, site, seconds=REACH_SECONDS)
        yield _asked(f"[channels] {name}", reach, hint)
    for bridge in bridges_from_site(file)[0]:
        yield _asked(f"[mqtt.{bridge.name}]", partial(_reach_bridge, bridge, site))
    for address, hint in declared_brokers(file, site):
        reach = partial(reach_context_broker, address, file, site, seconds=REACH_SECONDS)
        yield _answering(_asked(f"[context] {format_address(address)}", reach), hint)
    for address, hint in declared_ensemble_nodes(file, site):
        reach = partial(reach_ensemble_node, address, file, site, seconds=REACH_SECONDS)
        yield _answering(_asked(f"[ensemble] {format_address(address)}", reach), hint)


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


def _asked(part: str, reach: Callable[[], str], hint: str = "") -> Finding:
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
