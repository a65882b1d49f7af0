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
from rapport.communication.api.communication import Communication
from rapport.communication.api.opening import open_communication
from rapport.communication.api.sync import CommunicationSync
from rapport.communication.callbacks import (
    CollectiveInfo,
    NotificationCallback,
    PeerInfo,
)
from rapport.communication.delivering.tracking import NextReceiver
from rapport.communication.delivering.wishes import Wishes
from rapport.communication.directory.cache import NoSuchCollective, NoSuchPeer
from rapport.communication.history.ledger import LedgerRow, Question
from rapport.communication.peers import Collective, Peer
from rapport.communication.services.info import MessageInformation, RelatedMessage
from rapport.communication.services.query import LoggedMessage, MessagePage, QueryCriteria
from rapport.communication.services.routing import RoutingRule
from rapport.communication.sessions.logins import Authenticate
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
