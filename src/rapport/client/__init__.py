"""The light package for programs that publish, listen and mediate: no HTTP framework, no store, no
Spark; numpy only with the first `Mediator`. [CH-5, CH-7, CH-8, ME-9]
"""

from importlib import import_module
from typing import Any

from rapport.channel.agents.async_agents import AsyncLeasedListener, AsyncListener, AsyncPublisher
from rapport.channel.agents.connection import Reason
from rapport.channel.agents.direct import DirectSink, DirectSource
from rapport.channel.agents.leased_listener import LeasedEvent, LeasedListener
from rapport.channel.agents.listener import Listener
from rapport.channel.agents.listener_directory import FailedEvent
from rapport.channel.agents.listener_state import ListenerSettings, ListenerStatus, ReceivedEvent
from rapport.channel.agents.outbox import RejectedEvent
from rapport.channel.agents.publisher import Publisher, PublisherSettings, Status
from rapport.core.event import Event, Gap

__all__ = [
    "AsyncLeasedListener",
    "AsyncListener",
    "AsyncPublisher",
    "DirectSink",
    "DirectSource",
    "Event",
    "FailedEvent",
    "Gap",
    "LeasedEvent",
    "LeasedListener",
    "Listener",
    "ListenerSettings",
    "ListenerStatus",
    "Mediator",
    "Publisher",
    "PublisherSettings",
    "Reason",
    "ReceivedEvent",
    "RejectedEvent",
    "Status",
]

_LATE = {"Mediator": "rapport.mediation.outgoing.client_mediator"}
"""What is loaded when somebody first asks for it, since most programs never do."""


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATE[name]), name)
