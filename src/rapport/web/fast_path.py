"""Fast path for publish requests and channel sockets; bypasses the framework's routing. [CH-12]

The framework's routing and injection cost more than making an event durable. Two paths are
therefore handled here; everything else, and every error response, is the framework's. Both ways use
the same guard, rights and functions.

Responses of known size are written in one piece: an ASGI server handles head and body separately
and checks every header each time, a tenth of the work on such a request. Servers other than
uvicorn's httptools get the two ASGI messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any

import msgspec
from litestar import Litestar, Request, Response
from litestar.connection import ASGIConnection
from litestar.exceptions import HTTPException, WebSocketException
from litestar.exceptions.http_exceptions import RequestEntityTooLarge
from litestar.handlers import BaseRouteHandler
from litestar.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from rapport.core.codec import check_value_count
from rapport.core.errors import RapportError
from rapport.node.node import Node
from rapport.web.api import events
from rapport.web.channel_socket import PushConnections, Socket
from rapport.web.cloudevents import publish_events, publish_readings
from rapport.web.endpoint import Connection, HttpRequest, Reply
from rapport.web.problems import http_error_response, problem_response, unexpected_response
from rapport.web.request_limits import FREE_BYTES, BodyBudget, CountedBody
from rapport.web.security import OPEN, SAFE_HEADERS, RequestGuard

Headers = Sequence[tuple[bytes, bytes]]


class SingleWriteResponses:
    """Responses of status 200 with the same headers except for the length."""

    def __init__(self, headers: Headers) -> None:
        """`headers` have lower-case names; `content-length` is not among them."""
        self._headers = headers
        self._server_headers: Headers = ()
        self._head = self._head_of(())

    async def send(self, send: Send, body: bytes) -> None:
        """Sends a response, in one piece where the server allows it."""
        cycle = getattr(send, "__self__", None)
        if isinstance(cycle, RequestResponseCycle) and _can_write_at_once(cycle):
            self._write(cycle, body)
            return
        length = (b"content-length", str(len(body)).encode())
        start: Any = {
            "type": "http.response.start",
            "status": 200,
            "headers": [*self._headers, length],
        }
        await send(start)
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def _write(self, cycle: RequestResponseCycle, body: bytes) -> None:
        """Does what the server does for both messages, in the same order."""
        if cycle.default_headers is not self._server_headers:  # renewed each second, for the date
            self._server_headers, self._head = (
                cycle.default_headers,
                self._head_of(cycle.default_headers),
            )
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        cycle.transport.write(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))
        cycle.response_complete = True
        cycle.message_event.set()
        cycle.on_response()

    def _head_of(self, of_server: Headers) -> bytes:
        lines = b"".join(b"%b: %b\r\n" % header for header in (*of_server, *self._headers))
        return b"HTTP/1.1 200 OK\r\n" + lines + b"content-length: "


def _can_write_at_once(cycle: RequestResponseCycle) -> bool:
    """Whether the response needs no waiting and the connection stays open."""
    return (
        cycle.keep_alive
        and not cycle.disconnected
        and not cycle.response_started
        and not cycle.flow.write_paused
        and not cycle.access_log
        and cycle.scope["method"] != "HEAD"
    )


Connection = Connection
Publish = Callable[[Node, str, str, Mapping[str, str], bytes, str], Awaitable[bytes]]


class _FastRoute(msgspec.Struct, frozen=True):
    """A path of the fast path: the framework's handler of the same path, and its function."""

    endpoint: str
    """The first part of its path."""
    handler: BaseRouteHandler
    prefix: str
    """Precedes the name in the path to give the channel."""
    publish: Publish


_FAST_ROUTES = {
    ("channels", "events"): _FastRoute("channels", events.publish, "", publish_events),
    ("sources", ""): _FastRoute("sources", events.take_readings, "raw.", publish_readings),
}
_HEAD_PATHS = frozenset(
    {"", "healthz", "readyz", "metrics", "static", "schema", "console", "console-files"}
)
"""Endpoints that monitors query by HEAD: handled as GET, the server leaves the body out."""


