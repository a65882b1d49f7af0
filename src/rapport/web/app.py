"""The application: all doors, one guard, one mapping of errors; and its server. [UX-5]"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from litestar import Litestar
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin

from rapport import __version__
from rapport.core.errors import RapportError, Unavailable
from rapport.node.node import Node
from rapport.web.api import events, live, people, requests, service
from rapport.web.guard import Doorkeeper, check_exposure
from rapport.web.problems import http_error_response, problem_response, unexpected_response

DOORS = (
    events.publish,
    events.take_readings,
    events.read,
    requests.request_messages,
    service.healthz,
    service.readyz,
    service.metrics,
    people.show_answer_page,
    people.take_answer,
    people.ledger,
    people.explain,
    live.home,
    live.static,
    live.overview,
)


SAFE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""On every answer: nothing from elsewhere runs in our pages, answer links do not leak by referrer.
"""


def make_app(node: Node, *, token: str = "") -> Litestar:
    """All doors of a node; `token` is asked for at every door that is not marked open."""
    check_exposure(node.settings, token)
    return Litestar(
        route_handlers=list(DOORS),
        guards=[Doorkeeper(node.settings, token)],
        dependencies={"node": Provide(lambda: node, sync_to_thread=False)},
        exception_handlers={
            RapportError: problem_response,
            HTTPException: http_error_response,
            Exception: unexpected_response,
        },
        response_headers=SAFE_HEADERS,
        request_max_body_size=node.settings.max_body_bytes,
        openapi_config=OpenAPIConfig(
            title="Rapport",
            version=__version__,
            render_plugins=[JsonRenderPlugin(path="/openapi.json")],
        ),
        logging_config=None,
        debug=False,
    )


class _Server(uvicorn.Server):
    """Leaves signals to the command that runs it, so that readers stop before doors close."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(node: Node, *, token: str = "") -> AsyncIterator[str]:
    """Serves the node's doors while the block runs; gives the base URL.

    Start the node inside the block: links in messages need the address. Drains requests at the end.
    """
    app = make_app(node, token=token)
    listener = _listen(node.settings.host, node.settings.port)
    port = listener.getsockname()[1]
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=5,
        server_header=False,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="web")
    try:
        while not server.started and not task.done():
            await node.clock.sleep(5)
        if task.done():
            await task
        host = f"[{node.settings.host}]" if ":" in node.settings.host else node.settings.host
        node.public_url = node.settings.public_url or f"http://{host}:{port}"
        yield node.public_url
    finally:
        node.doors_close.set()
        server.should_exit = True
        await task
        listener.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise Unavailable(
            f"cannot listen on {host}:{port}: {error.strerror}",
            code="web.cannot_listen",
            hint="another process may use the port; choose one with --port",
        ) from None
    return listener
