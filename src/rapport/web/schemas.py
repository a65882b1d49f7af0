"""Structures of the OpenAPI and AsyncAPI documents. [CH-12]

Structures of other packages (requests, frames) are taken from there; those that handlers write
member by member are declared here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec

from rapport.channel.requests.leases import Answers, SettlementResult
from rapport.channel.requests.request import LeasedDelivery, Request
from rapport.core.errors import Problem
from rapport.core.event import MAX_NAME, Gap
from rapport.mediation.interpretations.change_requests import ChangeRequest
from rapport.mediation.interpretations.change_state import ChangeResult
from rapport.mediation.interpretations.views import (
    ChangeView,
    InterpretationOverview,
    InterpretationView,
)
from rapport.web.channel_socket import ClientFrame, Subscribe

CHANNEL_PATTERN = "^[a-z0-9][a-z0-9._-]{0,127}$"
REFERENCE = "#/components/schemas/{name}"

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]


class CloudEvent(msgspec.Struct, kw_only=True):
    """A CloudEvent 1.0; further members are extension attributes (scalars)."""

    id: _Name
    source: _Name
    type: _Name
    specversion: Literal["1.0"] = "1.0"
    subject: Annotated[str, msgspec.Meta(max_length=MAX_NAME)] | None = None
    time: str | int | None = None
    datacontenttype: str | None = None
    data: Any = None
    data_base64: str | None = None


class StoredCloudEvent(msgspec.Struct, kw_only=True):
    """A CloudEvent with its place in the channel and the time it was received (ms since 1970)."""

    id: str
    source: str
    type: str
    specversion: Literal["1.0"]
    time: str
    datacontenttype: str
    position: int
    received: int
    subject: str = ""
    data: Any = None
    data_base64: str = ""
    handback: str = ""


class Published(msgspec.Struct, kw_only=True):
    """Where each event stands; a repetition has the position of its first copy."""

    positions: list[int]
    duplicates: int


class Page(msgspec.Struct, kw_only=True):
    """Events after a position; go on after `next`."""

    channel: str
    events: list[StoredCloudEvent]
    next: int
    gaps: list[Gap] = []
    """Positions up to `next` that could not be read; left out when there are none."""


class BatchShown(msgspec.Struct, kw_only=True):
    """The messages a token names, and how to go on."""

    channel: str
    events: list[StoredCloudEvent]
    current_token: str
    next_token: str | None
    lease_minutes: int
    ttl_ms: int
    gone: bool
    handback: str = ""
    lease_ms: int = 0
    deliveries: list[LeasedDelivery] = []
    gaps: list[Gap] = []
    """Positions that could not be read, up to where the next set begins; left out when there are
    none.
    """


class ProblemDetails(msgspec.Struct, kw_only=True):
    """RFC 9457: what is wrong and what to do about it; `title` is the stable code."""

    type: str
    title: str
    status: int
    detail: str
    hint: str
    problems: list[Problem]


class BatchFrame(msgspec.Struct, kw_only=True):
    """A batch pushed over a socket."""

    id: str
    batch: list[StoredCloudEvent]
    position: int
    current_token: str
    next_token: str
    handback: str = ""
    gone: bool = False


class GapFrame(msgspec.Struct, kw_only=True):
    """Positions that could not be read; comes before the batch of the stretch they lie in."""

    id: str
    gap: Gap


class ErrorFrame(msgspec.Struct, kw_only=True):
    """What went wrong; `ref` names the frame it answers, `id` the subscription that ended."""

    error: ProblemDetails
    ref: str | int | None = None
    id: str = ""


class AnswerFrame(msgspec.Struct, kw_only=True):
    """The answer to a frame: one of its members beside `ref`."""

    subscribed: str = ""
    unsubscribed: str = ""
    end: str = ""
    position: int = 0
    published: Published | None = None
    pong: Any = None
    ref: str | int | None = None


STRUCTS = (
    *(CloudEvent, StoredCloudEvent, Published, Page, Request, BatchShown, ProblemDetails),
    *(Answers, SettlementResult),
    *(Subscribe, ClientFrame, BatchFrame, Gap, GapFrame, ErrorFrame, AnswerFrame),
    *(ChangeRequest, ChangeResult, InterpretationOverview, InterpretationView, ChangeView),
)


def schema_components(more: Iterable[type[msgspec.Struct]] = ()) -> dict[str, Any]:
    """JSON Schemas of all structures by name, and of further ones."""
    every: list[type[msgspec.Struct]] = [*STRUCTS, *more]
    kinds = dict.fromkeys(_documented(kind) for kind in every)
    _roots, components = msgspec.json.schema_components(list(kinds), ref_template=REFERENCE)
    return components


def reference(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Where the schema of a structure stands in a document."""
    return {"$ref": REFERENCE.format(name=_documented(kind).__name__)}


class SaidByClient(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A frame of a client: exactly one of the first five members."""

    subscribe: Subscribe | None = None
    credit: int | None = None
    unsubscribe: str | None = None
    publish: list[CloudEvent] | None = None
    ping: Any = None
    id: str = ""
    ref: str | int | None = None


def _documented(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Raw members have no schema: the document shows the frame with their contents."""
    return SaidByClient if kind is ClientFrame else kind
