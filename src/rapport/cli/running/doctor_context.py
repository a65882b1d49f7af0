"""`rapport doctor`: whether the context broker of a site and those it joins answer. [CX-4, UX-3]"""

from __future__ import annotations

import asyncio
from pathlib import Path

from rapport.context.clients.controller import ContextController
from rapport.core.errors import NotAllowed
from rapport.kernel.toml import TomlFile
from rapport.site.context import context_from_site
from rapport.transport.addresses import format_address
from rapport.transport.base import Address
from rapport.transport.keys import DatagramKeys, load_keys

OWN_HINT = "`rapport up` runs the site's own broker"


def declared_brokers(file: TomlFile, site: Path) -> list[tuple[Address, str]]:
    """The broker of the site and those it joins, each with what to do when it does not answer."""
    declared, _problems = context_from_site(file, site)
    if declared is None:
        return []
    return [(declared.listen, OWN_HINT), *((one, "") for one in declared.join)]


def reach_context_broker(address: Address, file: TomlFile, site: Path, *, seconds: float) -> str:
    """What a broker says of itself; raises RapportError when it does not answer or the site's keys
    cannot be read.
    """
    declared, _problems = context_from_site(file, site)
    keys = load_keys(declared.keys) if declared is not None and declared.keys else None
    return asyncio.run(_status(address, keys, int(seconds * 1000)))


async def _status(address: Address, keys: DatagramKeys | None, within_ms: int) -> str:
    where = f"the broker at {format_address(address)}"
    async with await ContextController.open([address], keys=keys) as controller:
        try:
            status = await controller.status(address, within_ms=within_ms)
        except NotAllowed:
            return f"{where} answers; it tells our key no more"
        neighbours = len(status.neighbours)
        return f"{where} answers: {neighbours} neighbours, {status.records} records"
