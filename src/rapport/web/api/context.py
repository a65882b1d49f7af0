"""Context: the current values of an entity, setting them, and the state of broker and ensemble.
[CX-3, CX-9, EN-10, EN-14]

Reading needs the right to subscribe to the channel `context`, writing the right to publish to it;
where the site grants `[context.rights]`, the identity needs those of the entity, too. An id with a
slash fits into no path: ask a broker for it.
"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import get, put
from litestar.params import FromPath, FromQuery

from rapport.context.connections import ContextNotFound
from rapport.context.rights import LOCAL
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import InvalidInput, RapportError
from rapport.core.json_objects import ObjectDecoder
from rapport.core.times import format_time, parse_duration, parse_time
from rapport.node.context_broker import NodeContext
from rapport.node.node import Node
from rapport.transport.addresses import format_address
from rapport.web.endpoint import (
    HttpRequest,
    NodeDependency,
    Reply,
    json_response,
    require_admin,
    require_right,
)
from rapport.web.endpoint_docs import JSON, documented

_CHANNEL = "context"
_WITHIN_MS, _LONGEST_MS = 2_000, 60_000


class NewValues(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is true of the entity, and how long."""

    values: dict[str, Any]
    valid: str
    """Such as `30s`."""
    valid_from: str = ""
    """Default: now."""
    provider: str = ""
    """Only for administrators; other callers are their own providers."""


_READ = ObjectDecoder(
    NewValues,
    fault="this says nothing of an entity",
    code="context.bad_body",
    hint='such as {"values": {"open": true}, "valid": "30s"}',
)


@get("/context")
async def context_status(request: HttpRequest, node: NodeDependency) -> Reply:
    """How the node's broker is: neighbours, records, replicas, counters."""
    require_admin(request, node)
    return json_response(_context(node).status())


@get("/context/{entity_type:str}/{entity_id:str}/{entity_scope:str}")
async def read_context(
    request: HttpRequest,
    entity_type: FromPath[str],
    entity_id: FromPath[str],
    entity_scope: FromPath[str],
    node: NodeDependency,
    within: FromQuery[str] = "",
) -> Reply:
    """What is true of an entity, wherever in the network it is known; `within` (else 2 s) says how
    long to look.
    """
    identity = _speaking(node, require_right(request, node, "subscribe", _CHANNEL))
    found = await _context(node).broker.ask(
        EntityRef(entity_type, entity_id),
        entity_scope,
        within_ms=_within_ms(within),
        identity=identity,
    )
    holder = format_address(found.holder) if found.holder is not None else ""
    where = {"hops": found.hops, "holder": holder}
    return json_response({**_shown(found.record), **where})


@put(
    "/context/{entity_type:str}/{entity_id:str}/{entity_scope:str}",
    opt=documented(bodies={JSON: NewValues}, example={"values": {"open": True}, "valid": "30s"}),
)
async def tell_context(
    request: HttpRequest,
    entity_type: FromPath[str],
    entity_id: FromPath[str],
    entity_scope: FromPath[str],
    node: NodeDependency,
) -> Reply:
    """Sets values of an entity for a time; answered when they are on disk."""
    identity = require_right(request, node, "publish", _CHANNEL)
    node.admission.rates.charge(identity, 1, node.clock.now_ms())
    values = _READ.decode(await request.body())
    record = _record(node, identity, EntityRef(entity_type, entity_id), entity_scope, values)
    await _context(node).broker.put(record, identity=_speaking(node, identity))
    return json_response(_shown(record))


def _context(node: Node) -> NodeContext:
    if node.context is None:
        raise ContextNotFound(
            "the site has no context broker",
            code="context.no_broker_here",
            hint='add [context] with listen = "127.0.0.1:7411"',
        )
    return node.context


def _speaking(node: Node, identity: str) -> str:
    """The caller's identity at the broker: administrators act as the node itself."""
    return LOCAL if node.rights.allows_admin(identity) else identity


def _within_ms(text: str) -> int:
    within_ms = parse_duration(text) if text else _WITHIN_MS
    if not 0 < within_ms <= _LONGEST_MS:
        message = f"{text[:40]!r} is not between nothing and a minute"
        raise InvalidInput(message, code="context.bad_deadline", hint="such as within=2s")
    return within_ms


def _record(
    node: Node, identity: str, entity: EntityRef, scope: str, values: NewValues
) -> ContextRecord:
    own = not node.rights.allows_admin(identity)
    valid_from = parse_time(values.valid_from) if values.valid_from else node.clock.now_ms()
    valid_ms = parse_duration(values.valid)
    if valid_ms <= 0:
        message = "what is true for no time is not true"
        raise InvalidInput(message, code="context.bad_body", hint='such as "valid": "30s"')
    return ContextRecord(
        provider=identity if own else values.provider or node.site.name,
        entity=entity,
        scope=scope,
        valid_from=valid_from,
        valid_until=valid_from + valid_ms,
        values=values.values,
    )


def _shown(record: ContextRecord) -> dict[str, Any]:
    return {
        "entity": str(record.entity),
        "scope": record.scope,
        "values": record.values,
        "provider": record.provider,
        "valid_from": format_time(record.valid_from),
        "valid_until": format_time(record.valid_until),
    }


class NoEnsembleHere(RapportError):
    """The site has no `[ensemble]`."""

    code = "ensemble.not_here"
    status = 404


@get("/ensemble")
async def ensemble_status(request: HttpRequest, node: NodeDependency) -> Reply:
    """How the ensemble node is: components, members, what came of the site's ties, interpretations
    that are shared.
    """
    require_admin(request, node)
    if node.ensemble is None:
        raise NoEnsembleHere(
            "the site takes part in no ensembles",
            hint='add [ensemble] with listen = "127.0.0.1:7511"',
        )
    return json_response(node.ensemble.status())
