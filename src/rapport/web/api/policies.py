"""Policies, tables and load of the policy engine. [PO-9, PO-2, PO-14]

Reading policies and the load needs any right at this node; changes, and checking a text, need the
role of an editor. A policy is sent as its text. Tables need the right to change the node: their
status may contain a source's reason for a refusal.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Literal

import msgspec
from litestar import get
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Stream

from rapport.core.errors import InvalidInput
from rapport.core.json_objects import ObjectDecoder
from rapport.node.load import LoadFollower
from rapport.node.node import Node
from rapport.policy.lifecycle.lifecycle import ChangeResult, CheckResult, PolicyLifecycle
from rapport.policy.lifecycle.registry import PolicyView
from rapport.policy.lifecycle.situation_states import AcknowledgedSituations, PolicyStates
from rapport.web.channel_socket import PushConnections
from rapport.web.endpoint import (
    HttpRequest,
    NodeDependency,
    Reply,
    delete,
    json_response,
    post,
    require_admin,
    require_any_right,
    require_role,
    require_unfiltered,
)
from rapport.web.endpoint_docs import EXAMPLE_POLICY, TEXT, documented
from rapport.web.event_stream import BEAT_MS, sse, sse_event

How = Literal["register", "replace", "shadow"]


@get("/policies", opt=documented(answer=PolicyView, is_list=True))
async def list_policies(request: HttpRequest, node: NodeDependency) -> Reply:
    """All policies with state, version and what each read, found and cost since the start."""
    require_any_right(request, node, "policies")
    return json_response(node.policies.life.policies())


@get("/policies/{policy:str}", opt=documented(answer=PolicyView))
async def show_policy(request: HttpRequest, policy: FromPath[str], node: NodeDependency) -> Reply:
    """One policy with its text, and that of the version in its shadow."""
    require_any_right(request, node, "policies")
    return json_response(node.policies.life.policy(policy))


@get("/policies/{policy:str}/history")
async def policy_history(
    request: HttpRequest, policy: FromPath[str], node: NodeDependency
) -> Reply:
    """All changes of a policy, oldest first: author, time, position and difference."""
    require_any_right(request, node, "policies")
    return json_response(node.policies.life.history(policy))


@post("/policies/{policy:str}", opt=documented(bodies={"text/plain": TEXT}, example=EXAMPLE_POLICY))
async def bring_policy(
    request: HttpRequest,
    policy: FromPath[str],
    node: NodeDependency,
    how: FromQuery[How] = "register",
    expects: FromQuery[str] = "",
) -> Reply:
    """Registers, replaces or shadows a policy with the text in the body. Refused with every problem
    at its place; answered when it is on record and runs. `expects` is the version that it is based
    on: a replacement of another one is refused with the difference (409).
    """
    identity = require_role(request, node, "editor")
    text = await policy_text(request)
    life = node.policies.life
    if how == "replace":
        return json_response(await life.replace(policy, text, by=identity, expects=expects))
    bring = life.register if how == "register" else life.shadow
    return json_response(await bring(policy, text, by=identity))


@post(
    "/policies/{policy:str}/check",
    opt=documented(bodies={"text/plain": TEXT}, example=EXAMPLE_POLICY, answer=CheckResult),
)
async def check_policy(request: HttpRequest, policy: FromPath[str], node: NodeDependency) -> Reply:
    """Every problem of the text in the body; nothing is changed."""
    require_role(request, node, "editor")
    return json_response(await node.policies.life.check(policy, await policy_text(request)))


@get("/policies/{policy:str}/states", opt=documented(answer=PolicyStates))
async def policy_states(request: HttpRequest, policy: FromPath[str], node: NodeDependency) -> Reply:
    """What is open of a policy with a situation, since when and who looks after it; what is pending
    or unknown, and which values are missing. Needs the right to read `detections`.
    """
    require_unfiltered(request, node, "detections")
    return json_response(await node.policies.life.states(policy))


class AcknowledgeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which open situations somebody looks after."""

    bindings: dict[str, str] = {}
    """Identities by alias; all open situations that have them."""
    by: str = ""
    """Who; empty = the caller."""


_READ_ACKNOWLEDGEMENT = ObjectDecoder(
    AcknowledgeBody,
    fault="this does not say which situations somebody looks after",
    code="policy.bad_body",
    hint='such as {"bindings": {"F": "f1"}, "by": "ana"}',
)


