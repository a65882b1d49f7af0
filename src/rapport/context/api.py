"""The public names of context, for programs: `from rapport.context.api import ...`. [CX-3]"""

from __future__ import annotations

from rapport.context.broker.broker_settings import (
    BrokerLimits,
    BrokerSettings,
    ReplicationSettings,
    SearchSettings,
)
from rapport.context.broker_server import ContextBroker
from rapport.context.broker_status import BrokerStatus
from rapport.context.clients.blocking_clients import BlockingConsumer, BlockingProvider
from rapport.context.clients.consumer import ContextConsumer, LocatedRecord
from rapport.context.clients.controller import ContextController
from rapport.context.clients.provider import ContextProvider
from rapport.context.connections import ClientSettings, ContextNotFound
from rapport.context.persistence import PastUpdate, history
from rapport.context.rights import ContextGrant, ContextRights
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.transport.addresses import parse_address
from rapport.transport.keys import load_keys

__all__ = [
    "BlockingConsumer",
    "BlockingProvider",
    "BrokerLimits",
    "BrokerSettings",
    "BrokerStatus",
    "ClientSettings",
    "ContextBroker",
    "ContextConsumer",
    "ContextController",
    "ContextGrant",
    "ContextNotFound",
    "ContextProvider",
    "ContextRecord",
    "ContextRights",
    "EntityRef",
    "LocatedRecord",
    "PastUpdate",
    "ReplicationSettings",
    "SearchSettings",
    "history",
    "load_keys",
    "parse_address",
]
