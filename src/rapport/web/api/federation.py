"""Federation: the identity of a node, events handed over by other nodes, and the network as people
see it. [CH-11, CN-12]
"""

from __future__ import annotations

import msgspec
from litestar import get
from litestar.params import FromPath

from rapport.channel.federation import check_node_id, is_shared
from rapport.core.codec import decode_cloudevents
from rapport.core.errors import NotAllowed, TooLarge
from rapport.core.json_objects import ObjectDecoder
from rapport.node.network import Network, network_of
from rapport.web.endpoint import (
    HttpRequest,
    NodeDependency,
    Reply,
    identity_of,
    json_response,
    post,
    require_right,
    require_role,
)
from rapport.web.endpoint_docs import EXAMPLE_EVENT, JSON, JSON_OBJECT, documented


class _HandedOver(msgspec.Struct, forbid_unknown_fields=True):
    node: str
    events: msgspec.Raw


_READ = ObjectDecoder(_HandedOver, fault="this is not what a node hands over", code="link.bad_body")


@get("/federation")
async def hello(request: HttpRequest, node: NodeDependency) -> Reply:
    """This node's id, and the channels the caller may read."""
    identity = identity_of(request)
    names = [
        name for name in node.channels.names() if node.rights.allows(identity, "subscribe", name)
    ]
    return json_response({"node": node.links.node, "site": node.site.name, "channels": names})


@post(
    "/federation/channels/{name:str}/events",
    opt=documented(
        bodies={JSON: JSON_OBJECT}, example={"node": "0123456789abcdef", "events": [EXAMPLE_EVENT]}
    ),
)
async def take_over(request: HttpRequest, name: FromPath[str], node: NodeDependency) -> Reply:
    """Takes in another node's events, each once; answers when they are on disk. Those that change
    this node (`interpretations`) only from who may change it.
    """
    identity = require_right(request, node, "publish", name)
    if not is_shared(name):
        raise NotAllowed(
            f"channel {name!r} takes in no events of other nodes", code="link.not_shared"
        )
    given = _READ.decode(await request.body())
    events = decode_cloudevents(bytes(given.events), received_ms=node.clock.now_ms())
    if len(events) > node.settings.max_batch:
        raise TooLarge(
            f"{len(events)} events in one request; the limit is {node.settings.max_batch}",
            code="event.batch_too_large",
        )
    came = await node.take_in(name, check_node_id(given.node), events, identity=identity)
    return json_response(msgspec.to_builtins(came))


@get("/federation/links")
async def links(request: HttpRequest, node: NodeDependency) -> Reply:
    """State of every link and bridge of this node; for administrators."""
    node.rights.check_admin(identity_of(request))
    rows = [*node.links.status(), *node.bridges.status()]
    return json_response([msgspec.to_builtins(row) for row in rows])


@get("/network", opt=documented(answer=Network))
async def network(request: HttpRequest, node: NodeDependency) -> Reply:
    """This node and everything that it is connected to: links, MQTT brokers, context brokers,
    ensemble nodes and pushes, with state, what waits and why something is cut off; of pushes the
    caller's own, all for administrators. Needs the role viewer.
    """
    return json_response(await network_of(node, require_role(request, node, "viewer")))
