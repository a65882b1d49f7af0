"""The light package for programs that publish: no numpy, no server, no Spark. [CH-5]"""

from rapport.channel.agents.async_publisher import AsyncPublisher
from rapport.channel.agents.outbox_reading import RejectedEvent
from rapport.channel.agents.publisher import Publisher, PublisherSettings, Status
from rapport.channel.agents.window import Reason
from rapport.core.event import Event

__all__ = [
    "AsyncPublisher",
    "Event",
    "Publisher",
    "PublisherSettings",
    "Reason",
    "RejectedEvent",
    "Status",
]
