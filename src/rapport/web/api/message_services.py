"""Message information (the meaning of message types) and routing rules. [CO-14, CO-6]

Any caller may read message information; changes need the right to change the node. A routing rule
is in force when the response arrives.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import get, put
from litestar.params import FromPath, QueryParameter

from rapport.communication.message_info import (
    MessageInfoEntry,
    MessageInformation,
    shown_information,
)
from rapport.communication.routing import RoutingRule, shown_rule
from rapport.core.errors import UnknownName
from rapport.core.json_objects import ObjectDecoder
from rapport.core.message import Identifier
from rapport.node.node import Node
from rapport.web.endpoint import (
    HttpRequest,
    NodeDependency,
    Reply,
    delete,
    json_response,
    post,
    require_admin,
    require_right,
)
from rapport.web.endpoint_docs import EXAMPLE_INFORMATION, JSON, documented

_READ_INFO = ObjectDecoder(
    MessageInformation,
    fault="this cannot be understood",
    code="info.bad",
    hint='such as {"text": "What it means", "schema": {"type": "object"}}',
)


@get("/messages/info")
async def list_info(
    request: HttpRequest,
    node: NodeDependency,
    message: Annotated[str, QueryParameter(name="id")] = "",
) -> Reply:
    """Information on every type of message; with an id, on that message (for readers of `log`)."""
    if not message:
        return json_response(
            [shown_information(found) for found in await node.services.infos.all()]
        )
    require_right(request, node, "subscribe", "log")
    return _found(await node.services.infos.info_for_message(id=message))


@get("/messages/info/{kind:str}")
async def show_type_info(kind: FromPath[str], node: NodeDependency) -> Reply:
    """What a type of message means, in words and as JSON Schema, and how to answer it."""
    return _found(await node.services.infos.info_for_message(type=kind))


@get("/messages/info/{kind:str}/{subtype:str}")
async def show_info(kind: FromPath[str], subtype: FromPath[str], node: NodeDependency) -> Reply:
    """What a message of a type and subtype means, in words and as JSON Schema, and how to answer
    it.
    """
    return _found(await node.services.infos.info_for_message(type=kind, subtype=subtype))


@put(
    "/messages/info/{kind:str}",
    opt=documented(bodies={JSON: MessageInformation}, example=EXAMPLE_INFORMATION),
)
async def put_type_info(request: HttpRequest, kind: FromPath[str], node: NodeDependency) -> Reply:
    """Sets the information of a type of message, from now on and durably."""
    return await _put(request, node, kind, "")


@put(
    "/messages/info/{kind:str}/{subtype:str}",
    opt=documented(bodies={JSON: MessageInformation}, example=EXAMPLE_INFORMATION),
)
async def put_info(
    request: HttpRequest, kind: FromPath[str], subtype: FromPath[str], node: NodeDependency
) -> Reply:
    """Sets the information of a type and subtype of message, from now on and durably."""
    return await _put(request, node, kind, subtype)


@delete("/messages/info/{kind:str}")
async def remove_type_info(
    request: HttpRequest, kind: FromPath[str], node: NodeDependency
) -> Reply:
    """Removes stored information; that of the site file, or the built-in one, applies again."""
    return await _remove(request, node, kind, "")


@delete("/messages/info/{kind:str}/{subtype:str}")
async def remove_info(
    request: HttpRequest, kind: FromPath[str], subtype: FromPath[str], node: NodeDependency
) -> Reply:
    """Removes stored information; that of the site file, or the built-in one, applies again."""
    return await _remove(request, node, kind, subtype)


async def _put(request: HttpRequest, node: Node, kind: str, subtype: str) -> Reply:
    identity = require_admin(request, node)
    given = _READ_INFO.decode(await request.body())
    infos = node.services.infos
    await infos.add_message_info(kind, subtype, given, by=identity)
    return _found(await infos.info_for_message(type=kind, subtype=subtype))


async def _remove(request: HttpRequest, node: Node, kind: str, subtype: str) -> Reply:
    identity = require_admin(request, node)
    if not await node.services.infos.remove_message_info(kind, subtype, by=identity):
        raise UnknownName("information that was put", f"{kind} {subtype}".strip())
    return json_response({"removed": {"type": kind, "subtype": subtype}})


def _found(found: MessageInfoEntry) -> Reply:
    return json_response(shown_information(found))


class NewRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule as it is posted: names as `kind:name`; what is empty matches anything."""

    to: list[str]
    id: str = ""
    type: str = ""
    subtype: str = ""
    receiver: str = ""
    sender: str = ""

    def rule(self) -> RoutingRule:
        """The rule; raises InvalidInput for a name that is none."""
        return RoutingRule(
            id=self.id,
            type=self.type,
            subtype=self.subtype,
            receiver=Identifier.parse(self.receiver) if self.receiver else None,
            sender=Identifier.parse(self.sender) if self.sender else None,
            to=tuple(Identifier.parse(each) for each in self.to),
        )


_READ_RULE = ObjectDecoder(
    NewRule,
    fault="this is no routing rule",
    code="routing.bad_rule",
    hint='such as {"type": "TASK", "to": ["peer:ana"]}',
)


@get("/routing")
async def list_rules(request: HttpRequest, node: NodeDependency) -> Reply:
    """The routing rules in force, in their order; needs the right to read `log`."""
    require_right(request, node, "subscribe", "log")
    routing = node.services.routing
    return json_response(
        [
            shown_rule(rule) | {"origin": "site" if routing.is_of_site(rule.id) else "added"}
            for rule in routing.rules()
        ]
    )


@post(
    "/routing",
    status_code=201,
    opt=documented(
        bodies={JSON: NewRule},
        example={"type": "TASK", "sender": "peer:ana", "to": ["collective:watchers"]},
    ),
)
async def add_rule(request: HttpRequest, node: NodeDependency) -> Reply:
    """Adds a routing rule for good; it is in force when this is answered."""
    identity = require_admin(request, node)
    new = _READ_RULE.decode(await request.body())
    added = await node.services.routing.add(new.rule(), by=identity)
    return json_response({"id": added}, status=201)


@delete("/routing/{rule:str}")
async def remove_rule(request: HttpRequest, rule: FromPath[str], node: NodeDependency) -> Reply:
    """Takes a routing rule out for good and gives it back; it is not applied any more."""
    identity = require_admin(request, node)
    routing = node.services.routing
    removed = await routing.remove(rule, by=identity)
    if removed is None:
        known = [each.id for each in routing.rules()]
        raise UnknownName("routing rule", rule, known, code="routing.unknown")
    return json_response(shown_rule(removed))
