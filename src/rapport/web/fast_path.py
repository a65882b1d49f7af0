"""Answers that are known whole, written in one piece. [CH-12]

An ASGI server is told the head of an answer and then its body, and looks at every header each time.
For the doors that events rush through that is a tenth of the work on a request, and the headers are
always the same. Any other server than ours is told as usual.

The doors that events rush through, in front of the framework: publishing and the socket. [CH-12]

The framework's routing and injection cost more than making an event durable. So two paths are known
here; everything else, and every answer to a fault, is the framework's. The same guards, rights and
functions stand behind both ways.
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

from rapport.core.errors import RapportError
from rapport.node.node import Node
from rapport.web.api import events
from rapport.web.channel_socket import PushConnections, Socket
from rapport.web.cloudevents import publish_events, publish_readings
from rapport.web.problems import http_error_response, problem_response, unexpected_response
from rapport.web.request_limits import BodyBudget, CountedBody, check_value_count
from rapport.web.security import OPEN, SAFE_HEADERS, RequestGuard

Headers = Sequence[tuple[bytes, bytes]]


class SingleWriteResponses:
    """Answers of status 200 with the same headers each time, but for the length."""

    def __init__(self, headers: Headers) -> None:
        """`headers` have lower-case names; `content-length` is not among them."""
        self._headers = headers
        self._of_server: Headers = ()
        self._head = self._made(())

    async def send(self, send: Send, body: bytes) -> None:
        """Answers a request; as the server prefers it, or in one piece."""
        cycle = getattr(send, "__self__", None)
        if isinstance(cycle, RequestResponseCycle) and _is_free(cycle):
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
        """What the server does for both messages, in the same order."""
        if cycle.default_headers is not self._of_server:  # renewed each second, for the date
            self._of_server, self._head = cycle.default_headers, self._made(cycle.default_headers)
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        cycle.transport.write(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))
        cycle.response_complete = True
        cycle.message_event.set()
        cycle.on_response()

    def _made(self, of_server: Headers) -> bytes:
        lines = b"".join(b"%b: %b\r\n" % header for header in (*of_server, *self._headers))
        return b"HTTP/1.1 200 OK\r\n" + lines + b"content-length: "


def _is_free(cycle: RequestResponseCycle) -> bool:
    """Whether nothing is to be waited for or closed: the usual request of a client that stays."""
    return (
        cycle.keep_alive
        and not cycle.disconnected
        and not cycle.response_started
        and not cycle.flow.write_paused
        and not cycle.access_log
        and cycle.scope["method"] != "HEAD"
    )


Connection = ASGIConnection[Any, Any, Any, Any]
Take = Callable[[Node, str, str, Mapping[str, str], bytes, str], Awaitable[bytes]]


class _Door(msgspec.Struct, frozen=True):
    """Where a request goes: the framework's route of the same path, and what is behind it."""

    route: BaseRouteHandler
    prefix: str
    """Of the channel's name."""
    take: Take


async def _take_events(
    node: Node, identity: str, channel: str, headers: Mapping[str, str], body: bytes, _query: str
) -> bytes:
    return await publish_events(node, identity, channel, headers, body)


_DOORS = {
    ("channels", "events"): _Door(events.publish, "", _take_events),
    ("sources", ""): _Door(events.take_readings, "raw.", publish_readings),
}
_LOOKED_AT = frozenset({"", "healthz", "readyz", "metrics", "static", "schema"})
"""Doors that watchers ask by HEAD, too: answered as by GET, the server leaves the body out."""


class FastPathApp:
    """An ASGI application: the framework's, with a short way for what comes in thousands."""

    def __init__(self, app: Litestar, node: Node) -> None:
        self._app, self._node = app, node
        self._doorkeeper = _only_guard(app)
        self._most_bytes = node.settings.max_body_bytes
        self._bodies = BodyBudget(node.settings.max_body_bytes)
        safe = [(name.lower().encode(), value.encode()) for name, value in SAFE_HEADERS.items()]
        self._answers = SingleWriteResponses([(b"content-type", b"application/json"), *safe])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request or one socket; the bodies of all of them share one budget."""
        if scope.get("method", "GET") in ("GET", "HEAD"):  # sockets have none
            await self._serve(scope, receive, send)
            return
        body = CountedBody(self._bodies, scope["path"][1:].partition("/")[0], receive)
        try:
            await self._serve(scope, body, send)
        finally:
            body.release()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind: str = scope["type"]
        method = scope.get("method") if kind == "http" else ""
        is_post = method == "POST"
        _, first, *rest = (*scope.get("path", "").split("/"), "", "")
        name, last = rest[0], "/".join(rest[1:-2])
        if kind == "websocket" and (first, last) == ("channels", "socket") and name:
            await self._open_socket(name, scope, receive, send)
            return
        if is_post and name:
            door = _DOORS.get((first, last))
            if door is not None:
                await self._take(door, name, scope, receive, send)
                return
        if method == "HEAD" and first in _LOOKED_AT:
            scope = {**scope, "method": "GET"}  # type: ignore[assignment]
        await self._app(scope, receive, send)

    async def _take(
        self, door: _Door, name: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        headers = _headers(scope)
        try:
            identity = self._admit(door, name, scope, headers)
            query = scope.get("query_string", b"").decode("latin-1")
            self._app.state.query_parameters.check(door.route, query)
            body = await self._read_body(headers, receive)
            if body is None:
                return  # the caller has gone
            answer = await door.take(self._node, identity, name, headers, body, query)
        except Exception as error:
            scope.setdefault("state", {})
            await self._refuse(Request(scope, receive, send), error)
            return
        await self._answers.send(send, answer)

    def _admit(self, door: _Door, name: str, scope: Scope, headers: Mapping[str, str]) -> str:
        """Who publishes; raises what the doorkeeper raises, and NotAllowed without the right."""
        peer = scope.get("client")
        is_open = bool(door.route.opt.get(OPEN))
        identity = self._doorkeeper.admit(headers, peer[0] if peer else "", is_open=is_open)
        self._node.rights.check(identity, "publish", f"{door.prefix}{name}")
        return identity

    async def _check_guards(
        self, connection: ASGIConnection[Any, Any, Any, Any], route: BaseRouteHandler
    ) -> None:
        """Asks all guards of the application; raises what they raise."""
        for guard in self._app.guards:
            asked: Any = guard(connection, route)
            if isawaitable(asked):
                await asked

    async def _read_body(self, headers: Mapping[str, str], receive: Receive) -> bytes | None:
        """The body, None when the caller went away; raises RequestEntityTooLarge."""
        if int(headers.get("content-length", 0)) > self._most_bytes:
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

    async def _refuse(self, request: Request[Any, Any, Any], error: Exception) -> None:
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


def refusal(request: Any, error: Exception) -> Response[bytes]:
    """The answer to a fault: the framework's own mapping."""
    if isinstance(error, RapportError):
        return problem_response(request, error)
    if isinstance(error, HTTPException):
        return http_error_response(request, error)
    return unexpected_response(request, error)


async def _refuse_socket(connection: Connection, error: RapportError | WebSocketException) -> None:
    """An HTTP answer instead of a socket: the client sees status and problem, not a closed door."""
    # The guard speaks of faults to sockets by close codes; the fault itself is its context.
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
    """The guard that the short way asks itself, without what the framework makes of a request; a
    second one would have to be asked there, too.
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
