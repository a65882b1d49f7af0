"""The public names of context, for programs: `from rapport.context.api import ...`. [CX-3]"""

from __future__ import annotations

from rapport.context.broker.settings import (
    BrokerLimits,
    BrokerSettings,
    ReplicationSettings,
    SearchSettings,
)
from rapport.context.clients.blocking import BlockingConsumer, BlockingProvider
from rapport.context.clients.consumer import ContextConsumer, Located
from rapport.context.clients.controller import ContextController
from rapport.context.clients.provider import ContextProvider
from rapport.context.faults import ContextNotFound
from rapport.context.past import Past, history
from rapport.context.rights import ContextGrant, ContextRights
from rapport.context.serving import ContextBroker
from rapport.context.settings import ClientSettings
from rapport.context.status import BrokerStatus
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
    "Located",
    "Past",
    "ReplicationSettings",
    "SearchSettings",
    "history",
    "load_keys",
    "parse_address",
]
