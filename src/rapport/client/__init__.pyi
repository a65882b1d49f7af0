# What `rapport.client` has, for tools that read types: `Mediator` is loaded only when it is first
# named, which they cannot see in the module itself. A test compares the two. [ME-9]
from rapport.channel.agents.async_agents import AsyncLeasedListener as AsyncLeasedListener
from rapport.channel.agents.async_agents import AsyncListener as AsyncListener
from rapport.channel.agents.async_agents import AsyncPublisher as AsyncPublisher
from rapport.channel.agents.connection import Reason as Reason
from rapport.channel.agents.direct import DirectSink as DirectSink
from rapport.channel.agents.direct import DirectSource as DirectSource
from rapport.channel.agents.leased_listener import LeasedEvent as LeasedEvent
from rapport.channel.agents.leased_listener import LeasedListener as LeasedListener
from rapport.channel.agents.listener import Listener as Listener
from rapport.channel.agents.listener_directory import FailedEvent as FailedEvent
from rapport.channel.agents.listener_state import ListenerSettings as ListenerSettings
from rapport.channel.agents.listener_state import ListenerStatus as ListenerStatus
from rapport.channel.agents.listener_state import ReceivedEvent as ReceivedEvent
from rapport.channel.agents.outbox import RejectedEvent as RejectedEvent
from rapport.channel.agents.publisher import Publisher as Publisher
from rapport.channel.agents.publisher import PublisherSettings as PublisherSettings
from rapport.channel.agents.publisher import Status as Status
from rapport.core.event import Event as Event
from rapport.core.event import Gap as Gap
from rapport.mediation.outgoing.client_mediator import Mediator as Mediator
