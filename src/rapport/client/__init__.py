"""The light package for programs that publish and listen: no numpy, no HTTP framework, no Spark.
[CH-5, CH-7, CH-8]
"""

from rapport.channel.agents.async_listener import AsyncListener
from rapport.channel.agents.async_publisher import AsyncPublisher
from rapport.channel.agents.direct_sink import DirectSink
from rapport.channel.agents.direct_source import DirectSource
from rapport.channel.agents.listener import Listener
from rapport.channel.agents.listener_cache import ReceivedEvent
from rapport.channel.agents.listener_place import FailedEvent
from rapport.channel.agents.listener_settings import ListenerSettings, ListenerStatus
from rapport.channel.agents.outbox_reading import RejectedEvent
from rapport.channel.agents.publisher import Publisher, PublisherSettings, Status
from rapport.channel.agents.window import Reason
from rapport.core.event import Event

__all__ = [
    "AsyncListener",
    "AsyncPublisher",
    "DirectSink",
    "DirectSource",
    "Event",
    "FailedEvent",
    "Listener",
    "ListenerSettings",
    "ListenerStatus",
    "Publisher",
    "PublisherSettings",
    "Reason",
    "ReceivedEvent",
    "RejectedEvent",
    "Status",
]
