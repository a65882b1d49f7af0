"""The light package for programs that publish: no numpy, no HTTP framework, no Spark. [CH-5,
CH-8]
"""

from rapport.channel.agents.async_publisher import AsyncPublisher
from rapport.channel.agents.direct_sink import DirectSink
from rapport.channel.agents.outbox_reading import RejectedEvent
from rapport.channel.agents.publisher import Publisher, PublisherSettings, Status
from rapport.channel.agents.window import Reason
from rapport.core.event import Event

__all__ = [
    "AsyncPublisher",
    "DirectSink",
    "Event",
    "Publisher",
    "PublisherSettings",
    "Reason",
    "RejectedEvent",
    "Status",
]
