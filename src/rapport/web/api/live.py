"""Changes for open pages as Server-Sent Events: what to load anew. [CN-2]

Each event says how far the channels are and how many faults there are, at most once a second and
only when something differs. The first event of a connection is complete, so a page that was cut off
goes on by comparing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec
from litestar import get
from litestar.response import Stream

from rapport.node.network import network_mark
from rapport.node.node import Node
from rapport.web.channel_socket import PushConnections
from rapport.web.endpoint import HttpRequest, NodeDependency, require_any_right
from rapport.web.endpoint_docs import TEXT, documented
from rapport.web.event_stream import BEAT_MS, sse, sse_event

_EVERY_MS = 1_000
_CHANNELS = ("events", "detections", "log", "quarantine", "policies", "dead_letters")


class LiveState(msgspec.Struct, frozen=True, kw_only=True):
    """How far a node is; a page loads again what it shows of a part that moved."""

    events: int = 0
    detections: int = 0
    log: int = 0
    quarantine: int = 0
    policies: int = 0
    dead_letters: int = 0
    faults: str = ""
    """Names of the faults of now."""
    network: str = ""
    """Differs when a link, a neighbour or a push moved."""


@get("/live", opt=documented(answer=TEXT, media=("text/event-stream; charset=utf-8",)))
async def follow(request: HttpRequest, node: NodeDependency) -> Stream:
    """What moved at the node, for pages that show it."""
    identity = require_any_right(request, node, "the state of the node")
    live: PushConnections = request.app.state.live
    live.check_room()
    return sse(live, _states(node, identity))


async def _states(node: Node, identity: str) -> AsyncGenerator[bytes]:
    shown, quiet_ms = None, 0
    while not node.closing.is_set():
        state = _state(node, identity)
        if state != shown:
            shown, quiet_ms = state, 0
            yield sse_event("state", state)
        elif quiet_ms >= BEAT_MS:
            quiet_ms = 0
            yield b": beat\n\n"
        await node.clock.sleep(_EVERY_MS)
        quiet_ms += _EVERY_MS


def _state(node: Node, identity: str) -> LiveState:
    positions = {
        name: node.channels.channel(name).last_position()
        for name in _CHANNELS
        if node.rights.allows(identity, "subscribe", name)
    }
    faults = ",".join(one.name for one in node.conditions.current())
    network = network_mark(node) if node.rights.allows_role(identity, "viewer") else ""
    return LiveState(**positions, faults=faults, network=network)
