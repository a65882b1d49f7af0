"""Explanations: the causes of an event, why a policy fired, why it did not. [PO-11, CO-10]

All need the right to read the channels they show: of policies `events`, `detections`, `quarantine`;
raw data are left out where the caller may not read the raw channel. Events that the log no longer
holds are read from the node's lake; `found` names the place of each event, `within` limits the
time.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from litestar import get
from litestar.params import FromPath, FromQuery, QueryParameter

from rapport.channel.channel import Channels
from rapport.channel.event_lookup import CauseNode, cause_tree, resolve_id_prefix
from rapport.core.detection import DETECTED, ENDED, UNDECIDED, Detection
from rapport.core.errors import InvalidInput
from rapport.core.times import parse_duration, parse_time
from rapport.node.history import USUAL_MS, HistoryNotes
from rapport.node.node import Node
from rapport.policy.explain.answer import AnswerNote, Explanation, WhyNotAnswer
from rapport.policy.explain.explainer import Explainer
from rapport.policy.explain.why_not import WhyNotQuestion, given_in
from rapport.site.explain import explainer_of
from rapport.web.endpoint import (
    HttpRequest,
    NodeDependency,
    Reply,
    identity_of,
    json_response,
    require_right,
    require_unfiltered,
)
from rapport.web.endpoint_docs import documented


class CausesView(CauseNode):
    """An event with everything it follows from, and how the answer was found."""

    notes: list[str] = msgspec.field(default_factory=list)


_SHOWN = ("events", "detections", "quarantine")


@get("/explain/{event_id:str}", opt=documented(answer=CausesView))
async def explain(
    request: HttpRequest, event_id: FromPath[str], node: NodeDependency, within: FromQuery[str] = ""
) -> Reply:
    """The chain of causes from a message, detection or reading back to what was received; for who
    may read every channel that it shows. Each event says whether it was found in log or lake.
    """
    identity = identity_of(request)
    # What it shows is known only when it was found, which may cost more than what is shown.
    node.admission.rates.charge(identity, 1, node.clock.now_ms())
    tree, looked = await node.history.causes(event_id, identity, within_ms=_within(within))
    for channel in sorted(channels_in(tree)):
        require_right(request, node, "subscribe", channel)
    return json_response({**_members(tree), "notes": looked.notes})


@get("/policies/{policy:str}/why-not", opt=documented(answer=WhyNotAnswer))
async def why_not(
    request: HttpRequest,
    policy: FromPath[str],
    node: NodeDependency,
    at: FromQuery[str] = "",
    who: Annotated[list[str] | None, QueryParameter()] = None,
    window: FromQuery[str] = "",
    within: FromQuery[str] = "",
) -> Reply:
    """How a policy stood around a time (else: now), for `who` (ALIAS=ID, several) or whoever came
    nearest: each condition true, false or unknown, and the smallest change that would have been
    enough.
    """
    _allow_shown(request, node)
    question = WhyNotQuestion(
        at=parse_time(at) if at else node.clock.now_ms(),
        given=given_in(who or ()),
        within_ms=parse_duration(window) if window else None,
    )

    async def work(channels: Channels) -> WhyNotAnswer:
        return await (await _explainer(request, node, channels)).why_not(policy, question)

    answer, looked = await node.history.ask(work, within_ms=_within(within))
    notes = (*answer.notes, *(AnswerNote(kind="reach", text=text) for text in looked.notes))
    return json_response(_with_places(msgspec.structs.replace(answer, notes=notes), looked))


@get("/explain/{event_id:str}/why", opt=documented(answer=Explanation))
async def why(
    request: HttpRequest, event_id: FromPath[str], node: NodeDependency, within: FromQuery[str] = ""
) -> Reply:
    """The conditions behind a detection, with readings and raw values; its id or the beginning."""
    _allow_shown(request, node)

    async def work(channels: Channels) -> Explanation:
        tree = await cause_tree(channels, await resolve_id_prefix(channels, event_id))
        if tree.type not in (DETECTED, ENDED, UNDECIDED):
            raise InvalidInput(
                f"{event_id!r} is no detection but {tree.type}",
                code="explain.no_detection",
                hint="GET /explain/{id} shows what any event follows from",
            )
        explainer = await _explainer(request, node, channels)
        return await explainer.why(msgspec.json.decode(tree.data, type=Detection))

    explained, looked = await node.history.ask(work, within_ms=_within(within))
    return json_response({**_with_places(explained, looked), "notes": looked.notes})


def channels_in(tree: CauseNode) -> set[str]:
    """The channels of an event and of all it follows from."""
    return {tree.channel}.union(*map(channels_in, tree.causes))


def _allow_shown(request: HttpRequest, node: Node) -> None:
    for channel in _SHOWN:
        require_unfiltered(request, node, channel)


async def _explainer(request: HttpRequest, node: Node, channels: Channels) -> Explainer:
    identity = identity_of(request)

    def may_read(channel: str) -> bool:
        return node.rights.allows(identity, "subscribe", channel) and (
            node.rights.allows_admin(identity) or not node.channels.may_hide(channel)
        )

    site = msgspec.structs.replace(node.site, ontology=node.policy.ontology)
    return await asyncio.to_thread(explainer_of, site, channels, may_read=may_read)


def _within(text: str) -> int:
    return parse_duration(text) if text else USUAL_MS


def _with_places(answer: WhyNotAnswer | Explanation, looked: HistoryNotes) -> dict[str, Any]:
    """The answer, and what of each channel was read from where; nothing of that while the log has
    everything.
    """
    return {**_members(answer), "found": looked.found} if looked.found else _members(answer)


def _members(value: msgspec.Struct) -> dict[str, Any]:
    return dict(msgspec.json.decode(msgspec.json.encode(value)))
