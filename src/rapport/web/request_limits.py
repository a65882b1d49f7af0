"""Checks of requests before their handlers run: memory of bodies, query parameters.
[UX-5, UX-2]

The known query parameters come from the signatures of the handlers. A misspelt one is refused with
the nearest known name, as a misspelt key of a body is; ignored, `?limits=5` would have no effect.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from urllib.parse import parse_qsl

from litestar import Litestar
from litestar.handlers import BaseRouteHandler
from litestar.routes import HTTPRoute
from litestar.types import Receive

from rapport.core.errors import InvalidInput, Unavailable, suggest

FREE_BYTES = 64 * 1024
"""Bodies up to this size are not counted: as many as there may be connections fit into memory, and
so small requests go on while large ones have to wait.
"""
_LEAST_BYTES_IN_ALL = 256 * 1024 * 1024


class BodyBudget:
    """The bytes of bodies that have arrived and whose requests are not answered yet."""

    def __init__(self, max_body_bytes: int) -> None:
        self.most_bytes = max(_LEAST_BYTES_IN_ALL, 4 * max_body_bytes)
        self.most_endpoint_bytes = self.most_bytes // 2
        self._total = 0
        self._endpoints: Counter[str] = Counter()

    def charge(self, endpoint: str, count: int) -> None:
        """Counts bytes for an endpoint, or raises Unavailable and counts nothing."""
        at_endpoint = self._endpoints[endpoint] + count
        if self._total + count > self.most_bytes or at_endpoint > self.most_endpoint_bytes:
            raise Unavailable(
                "too many large requests are being received",
                code="web.bodies_full",
                retry_after_seconds=1,
                hint="send again after a moment, or send smaller requests",
            )
        self._total += count
        self._endpoints[endpoint] = at_endpoint

    def release(self, endpoint: str, count: int) -> None:
        """Gives bytes back that were charged."""
        self._total -= count
        self._endpoints[endpoint] -= count
        if not self._endpoints[endpoint]:
            del self._endpoints[endpoint]

    def is_empty(self) -> bool:
        """Whether every byte was given back."""
        return not self._total and not self._endpoints


class CountedBody:
    """The ASGI `receive` of one request, charging what it gives to the budget."""

    __slots__ = ("_budget", "_charged", "_endpoint", "_receive", "_size")

    def __init__(self, budget: BodyBudget, endpoint: str, receive: Receive) -> None:
        self._budget, self._endpoint, self._receive = budget, endpoint, receive
        self._size = self._charged = 0

    async def __call__(self) -> Any:
        """The next message; raises Unavailable when the budget is spent."""
        message: Any = await self._receive()
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            if self._size > FREE_BYTES:
                self._budget.charge(self._endpoint, self._size - self._charged)
                self._charged = self._size
        return message

    def release(self) -> None:
        """The request is answered: its body is not needed any more."""
        if self._charged:
            self._budget.release(self._endpoint, self._charged)
            self._charged = 0


ANY_QUERY = "any_query"
"""Option of routes that accept any query parameter: readings take fields from the address, and
links of people gain parameters on their way (mail gateways and browsers add them).
"""
_SHOWN = 60


class QueryParameters:
    """The query parameters of every HTTP route of an application."""

    def __init__(self, app: Litestar) -> None:
        self._names: dict[str, frozenset[str]] = {}
        for route in app.routes:
            if isinstance(route, HTTPRoute):
                for handler, arguments in route.route_handler_map.values():
                    names = (one.field_alias for one in arguments.expected_query_params)
                    self._names[str(handler)] = frozenset(names)

    def check(self, handler: BaseRouteHandler, query: str) -> None:
        """Raises InvalidInput for a parameter that the handler does not have."""
        if not query or handler.opt.get(ANY_QUERY):
            return
        known = self._names.get(str(handler), frozenset())
        for name, _value in parse_qsl(query, keep_blank_values=True):
            if name not in known:
                raise InvalidInput(
                    f"the query parameter {name[:_SHOWN]!r} has no meaning here",
                    code="http.unknown_parameter",
                    hint=suggest(name, known, most=20) if known else "leave it out",
                )