@post(
    "/policies/{policy:str}/acknowledge",
    opt=documented(
        bodies={"application/json": AcknowledgeBody},
        example={"bindings": {"F": "f1"}, "by": "ana"},
        answer=AcknowledgedSituations,
    ),
)
async def acknowledge_situations(
    request: HttpRequest, policy: FromPath[str], node: NodeDependency
) -> Reply:
    """Somebody looks after open situations: repeats and escalation stop, the end is still told.
    Recorded in `detections` with who and when.
    """
    identity = require_role(request, node, "operator")
    body = _READ_ACKNOWLEDGEMENT.decode(await request.body())
    life = node.policies.life
    return json_response(await life.acknowledge(policy, body.bindings, by=body.by or identity))


@post("/policies/{policy:str}/{act:str}")
async def change_policy(
    request: HttpRequest,
    policy: FromPath[str],
    act: FromPath[Literal["pause", "resume", "promote", "drop"]],
    node: NodeDependency,
) -> Reply:
    """Pauses or resumes a policy, promotes or drops the version in its shadow."""
    identity = require_role(request, node, "editor")
    return json_response(await _carry_out(node.policies.life, act, policy, identity))


@delete("/policies/{policy:str}")
async def delete_policy(request: HttpRequest, policy: FromPath[str], node: NodeDependency) -> Reply:
    """Ends a policy; its history stays."""
    identity = require_role(request, node, "editor")
    return json_response(await node.policies.life.delete(policy, by=identity))


@post("/policies")
async def reload_policies(request: HttpRequest, node: NodeDependency) -> Reply:
    """Takes ontology, tables and policies from the site's files anew, all or nothing; policies that
    this breaks are marked with the reasons.
    """
    require_admin(request, node)
    return json_response(await node.policies.reload())


async def _carry_out(life: PolicyLifecycle, act: str, policy: str, by: str) -> ChangeResult:
    match act:
        case "pause":
            return await life.pause(policy, by=by)
        case "resume":
            return await life.resume(policy, by=by)
        case "promote":
            return await life.promote(policy, by=by)
        case _:
            return await life.drop(policy, by=by)


async def policy_text(request: HttpRequest) -> str:
    """The policy in the body of a request; raises InvalidInput when it is not UTF-8."""
    try:
        return (await request.body()).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"the policy is not UTF-8 text: {error.reason}",
            code="policy.not_utf8",
            hint="send it as text/plain in UTF-8",
        ) from None


@get("/tables")
async def list_tables(request: HttpRequest, node: NodeDependency) -> Reply:
    """Every table with its rows and age, and why its source failed last."""
    require_admin(request, node)
    return json_response(node.fresh_tables.status())


@post("/tables/{table:str}/refresh")
async def refresh_table(request: HttpRequest, table: FromPath[str], node: NodeDependency) -> Reply:
    """Refreshes a table from its source now; a failure leaves its rows as they are."""
    require_admin(request, node)
    return json_response({"changed": await node.fresh_tables.refreshing.refresh(table)})


Imprecision = Annotated[float, QueryParameter(ge=0, le=1e12)]


@get("/load")
async def show_load(request: HttpRequest, node: NodeDependency) -> Reply:
    """The load of the last minute: busy time, cost of each policy, and advice."""
    require_any_right(request, node, "the load")
    return json_response(node.load.report())


@get("/load/stream", opt=documented(answer=TEXT, media=("text/event-stream; charset=utf-8",)))
async def follow_load(
    request: HttpRequest,
    node: NodeDependency,
    imprecision: Imprecision = 5.0,
    of: FromQuery[str] = "busy",
    how: FromQuery[str] = "average",
) -> Stream:
    """One value as Server-Sent Events: a report whenever it leaves what the last one allows.

    `of` is busy (percent), events (per second) or behind (events that wait); `how` is average, sum
    or max of the last minute.
    """
    require_any_right(request, node, "the load")
    follower = node.load.follower(imprecision, of, how)
    live: PushConnections = request.app.state.live
    live.check_room()
    return sse(live, _reports(node, follower))


@post("/load/stream/{follower:str}")
async def change_imprecision(
    request: HttpRequest, follower: FromPath[str], node: NodeDependency, imprecision: Imprecision
) -> Reply:
    """Another imprecision for a stream that runs, by the name that its reports say; what is too
    rough for it is reported at once.
    """
    require_any_right(request, node, "the load")
    node.load.change(follower, imprecision)
    return json_response({"follower": follower, "imprecision": imprecision})


async def _reports(node: Node, follower: LoadFollower) -> AsyncGenerator[bytes]:
    with node.load.following(follower):
        while not node.closing.is_set():
            followed = await follower.next(BEAT_MS, node.clock, node.closing)
            yield b": beat\n\n" if followed is None else sse_event("load", followed)
