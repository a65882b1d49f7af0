"""Sources: what each gives, when it was heard last, and which of its readings wait. [CN-6]

Needs the right to read `events`; readings in quarantine, that to read `quarantine`.
"""

from __future__ import annotations

import msgspec
from litestar import get

from rapport.node.node import Node
from rapport.node.things import SourceNews
from rapport.web.endpoint import (
    HttpRequest,
    NodeDependency,
    Reply,
    json_response,
    require_unfiltered,
)
from rapport.web.endpoint_docs import documented

_EVENTS, _QUARANTINE = "events", "quarantine"


class HeldReadings(msgspec.Struct, frozen=True, kw_only=True):
    """Readings of a source in quarantine for one reason."""

    reason: str
    count: int


class SourceView(msgspec.Struct, frozen=True, kw_only=True):
    """A source of the site."""

    name: str
    concept: str = ""
    attributes: list[str] = []
    interpretation: str = ""
    period_ms: int = 0
    """It promises a reading at least this often; 0: it promises nothing."""
    heard: int = 0
    """When its newest reading arrived; 0: never, as far as the log was read."""
    readings: int = 0
    """How many readings of it the log was seen to hold."""
    silent: bool = False
    held: list[HeldReadings] = []


class SourceList(msgspec.Struct, frozen=True):
    """All sources by name."""

    sources: list[SourceView]
    complete: bool
    """Whether the whole log was read."""


@get("/sources", opt=documented(answer=SourceList))
async def list_sources(request: HttpRequest, node: NodeDependency) -> Reply:
    """Every source with what it gives, when it was heard last, and its quarantined readings."""
    identity = require_unfiltered(request, node, _EVENTS)
    await node.things.refresh()
    held = await _held(node) if node.rights.allows(identity, "subscribe", _QUARANTINE) else {}
    declared = node.policy.ontology.sources
    names = sorted({*declared, *held})
    return json_response(
        SourceList(
            [_view(node, name, held.get(name, [])) for name in names], node.things.is_complete
        )
    )


def _view(node: Node, name: str, held: list[HeldReadings]) -> SourceView:
    source = node.policy.ontology.sources.get(name)
    news = node.things.sources.get(name, SourceNews())
    if source is None:
        return SourceView(name=name, heard=news.received, readings=news.count, held=held)
    quiet_ms = node.clock.now_ms() - news.received
    return SourceView(
        name=name,
        concept=source.concept,
        attributes=list(source.attributes),
        interpretation=source.interpretation,
        period_ms=source.period_ms,
        heard=news.received,
        readings=news.count,
        silent=bool(source.period_ms) and quiet_ms > 2 * source.period_ms,
        held=held,
    )


async def _held(node: Node) -> dict[str, list[HeldReadings]]:
    index = node.releasing.index
    await index.refresh()
    found: dict[str, list[HeldReadings]] = {}
    for (source, reason), count in index.counts().most_common():
        found.setdefault(source, []).append(HeldReadings(reason=reason, count=count))
    return found
