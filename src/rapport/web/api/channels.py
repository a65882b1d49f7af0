"""Administration of channels: interceptors, dead letters, readers, push subscriptions. [CH-10,
CH-14, CH-2]

Changes need the right to change the node, dead letters the role operator; reading the state of a
channel needs the right to subscribe to it. A push subscription is visible to its subscriber and to
administrators; it is created and renewed by requests with `push_address`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import get
from litestar.params import FromPath, FromQuery, QueryParameter

from rapport.channel.dead_letters import DeadLetter, LetterFilter
from rapport.channel.interceptors.chain import At
from rapport.channel.push import PushDelivery
from rapport.channel.query.query_kinds import make_query
from rapport.core.errors import UnknownName
from rapport.core.json_objects import ObjectDecoder
from rapport.core.times import format_time, parse_time
from rapport.node.node import Node
from rapport.web.endpoint import (
    HttpRequest,
    NodeDependency,
    Reply,
    delete,
    identity_of,
    json_response,
    post,
    require_admin,
    require_right,
    require_role,
)
from rapport.web.endpoint_docs import JSON, JSON_OBJECT, documented

_MOST_LETTERS = 1_000


class NewInterceptor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is posted to add an interceptor to the channels of the path (a name or pattern)."""

    name: str
    kind: str
    settings: dict[str, Any] = {}
    at: At = "append"
    before: str = ""


