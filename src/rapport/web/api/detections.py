"""Detections, and the rates at which events come. [CN-4, CN-8]

Detections need the right to read `detections`. Why one was found: `/explain/{id}/why`; from which
readings: `/explain/{id}`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import get
from litestar.params import FromPath, FromQuery, QueryParameter

from rapport.core.detection import DETECTED
from rapport.core.errors import UnknownName
from rapport.node.found_situations import (
    FoundPage,
    FoundSituation,
    concepts_by_alias,
    find_situations,
    found_situation,
)
from rapport.node.rates import Rate
from rapport.web.endpoint import (
    HttpRequest,
    NodeDependency,
    Reply,
    json_response,
    require_any_right,
    require_unfiltered,
)
from rapport.web.endpoint_docs import documented

_DETECTIONS = "detections"
_RATED = {"events": "", "detections": DETECTED, "quarantine": ""}
"""Channels that people look at, with the type of event that they mean where there are several."""
Limit = Annotated[int, QueryParameter(ge=1, le=500)]


class RateList(msgspec.Struct, frozen=True):
    """The rates of the channels that people look at."""

    rates: list[Rate]


Before = Annotated[int, QueryParameter(ge=0, le=2**62)]


@get("/detections", opt=documented(answer=FoundPage))
async def list_detections(
    request: HttpRequest,
    node: NodeDependency,
    policy: FromQuery[str] = "",
    thing: FromQuery[str] = "",
    concept: FromQuery[str] = "",
    before: Before = 0,
    limit: Limit = 50,
) -> Reply:
    """Detections, newest first: of a policy, or those that name a thing. Go on with
    `before=next`.
    """
    require_unfiltered(request, node, _DETECTIONS)
    page = await find_situations(
        node.channels.channel(_DETECTIONS),
        concepts_by_alias(node),
        policy=policy,
        thing=thing,
        concept=concept,
        before=before,
        limit=limit,
    )
    return json_response(page)


@get("/detections/{detection:str}", opt=documented(answer=FoundSituation))
async def show_detection(
    request: HttpRequest, detection: FromPath[str], node: NodeDependency
) -> Reply:
    """One detection."""
    require_unfiltered(request, node, _DETECTIONS)
    for channel, stored in await node.channels.find_event(detection):
        found = found_situation(stored, concepts_by_alias(node)) if channel == _DETECTIONS else None
        if found is not None:
            return json_response(found)
    raise UnknownName("detection", detection, [], code="event.unknown")


@get("/rates", opt=documented(answer=RateList))
async def show_rates(
    request: HttpRequest,
    node: NodeDependency,
    minutes: Annotated[int, QueryParameter(ge=1, le=1_440)] = 60,
) -> Reply:
    """Readings, detections and quarantined readings per minute of the last hour, oldest first; of
    what the caller may read.
    """
    identity = require_any_right(request, node, "rates")
    rates: list[Rate] = [
        await node.rates.rate(name, node.clock.now_ms(), minutes, of_type=of_type)
        for name, of_type in _RATED.items()
        if node.rights.allows(identity, "subscribe", name)
    ]
    return json_response(RateList(rates))
