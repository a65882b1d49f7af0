"""The id by which other nodes know this one: made once, kept with the records. [CH-11]"""

from __future__ import annotations

from rapport.channel.federation.hops import check_node_id
from rapport.store.base import RecordStore

_TABLE, _KEY = "federation", "node"


def node_identity(records: RecordStore, fresh: str) -> str:
    """The node's id; `fresh` becomes it when there is none yet. Durable when it returns."""
    saved = saved_identity(records)
    if saved:
        return saved
    records.put(_TABLE, _KEY, check_node_id(fresh).encode())
    return fresh


def saved_identity(records: RecordStore) -> str:
    """The node's id for who only looks; empty before its first start."""
    return (records.get(_TABLE, _KEY) or b"").decode()