class ReplayRequest(LetterFilter, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters go back, and how."""

    republish: bool = False
    """Append the events anew, for all readers, instead of giving them to the one that failed."""


_FAULT, _CODE = "this cannot be understood", "request.not_a_request"
_READ_INTERCEPTOR = ObjectDecoder(NewInterceptor, fault=_FAULT, code=_CODE)
_READ_SEND_BACK = ObjectDecoder(ReplayRequest, fault=_FAULT, code=_CODE)
_READ_WANTED = ObjectDecoder(LetterFilter, fault=_FAULT, code=_CODE)


@get("/channels/{name:str}/interceptors")
async def list_interceptors(
    request: HttpRequest, name: FromPath[str], node: NodeDependency
) -> Reply:
    """The chain of a channel in its order; all interceptors for the name `*`."""
    require_admin(request, node)
    return json_response(node.channels.interceptors.listed("" if name == "*" else name))


@post(
    "/channels/{name:str}/interceptors",
    status_code=201,
    opt=documented(
        bodies={JSON: NewInterceptor},
        example={"name": "no-tests", "kind": "drop", "settings": {"where": "type = 'test'"}},
    ),
)
async def add_interceptor(request: HttpRequest, name: FromPath[str], node: NodeDependency) -> Reply:
    """Adds an interceptor durably; it works from the next event on."""
    require_admin(request, node)
    new = _READ_INTERCEPTOR.decode(await request.body())
    added = await node.channels.interceptors.declare(
        new.name, name, new.kind, new.settings, at=new.at, before=new.before
    )
    return json_response(added, status=201)


@delete("/channels/{name:str}/interceptors/{interceptor:str}")
async def remove_interceptor(
    request: HttpRequest, name: FromPath[str], interceptor: FromPath[str], node: NodeDependency
) -> Reply:
    """Takes an interceptor out once it has finished what was appended by now."""
    require_admin(request, node)
    _check_interceptor(node, name, interceptor)
    return json_response(await node.channels.interceptors.remove(interceptor))


@post("/channels/{name:str}/interceptors/{interceptor:str}/on")
async def switch_interceptor_on(
    request: HttpRequest, name: FromPath[str], interceptor: FromPath[str], node: NodeDependency
) -> Reply:
    """Switches on an interceptor that was switched off after faults."""
    require_admin(request, node)
    _check_interceptor(node, name, interceptor)
    return json_response(await node.channels.interceptors.switch_on(interceptor))


@get("/channels/{name:str}/state")
async def channel_state(request: HttpRequest, name: FromPath[str], node: NodeDependency) -> Reply:
    """Positions, retention and readers of a channel."""
    require_right(request, node, "subscribe", name)
    return json_response(await node.maintenance.state(name))


@get("/channels/{name:str}/plan")
async def explain_query(
    request: HttpRequest,
    name: FromPath[str],
    node: NodeDependency,
    condition: Annotated[str, QueryParameter(name="query")] = "",
    kind: FromQuery[str] = "",
) -> Reply:
    """The plan of a query on a channel: which parts use an index."""
    require_right(request, node, "subscribe", name)
    source = node.channels.source
    query = make_query(kind, condition or {}, source.views, source.scripts)
    plan = node.channels.explain_query(name, query)
    return json_response({"channel": name, "query": query.text, "kind": query.kind, "plan": plan})


@delete("/channels/{name:str}/readers/{reader:str}")
async def forget_reader(
    request: HttpRequest, name: FromPath[str], reader: FromPath[str], node: NodeDependency
) -> Reply:
    """Deletes the position of a reader that will not return."""
    require_admin(request, node)
    await node.maintenance.forget_reader(name, reader)
    return json_response({"forgotten": reader})


@get("/dead-letters", opt=documented(answer=DeadLetter, is_list=True))
async def list_dead_letters(
    request: HttpRequest,
    node: NodeDependency,
    channel: FromQuery[str] = "",
    reader: FromQuery[str] = "",
    since: FromQuery[str] = "",
    until: FromQuery[str] = "",
    became: Annotated[str, QueryParameter(name="state")] = "open",
    limit: Annotated[int, QueryParameter(ge=1, le=_MOST_LETTERS)] = 100,
) -> Reply:
    """Dead letters, oldest first: of a channel, a reader, a time; of any state for `all`."""
    require_role(request, node, "operator")
    wanted = LetterFilter(
        channel=channel,
        reader=reader,
        since_ms=parse_time(since) if since else 0,
        until_ms=parse_time(until) if until else 2**62,
        state="" if became == "all" else became,
    )
    return json_response(await node.maintenance.dead_letters.letters(wanted, limit=limit))


@get("/dead-letters/{letter:str}", opt=documented(answer=DeadLetter))
async def show_dead_letter(
    request: HttpRequest, letter: FromPath[str], node: NodeDependency
) -> Reply:
    """One dead letter with its event."""
    require_role(request, node, "operator")
    return json_response(await node.maintenance.dead_letters.show(letter))


@post(
    "/dead-letters/replay",
    opt=documented(bodies={JSON: ReplayRequest}, example={"channel": "events", "republish": False}),
)
async def replay_dead_letters(request: HttpRequest, node: NodeDependency) -> Reply:
    """Sends dead letters back to the readers that failed; to republish them needs `admin`."""
    require_role(request, node, "operator")
    replay = _READ_SEND_BACK.decode(await request.body())
    if replay.republish:
        require_admin(request, node)
    return _done(await node.maintenance.dead_letters.replay(replay, republish=replay.republish))


@post(
    "/dead-letters/forget",
    opt=documented(bodies={JSON: JSON_OBJECT}, example={"channel": "events"}),
)
async def forget_dead_letters(request: HttpRequest, node: NodeDependency) -> Reply:
    """Marks dead letters as discarded."""
    require_role(request, node, "operator")
    return _done(
        await node.maintenance.dead_letters.forget(_READ_WANTED.decode(await request.body()))
    )


def _check_interceptor(node: Node, channels: str, name: str) -> None:
    known = {one.name: one.channels for one in node.channels.interceptors.listed()}
    if known.get(name) != channels:
        raise UnknownName("interceptor", name, list(known))


def _done(letters: list[DeadLetter]) -> Reply:
    return json_response({"letters": [letter.id for letter in letters]})


@get("/pushes")
async def list_pushes(request: HttpRequest, node: NodeDependency) -> Reply:
    """The caller's push subscriptions; all of them for administrators."""
    shown = [_shown(one) for one in _visible(request, node)]
    return json_response(shown)


@post("/pushes/{session:str}/cancel")
async def cancel_push(request: HttpRequest, session: FromPath[str], node: NodeDependency) -> Reply:
    """Ends a push subscription; 404 when the caller has none of that name."""
    sessions = [one.push.session for one in _visible(request, node)]
    if session not in sessions:
        raise UnknownName("push subscription", session, sessions)
    await node.pushing.cancel(session)
    return json_response({"cancelled": session})


def _visible(request: HttpRequest, node: Node) -> list[PushDelivery]:
    identity = identity_of(request)
    everything = node.rights.allows_admin(identity)
    return [one for one in node.pushing.pushes() if everything or one.push.identity == identity]


def _shown(delivery: PushDelivery) -> dict[str, object]:
    push = delivery.push
    return {
        "session": push.session,
        "channel": push.channel,
        "identity": push.identity,
        "address": push.address,
        "form": push.form,
        "until": format_time(push.until_ms),
        "batches": push.batches,
        "messages": push.messages,
        "failures": delivery.failures,
        "trouble": delivery.trouble,
    }
