"""The doors to the message info service: what a type of message means, and how to answer it.
[CO-14]

Whoever is let in may ask; telling something else needs the right to change the node.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, put
from litestar.params import FromPath, QueryParameter

from rapport.communication.message_info import MessageInfoEntry, MessageInformation
from rapport.communication.message_info_service import shown_information
from rapport.core.errors import UnknownName
from rapport.core.json_objects import ObjectDecoder
from rapport.node.node import Node
from rapport.web.callers import allow, allow_admin
from rapport.web.dependencies import NodeDependency

_READ = ObjectDecoder(
    MessageInformation,
    fault="this cannot be understood",
    code="info.bad",
    hint='such as {"text": "What it means", "schema": {"type": "object"}}',
)


@get("/messages/info")
async def list_info(
    request: Request[Any, Any, Any],
    node: NodeDependency,
    message: Annotated[str, QueryParameter(name="id")] = "",
) -> Response[bytes]:
    """What is told of every type of message; with an id, of that message (for readers of `log`)."""
    if not message:
        return _json([shown_information(found) for found in await node.services.infos.all()])
    allow(request, node, "subscribe", "log")
    return _found(await node.services.infos.info_for_message(id=message))


@get("/messages/info/{kind:str}")
async def show_type_info(kind: FromPath[str], node: NodeDependency) -> Response[bytes]:
    """What a type of message means, in words and as JSON Schema, and how to answer it."""
    return _found(await node.services.infos.info_for_message(type=kind))


@get("/messages/info/{kind:str}/{subtype:str}")
async def show_info(
    kind: FromPath[str], subtype: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """What a message of a type and subtype means, in words and as JSON Schema, and how to answer
    it.
    """
    return _found(await node.services.infos.info_for_message(type=kind, subtype=subtype))


@put("/messages/info/{kind:str}")
async def put_type_info(
    request: Request[Any, Any, Any], kind: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """Tells something else of a type of message, from now on and for good."""
    return await _put(request, node, kind, "")


@put("/messages/info/{kind:str}/{subtype:str}")
async def put_info(
    request: Request[Any, Any, Any],
    kind: FromPath[str],
    subtype: FromPath[str],
    node: NodeDependency,
) -> Response[bytes]:
    """Tells something else of a type and subtype of message, from now on and for good."""
    return await _put(request, node, kind, subtype)


@delete("/messages/info/{kind:str}", status_code=200)
async def remove_type_info(
    request: Request[Any, Any, Any], kind: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """Takes back what was put; what the site file says, or what is shipped, is told again."""
    return await _remove(request, node, kind, "")


@delete("/messages/info/{kind:str}/{subtype:str}", status_code=200)
async def remove_info(
    request: Request[Any, Any, Any],
    kind: FromPath[str],
    subtype: FromPath[str],
    node: NodeDependency,
) -> Response[bytes]:
    """Takes back what was put; what the site file says, or what is shipped, is told again."""
    return await _remove(request, node, kind, subtype)


async def _put(
    request: Request[Any, Any, Any], node: Node, kind: str, subtype: str
) -> Response[bytes]:
    identity = allow_admin(request, node)
    given = _READ.decode(await request.body())
    infos = node.services.infos
    await infos.add_message_info(kind, subtype, given, by=identity)
    return _found(await infos.info_for_message(type=kind, subtype=subtype))


async def _remove(
    request: Request[Any, Any, Any], node: Node, kind: str, subtype: str
) -> Response[bytes]:
    identity = allow_admin(request, node)
    if not await node.services.infos.remove_message_info(kind, subtype, by=identity):
        raise UnknownName("information that was put", f"{kind} {subtype}".strip())
    return _json({"removed": {"type": kind, "subtype": subtype}})


def _found(found: MessageInfoEntry) -> Response[bytes]:
    return _json(shown_information(found))


def _json(value: object) -> Response[bytes]:
    return Response(msgspec.json.encode(value), media_type="application/json")
