"""The doors to the routing rules: see, add, remove; in force when the answer comes. [CO-6]"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.params import FromPath

from rapport.communication.routing import RoutingRule, shown_rule
from rapport.core.errors import UnknownName
from rapport.core.json_objects import ObjectDecoder
from rapport.core.message import Identifier
from rapport.web.callers import allow, allow_admin
from rapport.web.dependencies import NodeDependency


class NewRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule as it is posted: names as `kind:name`; what is empty matches anything."""

    to: list[str]
    id: str = ""
    type: str = ""
    subtype: str = ""
    receiver: str = ""
    sender: str = ""

    def rule(self) -> RoutingRule:
        """The rule; raises InvalidInput for a name that is none."""
        return RoutingRule(
            id=self.id,
            type=self.type,
            subtype=self.subtype,
            receiver=Identifier.parse(self.receiver) if self.receiver else None,
            sender=Identifier.parse(self.sender) if self.sender else None,
            to=tuple(Identifier.parse(each) for each in self.to),
        )


_READ = ObjectDecoder(
    NewRule,
    fault="this is no routing rule",
    code="routing.bad_rule",
    hint='such as {"type": "TASK", "to": ["peer:ana"]}',
)


@get("/routing")
async def list_rules(request: Request[Any, Any, Any], node: NodeDependency) -> Response[bytes]:
    """The routing rules in force, in the order in which they count; for who may read `log`."""
    allow(request, node, "subscribe", "log")
    routing = node.services.routing
    return _json(
        [
            shown_rule(rule) | {"origin": "site" if routing.is_of_site(rule.id) else "added"}
            for rule in routing.rules()
        ]
    )


@post("/routing", status_code=201)
async def add_rule(request: Request[Any, Any, Any], node: NodeDependency) -> Response[bytes]:
    """Adds a routing rule for good; it is in force when this is answered."""
    identity = allow_admin(request, node)
    new = _READ.decode(await request.body())
    added = await node.services.routing.add(new.rule(), by=identity)
    return _json({"id": added}, status=201)


@delete("/routing/{rule:str}", status_code=200)
async def remove_rule(
    request: Request[Any, Any, Any], rule: FromPath[str], node: NodeDependency
) -> Response[bytes]:
    """Takes a routing rule out for good and gives it back; it is not applied any more."""
    identity = allow_admin(request, node)
    routing = node.services.routing
    removed = await routing.remove(rule, by=identity)
    if removed is None:
        known = [each.id for each in routing.rules()]
        raise UnknownName("routing rule", rule, known, code="routing.unknown")
    return _json(shown_rule(removed))


def _json(value: object, *, status: int = 200) -> Response[bytes]:
    return Response(msgspec.json.encode(value), media_type="application/json", status_code=status)
