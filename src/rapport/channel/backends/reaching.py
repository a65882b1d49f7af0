"""Whether the stores that a site declares can be reached, for `rapport doctor`. [CH-13, UX-3]"""

from __future__ import annotations

from pathlib import Path

from rapport.channel.backends.choosing import NATS, POSTGRES, split_schema, store_address
from rapport.channel.backends.nats import read_address
from rapport.channel.declared import ChannelsDeclared


def declared_stores(declared: ChannelsDeclared) -> list[str]:
    """The stores beside the embedded one that a site uses or says where they are."""
    rules = (declared.common, *declared.rules)
    used = {declared.records, *(rule.log for rule in rules)}
    return [name for name in (POSTGRES, NATS) if name in used or getattr(declared, name)]


def reach_store(name: str, declared: ChannelsDeclared, site: Path, *, seconds: int) -> str:
    """What answers there, in a few words; nothing is made or changed.

    Raises StoreUnavailable, InvalidInput for an address that is none or is not given,
    ModuleNotFoundError when the driver is not installed.
    """
    address = store_address(name, declared, site)
    if name == POSTGRES:
        from rapport.store.postgres_connections import server_version

        dsn, _schema = split_schema(address)
        return f"PostgreSQL {server_version(dsn, seconds=seconds)} answers"
    from rapport.store.nats_store import NatsLogStore

    place = read_address(address)
    NatsLogStore(place.servers, prefix=place.prefix, patience_seconds=seconds).close()
    return "NATS with JetStream answers"
