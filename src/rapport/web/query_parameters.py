"""Refusal of query parameters that an endpoint does not have. [UX-2, UX-5]

The known names come from the signatures of the handlers. A misspelt parameter is refused with the
nearest known name, as a misspelt key of a body is; ignored, `?limt=5` would return a full page.
"""

from __future__ import annotations

from urllib.parse import parse_qsl

from litestar import Litestar
from litestar.handlers import BaseRouteHandler
from litestar.routes import HTTPRoute

from rapport.core.errors import InvalidInput, suggest

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
