"""`rapport doctor`: whether the ensemble node of a site and those it joins answer. [EN-10, UX-3]"""

from __future__ import annotations

import asyncio
from pathlib import Path

from rapport.ensemble.runtime.node_status import fetch_status
from rapport.kernel.chance import Chance
from rapport.kernel.clock import SystemClock
from rapport.kernel.toml import TomlFile
from rapport.site.ensemble import EnsembleDeclared, ensemble_from_site
from rapport.transport.addresses import format_address
from rapport.transport.base import Address
from rapport.transport.keys import DatagramKeys, load_keys

OWN_HINT = "`rapport up` runs the site's own ensemble node"


def declared_ensemble_nodes(file: TomlFile, site: Path) -> list[tuple[Address, str]]:
    """The ensemble node of the site and those it joins, each with what to do when it does not
    answer; one that takes any free port cannot be asked.
    """
    declared = _declared(file, site)
    if declared is None:
        return []
    own = [(declared.listen, OWN_HINT)] if declared.listen[1] else []
    return [*own, *((one, "") for one in (*declared.join, *declared.groupers))]


def reach_ensemble_node(address: Address, file: TomlFile, site: Path, *, seconds: float) -> str:
    """What a node says of itself; raises RapportError when it does not answer or the site's keys
    cannot be read.
    """
    declared = _declared(file, site)
    keys = load_keys(declared.keys) if declared is not None and declared.keys else None
    return asyncio.run(_status(address, keys, int(seconds * 1000)))


async def _status(address: Address, keys: DatagramKeys | None, within_ms: int) -> str:
    status = await fetch_status(
        address,
        clock=SystemClock(),
        chance=Chance.from_machine(),
        keys=keys,
        within_ms=within_ms,
    )
    others = sum(one.state == "alive" for one in status.members)
    where = f"the node {status.node!r} at {format_address(address)}"
    return f"{where} answers: {others} other nodes, {status.replica_count} components of theirs"


def _declared(file: TomlFile, site: Path) -> EnsembleDeclared | None:
    sources = list(file.section("sources").values)
    return ensemble_from_site(file, site, sources, "site")[0]
