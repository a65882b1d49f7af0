"""The SOAP door of a channel: its WSDL, its schema, and the two operations. [CH-2, CH-12]

`POST /soap/channels/NAME` takes handleMessages and requestMessages, SOAP 1.1 or 1.2; `GET` with
`?wsdl` or `?xsd` gives the documents a client builds its proxy from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from litestar import Request, Response, get, post
from litestar.params import FromPath

from rapport.channel.checking import check_channel_name
from rapport.channel.sequences.numbers import counted_in
from rapport.channel.xmessages.batches import read_asked, read_messages, write_batch, write_gaps
from rapport.channel.xmessages.envelope import MEDIA_TYPES, Call, read_call, write_envelope
from rapport.channel.xmessages.names import HANDLE, REQUEST
from rapport.core.errors import InvalidInput
from rapport.core.event import Event
from rapport.kernel.chance import Chance, Ids
from rapport.node.node import Node
from rapport.web.callers import allow
from rapport.web.dependencies import NodeDependency
from rapport.web.guard import OPEN
from rapport.web.headers import text_type
from rapport.web.publishing import append_events, check_not_reserved
from rapport.web.query_parameters import ANY_QUERY
from rapport.web.soap.documents import schema, wsdl
from rapport.web.soap.faults import FAULTS

_CHANCE = Chance.from_machine()
_LARGE = 64 * 1024
"""Bytes of an envelope from which on it is read in a thread: others get their turn meanwhile."""
T = TypeVar("T")


@post(
    "/soap/channels/{name:str}",
    status_code=200,
    opt={ANY_QUERY: True},
    exception_handlers=FAULTS,
    include_in_schema=False,
)
async def call(
    request: Request[Any, Any, Any], name: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """Carries out the operation in the envelope; whatever goes wrong is answered as a fault."""
    check_channel_name(name)
    called = await _aside(await request.body(), read_call)
    if called.operation == HANDLE:
        content, header = await _handle(request, name, node, called), ""
    else:
        content, header = await _request(request, name, node, called)
    return Response(
        write_envelope(called.version, content, header=header),
        media_type=text_type(MEDIA_TYPES[called.version]),
    )


@get("/soap/channels/{name:str}", opt={OPEN: True, ANY_QUERY: True})
async def describe(
    request: Request[Any, Any, Any], name: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """The WSDL (`?wsdl`) or the schema (`?xsd`); they tell nothing of what the channel holds."""
    check_channel_name(name)
    wanted = request.url.query.lower()
    if wanted == "xsd":
        return Response(schema(), media_type="text/xml")
    if wanted != "wsdl":
        raise InvalidInput(
            "this address is called by POST with a SOAP envelope",
            code="soap.nothing_to_show",
            hint="GET it with ?wsdl or ?xsd for its description",
        )
    base = node.settings.public_url or str(request.base_url)
    address = f"{base.rstrip('/')}/soap/channels/{name}"
    return Response(wsdl(address), media_type="text/xml")


async def _handle(request: Request[Any, Any, Any], name: str, node: Node, called: Call) -> str:
    sender = allow(request, node, "publish", name)
    check_not_reserved(name)
    now_ms, new_id = node.clock.now_ms(), Ids(node.clock, _CHANCE).new

    def read(_body: bytes) -> list[Event]:
        return read_messages(called.argument, sender=sender, now_ms=now_ms, new_id=new_id)

    events = await _aside(await request.body(), read)
    if events:
        await append_events(node, name, counted_in(name, events), identity=sender)
    return f"<x:{HANDLE}Response/>"


async def _request(
    request: Request[Any, Any, Any], name: str, node: Node, called: Call
) -> tuple[str, str]:
    """Content and header blocks of the answer."""
    identity = allow(request, node, "subscribe", name)
    asked = read_asked(called.argument)
    batch = await node.pushing.request(
        name,
        asked.request,
        identity=identity,
        subscriber_wsdl=asked.subscriber_wsdl,
        closing=node.doors_close,
    )
    content = f"<x:{REQUEST}Response>{write_batch(batch)}</x:{REQUEST}Response>"
    return content, write_gaps(batch.gaps)


async def _aside(body: bytes, read: Callable[[bytes], T]) -> T:
    """Reads a body where it does not hold up others; a small one is read at once."""
    if len(body) < _LARGE:
        return read(body)
    return await asyncio.to_thread(read, body)
