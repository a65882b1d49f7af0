"""The doors for policies: look at them, check one, change them while events flow. [PO-9]

Looking needs any right at this node; changing, and checking what a text would be, the right to
change it. A policy is sent as its text.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.params import FromPath, FromQuery

from rapport.channel.access.rights import Grant
from rapport.core.errors import InvalidInput, NotAllowed
from rapport.node.node import Node
from rapport.policy.lifecycle.lifecycle import ChangeResult, PolicyLifecycle
from rapport.web.callers import allow_admin, identity_of
from rapport.web.dependencies import NodeDependency

How = Literal["register", "replace", "shadow"]


@get("/policies")
async def list_policies(request: Request[Any, Any, Any], node: NodeDependency) -> Response[bytes]:
    """All policies with state, version and what each read, found and cost since the start."""
    _allow_looking(request, node)
    return _json(node.policies.life.policies())


@get("/policies/{policy:str}")
async def show_policy(
    request: Request[Any, Any, Any], policy: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """One policy with its text, and that of the version in its shadow."""
    _allow_looking(request, node)
    return _json(node.policies.life.policy(policy))


@get("/policies/{policy:str}/history")
async def policy_history(
    request: Request[Any, Any, Any], policy: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """All changes of a policy, oldest first: who, when, from which place on, and what differs."""
    _allow_looking(request, node)
    return _json(node.policies.life.history(policy))


@post("/policies/{policy:str}", status_code=200)
async def bring_policy(
    request: Request[Any, Any, Any],
    policy: FromPath[str],
    node: NodeDependency,
    how: FromQuery[How] = "register",
    expects: FromQuery[str] = "",
) -> Response[bytes]:
    """Registers, replaces or shadows a policy with the text in the body. Refused with every problem
    at its place; answered when it is on record and runs.
    """
    identity = allow_admin(request, node)
    text = await _text(request)
    life = node.policies.life
    if how == "replace":
        return _json(await life.replace(policy, text, by=identity, expects=expects))
    bring = life.register if how == "register" else life.shadow
    return _json(await bring(policy, text, by=identity))


@post("/policies/{policy:str}/check", status_code=200)
async def check_policy(
    request: Request[Any, Any, Any], policy: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """Every problem of the text in the body; nothing is changed."""
    allow_admin(request, node)
    return _json(await node.policies.life.check(policy, await _text(request)))


@post("/policies/{policy:str}/{act:str}", status_code=200)
async def change_policy(
    request: Request[Any, Any, Any],
    policy: FromPath[str],
    act: FromPath[Literal["pause", "resume", "promote", "drop"]],
    node: NodeDependency,
) -> Response[bytes]:
    """Pauses or resumes a policy, promotes or drops the version in its shadow."""
    identity = allow_admin(request, node)
    return _json(await _carry_out(node.policies.life, act, policy, identity))


@delete("/policies/{policy:str}", status_code=200)
async def delete_policy(
    request: Request[Any, Any, Any], policy: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """Ends a policy; its history stays."""
    identity = allow_admin(request, node)
    return _json(await node.policies.life.delete(policy, by=identity))


@post("/policies", status_code=200)
async def reload_policies(request: Request[Any, Any, Any], node: NodeDependency) -> Response[bytes]:
    """Takes ontology, tables and policies from the site's files anew, all or nothing; policies that
    this breaks are marked with the reasons.
    """
    allow_admin(request, node)
    return _json(await node.policies.reload())


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


async def _text(request: Request[Any, Any, Any]) -> str:
    try:
        return (await request.body()).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"the policy is not UTF-8 text: {error.reason}",
            code="policy.not_utf8",
            hint="send it as text/plain in UTF-8",
        ) from None


def _allow_looking(request: Request[Any, Any, Any], node: Node) -> None:
    """Raises NotAllowed for who has no right at all, TooFast for who looks too often."""
    identity = identity_of(request)
    if node.rights.grants().get(identity, Grant()) == Grant():
        raise NotAllowed(
            f"{identity!r} may not look at policies",
            code="access.no_right",
            hint="the site's [access] gives rights: any of them is enough",
        )
    node.admission.rates.charge(identity, 1, node.clock.now_ms())


def _json(value: object) -> Response[bytes]:
    return Response(msgspec.json.encode(value), media_type="application/json")