class FastPathApp:
    """The framework's ASGI application with a fast path for high-volume publish requests."""

    def __init__(self, app: Litestar, node: Node) -> None:
        self._app, self._node = app, node
        self._guard = _only_guard(app)
        self._most_bytes = node.settings.max_body_bytes
        self._bodies = BodyBudget(node.settings.max_body_bytes)
        safe = [(name.lower().encode(), value.encode()) for name, value in SAFE_HEADERS.items()]
        self._answers = SingleWriteResponses([(b"content-type", b"application/json"), *safe])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request or one socket; the bodies of all of them share one budget."""
        kind: str = scope["type"]
        method = scope.get("method") if kind == "http" else ""
        _, first, name, *rest = (*scope.get("path", "").split("/"), "", "")
        last = "/".join(rest[:-2])
        if method == "POST" and name and (first, last) in _FAST_ROUTES:
            await self._publish(_FAST_ROUTES[first, last], name, scope, receive, send)
        elif kind == "websocket" and name and (first, last) == ("channels", "socket"):
            await self._open_socket(name, scope, receive, send)
        elif method in ("", "GET", "HEAD"):
            if method == "HEAD" and first in _HEAD_PATHS:
                scope = {**scope, "method": "GET"}  # type: ignore[assignment]
            await self._app(scope, receive, send)
        else:
            body = CountedBody(self._bodies, first, receive)
            try:
                await self._app(scope, body, send)
            finally:
                body.release()

    async def _publish(
        self, route: _FastRoute, name: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        headers = _headers(scope)
        counted: CountedBody | None = None
        try:
            identity = self._admit(route, name, scope, headers)
            query = scope.get("query_string", b"").decode("latin-1")
            if query:
                self._app.state.query_parameters.check(route.handler, query)
            length = int(headers.get("content-length", self._most_bytes))  # the server enforces it
            if length > FREE_BYTES:
                counted = CountedBody(self._bodies, route.endpoint, receive)
            body = await self._read_body(length, counted or receive)
            if body is None:
                return  # the caller has gone
            answer = await route.publish(self._node, identity, name, headers, body, query)
        except Exception as error:
            scope.setdefault("state", {})
            await self._refuse(Request(scope, receive, send), error)
            return
        finally:
            if counted is not None:
                counted.release()
        await self._answers.send(send, answer)

    def _admit(self, route: _FastRoute, name: str, scope: Scope, headers: Mapping[str, str]) -> str:
        """The publisher's identity; raises as the guard does, and NotAllowed without the right."""
        peer = scope.get("client")
        is_open = bool(route.handler.opt.get(OPEN))
        identity = self._guard.admit(headers, peer[0] if peer else "", is_open=is_open)
        self._node.rights.check(identity, "publish", f"{route.prefix}{name}")
        return identity

    async def _check_guards(self, connection: Connection, route: BaseRouteHandler) -> None:
        """Runs all guards of the application; raises what they raise."""
        for guard in self._app.guards:
            checked: Any = guard(connection, route)
            if isawaitable(checked):
                await checked

    async def _read_body(self, length: int, receive: Receive) -> bytes | None:
        """The body, None when the caller went away; raises RequestEntityTooLarge."""
        if length > self._most_bytes:
            raise RequestEntityTooLarge
        parts: list[bytes] = []
        size = 0
        while True:
            message: Any = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._most_bytes:
                raise RequestEntityTooLarge
            if not message.get("more_body", False):
                body = parts[0] if len(parts) == 1 else b"".join(parts)
                check_value_count(body)
                return body

    async def _refuse(self, request: HttpRequest, error: Exception) -> None:
        await _send_whole(request.send, "http", refusal(request, error))

    async def _open_socket(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("state", {})
        connection: Connection = ASGIConnection(scope, receive, send)
        await receive()
        live: PushConnections = self._app.state.live
        try:
            await self._check_guards(connection, events.publish)
            self._node.channels.channel(name)
            live.enter()
        except (RapportError, WebSocketException) as error:
            await _refuse_socket(connection, error)
            return
        try:
            await Socket(name, live, connection).serve()
        finally:
            live.leave()


def refusal(request: Any, error: Exception) -> Reply:
    """The response to an error, by the framework's mapping."""
    if isinstance(error, RapportError):
        return problem_response(request, error)
    if isinstance(error, HTTPException):
        return http_error_response(request, error)
    return unexpected_response(request, error)


async def _refuse_socket(connection: Connection, error: RapportError | WebSocketException) -> None:
    """Sends an HTTP response instead of opening the socket, so the client sees the problem."""
    # The guard reports faults to sockets by close codes; the fault itself is its context.
    fault = error.__context__ if isinstance(error, WebSocketException) else error
    assert isinstance(fault, RapportError)
    await _send_whole(connection.send, "websocket.http", problem_response(None, fault))


async def _send_whole(send: Send, kind: str, response: Response[bytes]) -> None:
    headers = {
        "content-type": str(response.media_type),
        "content-length": str(len(response.content)),
        **{name.lower(): value for name, value in response.headers.items()},
    }
    start: Any = {
        "type": f"{kind}.response.start",
        "status": response.status_code,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    body: Any = {"type": f"{kind}.response.body", "body": response.content}
    await send(start)
    await send(body)


def _only_guard(app: Litestar) -> RequestGuard:
    """The guard of the fast path, which calls it without the framework's request object; a second
    guard would have to be called there, too.
    """
    (guard,) = app.guards
    assert isinstance(guard, RequestGuard)
    return guard


def _headers(scope: Scope) -> dict[str, str]:
    """By name; of several with one name the first, as the framework has it."""
    return {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in reversed(tuple(scope["headers"]))
    }
