"""The SOAP endpoint of a channel: XMessages operations, WSDL and XML Schema. [CH-12, CH-2]

`POST /soap/channels/NAME` accepts handleMessages and requestMessages, SOAP 1.1 or 1.2; `GET` with
`?wsdl` or `?xsd` returns the documents for client generators.

A fault has the HTTP status of its error (400, 403, 409, ...) in SOAP 1.1 as well: the rule of 500
for every fault would make a caller's mistake a failure of the node in every proxy and alarm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from pathlib import Path
from string import Template
from typing import TypeVar
from xml.sax.saxutils import escape

from litestar import Response, get
from litestar.exceptions import HTTPException
from litestar.params import FromPath

from rapport.channel.log.sequences import counted_in
from rapport.channel.validation import check_channel_name
from rapport.channel.xmessages.envelope import (
    HANDLE,
    MEDIA_TYPES,
    REQUEST,
    SOAP_11,
    SOAP_12,
    SoapCall,
    SoapError,
    read_call,
    write_envelope,
    write_fault,
)
from rapport.channel.xmessages.messages import read_messages, read_request, write_batch, write_gaps
from rapport.core.errors import InvalidInput, RapportError, TooLarge
from rapport.core.event import Event
from rapport.kernel.clock import Chance, Ids
from rapport.kernel.telemetry import get_logger
from rapport.node.node import Node
from rapport.web.cloudevents import append_events, check_not_reserved
from rapport.web.endpoint import HttpRequest, NodeDependency, Reply, post, require_right
from rapport.web.endpoint_docs import TEXT, documented
from rapport.web.problems import error_headers
from rapport.web.request_limits import ANY_QUERY
from rapport.web.security import SAFE_HEADERS, text_type

_HERE = Path(__file__).parent / "static"


@cache
def soap_schema() -> bytes:
    """The XML Schema; the same for every channel."""
    return (_HERE / "xmessages.xsd").read_bytes()


def wsdl(address: str) -> bytes:
    return _template().substitute(address=escape(address, {'"': "&quot;"})).encode()


@cache
def _template() -> Template:
    return Template((_HERE / "xmessages.wsdl").read_text(encoding="utf-8"))


_log = get_logger(__name__)


def fault_response(request: HttpRequest, error: Exception) -> Reply:
    """Any error as a fault: ours, with Retry-After where it helps; the framework's own refusals; an
    internal one, which is logged with its trace and reported without inner details.
    """
    if isinstance(error, RapportError):
        fault, status = error, error.status
    elif isinstance(error, HTTPException):
        fault, status = InvalidInput(str(error.detail), code="http.refused"), error.status_code
        if status == 413:
            fault = TooLarge("the envelope is too large", hint="send smaller batches")
    else:
        _log.exception("SOAP request failed", path=request.url.path, exc_info=error)
        fault, status = (
            RapportError("the node failed to answer this request; its log says why"),
            500,
        )
    version = error.version if isinstance(error, SoapError) else _version(request)
    return Response(
        write_fault(version, fault),
        status_code=status,
        media_type=text_type(MEDIA_TYPES[version]),
        headers=SAFE_HEADERS | error_headers(fault),
    )


def _version(request: HttpRequest) -> str:
    """What the caller speaks by its media type; its envelope may be what is wrong."""
    media_type = request.headers.get("content-type", "")
    return SOAP_12 if media_type.startswith("application/soap+xml") else SOAP_11


_CHANCE = Chance.from_machine()
_LARGE = 64 * 1024
"""Bytes of an envelope from which on it is read in a thread: others get their turn meanwhile."""
T = TypeVar("T")


@post(
    "/soap/channels/{name:str}",
    opt={ANY_QUERY: True},
    exception_handlers=dict.fromkeys((RapportError, HTTPException, Exception), fault_response),
    include_in_schema=False,
)
async def call(request: HttpRequest, name: FromPath[str], node: NodeDependency) -> Reply:
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


@get(
    "/soap/channels/{name:str}",
    opt=documented(
        answer=TEXT,
        media=("text/xml; charset=utf-8",),
        parameters=tuple(
            {
                "name": name,
                "in": "query",
                "required": False,
                "allowEmptyValue": True,
                "description": what,
                "schema": {"type": "string", "maxLength": 0},
            }
            for name, what in (("wsdl", "Gives the WSDL."), ("xsd", "Gives the XML Schema."))
        ),
        is_open=True,
        any_query=True,
    ),
)
async def describe(request: HttpRequest, name: FromPath[str], node: NodeDependency) -> Reply:
    """The WSDL (`?wsdl`) or the XML Schema (`?xsd`) of a channel's SOAP endpoint."""
    check_channel_name(name)
    wanted = request.url.query.lower()
    if wanted == "xsd":
        return Response(soap_schema(), media_type="text/xml")
    if wanted != "wsdl":
        raise InvalidInput(
            "this address is called by POST with a SOAP envelope",
            code="soap.nothing_to_show",
            hint="GET it with ?wsdl or ?xsd for its description",
        )
    base = node.settings.public_url or str(request.base_url)
    address = f"{base.rstrip('/')}/soap/channels/{name}"
    return Response(wsdl(address), media_type="text/xml")


async def _handle(request: HttpRequest, name: str, node: Node, called: SoapCall) -> str:
    sender = require_right(request, node, "publish", name)
    check_not_reserved(name)
    now_ms, new_id = node.clock.now_ms(), Ids(node.clock, _CHANCE).new

    def read(_body: bytes) -> list[Event]:
        return read_messages(called.argument, sender=sender, now_ms=now_ms, new_id=new_id)

    events = await _aside(await request.body(), read)
    if events:
        await append_events(node, name, counted_in(name, events), identity=sender)
    return f"<x:{HANDLE}Response/>"


async def _request(
    request: HttpRequest, name: str, node: Node, called: SoapCall
) -> tuple[str, str]:
    """Content and header blocks of the answer."""
    identity = require_right(request, node, "subscribe", name)
    request_read = read_request(called.argument)
    batch = await node.pushing.request(
        name,
        request_read.request,
        identity=identity,
        subscriber_wsdl=request_read.subscriber_wsdl,
        closing=node.closing,
    )
    content = f"<x:{REQUEST}Response>{write_batch(batch)}</x:{REQUEST}Response>"
    return content, write_gaps(batch.gaps)


async def _aside(body: bytes, read: Callable[[bytes], T]) -> T:
    """Reads a body where it does not hold up others; a small one is read at once."""
    if len(body) < _LARGE:
        return read(body)
    return await asyncio.to_thread(read, body)
