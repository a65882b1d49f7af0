"""The web application: all routes, one guard, one mapping of errors; and its server. [UX-5]"""

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
from rapport.channel.access.identities import FailedAttempts
from rapport.channel.mqtt.bridge import bridges_from_site
from rapport.core.codec import check_value_count
from rapport.core.errors import RapportError
from rapport.node.node import Node
from rapport.node.source_files import SourceFiles
from rapport.web import console, event_stream, inbox, soap
from rapport.web.api import (
    answers,
    channels,
    context,
    detections,
    directory,
    events,
    explain,
    explore,
    federation,
    history,
    interpretations,
    ledger,
    live,
    message_services,
    messages,
    new_sources,
    policies,
    policy_editor,
    service,
    site,
    site_changes,
    sources,
    things,
)
from rapport.web.browser_sessions import ConsoleSessions, LoginLinks
from rapport.web.channel_socket import PushConnections
from rapport.web.fast_path import FastPathApp
from rapport.web.inbox import InboxAccess
from rapport.web.openapi import AsyncApiDocument, OpenApiDocument
from rapport.web.problems import http_error_response, problem_response, unexpected_response
from rapport.web.request_limits import QueryParameters
from rapport.web.security import SAFE_HEADERS, RequestGuard, check_exposure
from rapport.web.server import MinimumPace, serve_app

ROUTES = (
    events.publish,
    events.take_readings,
    events.read,
    event_stream.stream,
    events.request_messages,
    events.settle_deliveries,
    explore.list_channels,
    explore.search_events,
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
    interpretations.list_held,
    interpretations.show_held,
    interpretations.release,
    interpretations.show_release,
    interpretations.again,
    interpretations.reload,
    service.reload_site,
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
    policies.policy_states,
    policies.acknowledge_situations,
    policies.check_policy,
    policy_editor.show_ontology,
    policy_editor.compare_policy,
    policy_editor.try_policy,
    policies.change_policy,
    policies.delete_policy,
    policies.reload_policies,
    policies.list_tables,
    policies.refresh_table,
    context.context_status,
    context.read_context,
    context.tell_context,
    context.ensemble_status,
    policies.show_load,
    policies.follow_load,
    policies.change_imprecision,
    channels.list_pushes,
    channels.cancel_push,
    soap.call,
    soap.describe,
    federation.hello,
    federation.take_over,
    federation.links,
    federation.network,
    events.take_results,
    service.healthz,
    service.identity,
    service.readyz,
    service.metrics,
    answers.show_answer_page,
    answers.take_answer,
    ledger.ledger,
    ledger.ledger_records,
    ledger.ledger_messages,
    ledger.ledger_message,
    messages.send_messages,
    messages.close_message,
    directory.list_peers,
    directory.import_peers,
    directory.show_peer,
    directory.put_peer,
    directory.change_peer,
    directory.remove_peer,
    directory.list_collectives,
    directory.show_collective,
    directory.list_members,
    directory.show_duty,
    directory.put_collective,
    directory.remove_collective,
    directory.move_members,
    messages.take_peer_messages,
    directory.open_session,
    directory.close_session,
    directory.set_password,
    directory.remove_password,
    inbox.show_login,
    inbox.log_in,
    inbox.show_inbox,
    inbox.show_linked_inbox,
    inbox.answer_in_inbox,
    inbox.answer_in_linked_inbox,
    inbox.make_inbox_link,
    inbox.inbox_socket,
    inbox.linked_inbox_socket,
    messages.take_messages,
    explain.explain,
    messages.list_messages,
    message_services.list_info,
    message_services.show_type_info,
    message_services.show_info,
    message_services.put_type_info,
    message_services.put_info,
    message_services.remove_type_info,
    message_services.remove_info,
    message_services.list_rules,
    message_services.add_rule,
    message_services.remove_rule,
    explain.why,
    explain.why_not,
    service.static,
    service.inbox_manifest,
    console.show_console,
    console.show_console_page,
    console.give_file,
    console.show_session,
    console.log_in,
    console.log_out,
    console.use_link,
    service.overview,
    things.list_things,
    things.show_thing,
    things.show_values,
    things.show_plan,
    detections.list_detections,
    detections.show_detection,
    detections.show_rates,
    live.follow,
    sources.list_sources,
    new_sources.guess_source,
    new_sources.listen_for_sources,
    new_sources.list_added_sources,
    new_sources.add_source,
    new_sources.take_source_back,
    site.show_site,
    site.check_files,
    site.show_access,
    site.list_files,
    site.show_file,
    site.show_log,
    site.examine,
    site_changes.propose_change,
    site_changes.change_file,
    site_changes.list_changes,
    site_changes.undo_change,
    history.list_runs,
    history.start_run,
    history.show_run,
    history.show_report,
    history.cancel_run,
)


def make_app(node: Node, *, token: str = "", links: LoginLinks | None = None) -> Litestar:
    """All routes of a node. Routes that are not marked open authenticate the caller: `token` is the
    node itself, other tokens are in the site's `[access]`; `links` log browsers in once.
    """
    check_exposure(node.settings, token, node.admission)
    admission = node.admission.with_node_token(token)
    sessions = ConsoleSessions(node, admission, links or LoginLinks(node.clock))
    guard = RequestGuard(node.settings, admission, node.clock, sessions)
    bridges, _problems = bridges_from_site(node.site.file)
    app = Litestar(
        route_handlers=list(ROUTES),
        guards=[guard],
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
                "live": PushConnections(node),
                "inboxes": InboxAccess(node),
                "source_files": SourceFiles(node.site.directory, node.site_changes),
                "console": sessions,
                "failed_signatures": FailedAttempts(),
                "link_guard": answers.LinkGuard(),
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
    node: Node,
    *,
    token: str = "",
    pace: MinimumPace | None = None,
    links: LoginLinks | None = None,
) -> AsyncIterator[str]:
    """Serves the node's endpoints while the block runs; yields the base URL.

    Start the node inside the block: links in messages need the address. Drains requests at the end.
    """
    app = FastPathApp(make_app(node, token=token, links=links), node)
    async with serve_app(app, node, pace) as url:
        node.public_url = node.settings.public_url or url
        yield node.public_url
