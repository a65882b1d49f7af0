"""The web application: all routes, one guard, one mapping of errors; and its server. [UX-5]"""

from __future__ import annotations

import pkgutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import NoReturn

from litestar import Litestar
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler
from litestar.openapi import OpenAPIConfig

from rapport import __version__
from rapport.channel.access.identities import FailedAttempts
from rapport.channel.mqtt.bridge import bridges_from_site
from rapport.core.codec import check_value_count
from rapport.core.errors import RapportError
from rapport.node.node import Node
from rapport.node.source_files import SourceFiles
from rapport.web import api, console, event_stream, inbox, soap
from rapport.web.api.answers import LinkGuard
from rapport.web.browser_sessions import ConsoleSessions, LoginLinks
from rapport.web.channel_socket import PushConnections
from rapport.web.endpoint import HttpRequest, Reply
from rapport.web.fast_path import FastPathApp
from rapport.web.inbox import InboxAccess
from rapport.web.openapi import AsyncApiDocument, OpenApiDocument
from rapport.web.problems import http_error_response, problem_response, unexpected_response
from rapport.web.request_limits import QueryParameters
from rapport.web.security import SAFE_HEADERS, RequestGuard, check_exposure
from rapport.web.server import MinimumPace, serve_app


def route_handlers() -> list[BaseRouteHandler]:
    """The handlers that the modules of `api`, and four others, define."""
    names = sorted(module.name for module in pkgutil.iter_modules(api.__path__))
    resources = [import_module(f"{api.__name__}.{name}") for name in names]
    return [
        one
        for resource in (console, event_stream, inbox, soap, *resources)
        for one in vars(resource).values()
        if isinstance(one, BaseRouteHandler)
    ]


def raise_error(_request: HttpRequest, error: Exception) -> NoReturn:
    """Passes an error on to the program that called an endpoint in its own process."""
    raise error


def make_app(
    node: Node,
    *,
    token: str = "",
    links: LoginLinks | None = None,
    answer_error: Callable[[HttpRequest, RapportError], Reply] = problem_response,
) -> Litestar:
    """All routes of a node. Routes that are not marked open authenticate the caller: `token` is the
    node itself, other tokens are in the site's `[access]`; `links` log browsers in once.
    """
    admission = node.admission.with_node_token(token)
    sessions = ConsoleSessions(node, admission, links or LoginLinks(node.clock))
    guard = RequestGuard(node.settings, admission, node.clock, sessions)
    bridges, _problems = bridges_from_site(node.site.file)
    app = Litestar(
        route_handlers=route_handlers(),
        guards=[guard],
        dependencies={"node": Provide(lambda: node, sync_to_thread=False)},
        exception_handlers={
            RapportError: answer_error,
            HTTPException: http_error_response,
            Exception: unexpected_response,
        },
        response_headers=SAFE_HEADERS,
        before_request=_check_request,
        request_max_body_size=node.settings.max_body_bytes,
        openapi_config=OpenAPIConfig(
            title="Rapport",
            version=__version__,
            render_plugins=[OpenApiDocument(), AsyncApiDocument(__version__, bridges)],
            use_handler_docstrings=True,
        ),
        state=State(
            {
                "live": PushConnections(node),
                "inboxes": InboxAccess(node),
                "source_files": SourceFiles(node.site.directory, node.site_changes),
                "console": sessions,
                "failed_signatures": FailedAttempts(),
                "link_guard": LinkGuard(),
            }
        ),
        logging_config=None,
        debug=False,
    )
    app.state.query_parameters = QueryParameters(app)
    return app


async def _check_request(request: HttpRequest) -> None:
    """Checks that precede the work of a handler; after the guard, so strangers send no bodies."""
    parameters: QueryParameters = request.app.state.query_parameters
    parameters.check(request.route_handler, request.url.query)
    if request.method not in ("GET", "HEAD"):
        check_value_count(await request.body())


@asynccontextmanager
async def serving(
    node: Node,
    *,
    token: str = "",
    pace: MinimumPace | None = None,
    links: LoginLinks | None = None,
) -> AsyncIterator[str]:
    """Serves the node's endpoints while the block runs; yields the base URL.

    Start the node inside the block: links in messages need the address. Drains requests at the end.
    """
    check_exposure(node.settings, token, node.admission)
    app = FastPathApp(make_app(node, token=token, links=links), node)
    async with serve_app(app, node, pace) as url:
        node.public_url = node.settings.public_url or url
        yield node.public_url
