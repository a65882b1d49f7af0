"""The ten messages of v0 as structs; `reading` and `writing` know the bytes. [CX-2]"""

from __future__ import annotations

import msgspec

from rapport.context.messages import Question
from rapport.core.context_record import ContextRecord
from rapport.transport.base import Address

MONITORING, PING, UPDATE, REQUEST, RESPONSE, ACK, NACK, LEAVING, JOINING, PING_RESPONSE = range(10)
OPERATIONS = {
    MONITORING: "StartNeighborsMonitoring",
    PING: "Ping",
    UPDATE: "Context Update/Advertisement",
    REQUEST: "Context Request",
    LEAVING: "BrokerLeaving",
    JOINING: "BrokerJoining",
}
"""What can be asked of a broker, as ACK and NACK name it: the list of types in the appendix."""
UNKNOWN_OPERATION = "Unknown"
BROKER = "Ctx_Broker"
"""The word in a ping response."""


class StartMonitoring(msgspec.Struct, frozen=True):
    """0, controller to broker: your neighbours are set up, watch them."""

    sent: int


class Ping(msgspec.Struct, frozen=True):
    """1, anybody to a broker: are you there?"""

    sent: int


class Update(msgspec.Struct, frozen=True):
    """2, provider to broker: this is true. Both kinds add or replace."""

    sent: int
    record: ContextRecord
    advertises: bool = False


class Request(msgspec.Struct, frozen=True):
    """3, consumer to broker without a path, broker to broker with one: the addresses that it came
    through, the consumer's first, without the sender's.
    """

    sent: int
    question: Question
    path: tuple[Address, ...] = ()


class Response(msgspec.Struct, frozen=True):
    """4, back along the path. `marks` are the places on the path (from 0) behind which an asterisk
    stands: who receives it with that place last keeps a replica.
    """

    sent: int
    record: ContextRecord
    path: tuple[Address, ...] = ()
    marks: tuple[int, ...] = ()


class Acknowledgement(msgspec.Struct, frozen=True):
    """5: the operation was received (101) or processed (102)."""

    sent: int
    status: int
    operation: str
    requester: str


class Refusal(msgspec.Struct, frozen=True):
    """6: it failed. Between brokers with what is left of the request's path."""

    sent: int
    status: int
    operation: str
    requester: str
    path: tuple[Address, ...] = ()


class Leaving(msgspec.Struct, frozen=True):
    """7, controller to broker: leave; with an asterisk broker to neighbour: I leave."""

    sent: int
    is_brokers: bool = False


class Joining(msgspec.Struct, frozen=True):
    """8, controller to broker: join these (`HOST` or `HOST:PORT`); with an asterisk broker to
    broker: let us be neighbours.
    """

    sent: int
    brokers: tuple[str, ...] = ()
    is_brokers: bool = False


class PingResponse(msgspec.Struct, frozen=True):
    """9: the broker at this host is there."""

    sent: int
    broker: str


V0Message = (
    StartMonitoring
    | Ping
    | Update
    | Request
    | Response
    | Acknowledgement
    | Refusal
    | Leaving
    | Joining
    | PingResponse
)
