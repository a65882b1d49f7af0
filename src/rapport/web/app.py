"""The application: all doors, one guard, one mapping of errors; and its server. [UX-5]"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from litestar import Litestar, Request
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig

from rapport import __version__
from rapport.channel.access.rates import FailedAttempts
from rapport.channel.mqtt.declare import bridges_from_site
from rapport.core.errors import RapportError
from rapport.node.node import Node
from rapport.web.api import (
    channels,
    context,
    directory,
    ensemble,
    events,
    explain,
    federation,
    inbox,
    info,
    interpretations,
    ledger,
    live,
    load,
    messages,
    peer_messages,
    people,
    pipeline,
    policies,
    pushes,
    quarantine,
    reload,
    requests,
    routing,
    sending,
    service,
    sessions,
    stream,
    tables,
    webhooks,
)
from rapport.web.bodies import check_value_count
from rapport.web.front import Front
from rapport.web.guard import Doorkeeper, check_exposure
from rapport.web.headers import SAFE_HEADERS
from rapport.web.inbox.access import Inboxes
from rapport.web.live.socket import Live
from rapport.web.openapi.document import AsyncApiDocument, OpenApiDocument
from rapport.web.problems import http_error_response, problem_response, unexpected_response
from rapport.web.query_parameters import QueryParameters
from rapport.web.server import Patience, listening
from rapport.web.soap import door

DOORS = (
    events.publish,
    events.take_readings,
    events.read,
    stream.stream,
    requests.request_messages,
    requests.settle_deliveries,
    channels.list_interceptors,
    channels.add_interceptor,
    channels.remove_interceptor,
    channels.switch_interceptor_on,
    channels.channel_state,
    channels.explain_query,
    channels.forget_reader,
    channels.list_dead_letters,
    channels.show_dead_letter,
    channels.replay_dead_letters,
    channels.forget_dead_letters,
    quarantine.list_held,
    quarantine.show_held,
    quarantine.release,
    quarantine.show_release,
    quarantine.again,
    quarantine.reload,
    reload.reload_site,
    interpretations.list_interpretations,
    interpretations.list_changes,
    interpretations.spoken,
    interpretations.show_interpretation,
    interpretations.change,
    interpretations.check,
    policies.list_policies,
    policies.show_policy,
    policies.policy_history,
    policies.bring_policy,
    policies.check_policy,
    policies.change_policy,
    policies.delete_policy,
    policies.reload_policies,
    tables.list_tables,
    tables.refresh_table,
    context.context_status,
    context.read_context,
    context.tell_context,
    ensemble.ensemble_status,
    load.show_load,
    load.follow_load,
    load.change_imprecision,
    pushes.list_pushes,
    pushes.cancel_push,
    door.call,
    door.describe,
    federation.hello,
    federation.take_over,
    federation.links,
    pipeline.take_results,
    service.healthz,
    service.identity,
    service.readyz,
    service.metrics,
    people.show_answer_page,
    people.take_answer,
    ledger.ledger,
    ledger.ledger_messages,
    ledger.ledger_message,
    sending.send_messages,
    directory.list_peers,
    directory.show_peer,
    directory.put_peer,
    directory.change_peer,
    directory.remove_peer,
    directory.list_collectives,
    directory.show_collective,
    directory.list_members,
    directory.put_collective,
    directory.remove_collective,
    directory.move_members,
    peer_messages.take_peer_messages,
    sessions.open_session,
    sessions.close_session,
    sessions.set_password,
    sessions.remove_password,
    inbox.show_login,
    inbox.log_in,
    inbox.show_inbox,
    inbox.show_linked_inbox,
    inbox.answer_in_inbox,
    inbox.answer_in_linked_inbox,
    inbox.make_inbox_link,
    inbox.inbox_socket,
    inbox.linked_inbox_socket,
    webhooks.take_messages,
    explain.explain,
    messages.list_messages,
    info.list_info,
    info.show_type_info,
    info.show_info,
    info.put_type_info,
    info.put_info,
    info.remove_type_info,
    info.remove_info,
    routing.list_rules,
    routing.add_rule,
    routing.remove_rule,
    explain.why,
    explain.why_not,
    live.home,
    live.static,
    live.overview,
)


def make_app(node: Node, *, token: str = "") -> Litestar:
    """All doors of a node; doors that are not marked open ask who is there: whoever shows `token`
    is the node itself, the others are in the site's `[access]`.
    """
    check_exposure(node.settings, token, node.admission)
    doorkeeper = Doorkeeper(node.settings, node.admission.with_node_token(token), node.clock)
    bridges, _problems = bridges_from_site(node.site.file)
    app = Litestar(
        route_handlers=list(DOORS),
        guards=[doorkeeper],
        dependencies={"node": Provide(lambda: node, sync_to_thread=False)},
        exception_handlers={
            RapportError: problem_response,
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
                "live": Live(node),
                "inboxes": Inboxes(node),
                "failed_signatures": FailedAttempts(),
                "link_guard": people.LinkGuard(),
            }
        ),
        logging_config=None,
        debug=False,
    )
    app.state.query_parameters = QueryParameters(app)
    return app


async def _check_request(request: Request[Any, Any, Any]) -> None:
    """Checks that precede the work of a handler; after the guard, so strangers send no bodies."""
    parameters: QueryParameters = request.app.state.query_parameters
    parameters.check(request.route_handler, request.url.query)
    if request.method not in ("GET", "HEAD"):
        check_value_count(await request.body())


@asynccontextmanager
async def serving(
    node: Node, *, token: str = "", patience: Patience | None = None
) -> AsyncIterator[str]:
    """Serves the node's doors while the block runs; gives the base URL.

    Start the node inside the block: links in messages need the address. Drains requests at the end.
    """
    app = Front(make_app(node, token=token), node)
    async with listening(app, node, patience) as url:
        node.public_url = node.settings.public_url or url
        yield node.public_url
