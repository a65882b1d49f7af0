"""The public API of communication, in one place to import from. [CO-15]

`open_communication` and `CommunicationSync` open it alone on a directory; a node has it as
`node.communication`. Everything else here is what their calls take and give.
"""

from __future__ import annotations

from rapport.communication.adapters.base import (
    Confirmed,
    Delivery,
    Failed,
    Outcome,
    OutputAdapter,
    Sent,
    adapter,
)
from rapport.communication.adapters.input_base import InputPullAdapter, InputPushAdapter, Intake
from rapport.communication.api_callbacks import (
    CollectiveInfo,
    NotificationCallback,
    PeerInfo,
)
from rapport.communication.api_communication import Communication
from rapport.communication.api_opening import open_communication
from rapport.communication.api_sync import CommunicationSync
from rapport.communication.authenticating import Authenticate
from rapport.communication.directory_cache import NoSuchCollective, NoSuchPeer
from rapport.communication.history import LedgerRow, Question
from rapport.communication.info import MessageInformation, RelatedMessage
from rapport.communication.peers import Collective, Peer
from rapport.communication.query import LoggedMessage, MessagePage, QueryCriteria
from rapport.communication.routing import RoutingRule
from rapport.communication.tracking import NextReceiver
from rapport.communication.wishes import Wishes
from rapport.core.errors import RapportError
from rapport.core.message import Identifier, Message

__all__ = [
    "Authenticate",
    "Collective",
    "CollectiveInfo",
    "Communication",
    "CommunicationSync",
    "Confirmed",
    "Delivery",
    "Failed",
    "Identifier",
    "InputPullAdapter",
    "InputPushAdapter",
    "Intake",
    "LedgerRow",
    "LoggedMessage",
    "Message",
    "MessageInformation",
    "MessagePage",
    "NextReceiver",
    "NoSuchCollective",
    "NoSuchPeer",
    "NotificationCallback",
    "Outcome",
    "OutputAdapter",
    "Peer",
    "PeerInfo",
    "QueryCriteria",
    "Question",
    "RapportError",
    "RelatedMessage",
    "RoutingRule",
    "Sent",
    "Wishes",
    "adapter",
    "open_communication",
]
