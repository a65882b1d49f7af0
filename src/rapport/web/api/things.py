"""Things: present values, curves, readings, and the plan of positions and areas. [CN-5]

Needs the right to read `events`. Sizes are bounded: a list is read in parts, a curve has as many
points as a screen shows.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import get
from litestar.params import FromPath, FromQuery, QueryParameter

from rapport.channel.channel import Channels
from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.times import parse_time
from rapport.node.found_situations import aliases_of, plans_in_force
from rapport.node.node import Node
from rapport.node.things import (
    AttributeView,
    Curve,
    PlacedThing,
    Thing,
    ThingList,
    placed_at,
    read_curve,
)
from rapport.policy.limits import PolicyLimit, limits_of
from rapport.policy.plan import Plan
from rapport.policy.situation_plan import SituationPlan
from rapport.web.endpoint import (
    HttpRequest,
    NodeDependency,
    Reply,
    json_response,
    require_unfiltered,
)
from rapport.web.endpoint_docs import documented

_EVENTS = "events"
_DAY_MS = 86_400_000
_MOST_PLACED = 5_000
Offset = Annotated[int, QueryParameter(ge=0, le=10_000_000)]
Limit = Annotated[int, QueryParameter(ge=1, le=1_000)]
From = Annotated[str, QueryParameter(name="from")]
To = Annotated[str, QueryParameter(name="to")]


class CurveWithLimits(Curve, frozen=True, kw_only=True):
    """A curve with the limits of the policies that read the attribute."""

    limits: list[PolicyLimit]


class ReadingPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that reads things of a concept, and the alias that it has for them."""

    name: str
    alias: str


class ThingPage(msgspec.Struct, frozen=True, kw_only=True):
    """One thing, its attributes, and the policies that read them."""

    thing: Thing
    attributes: list[AttributeView]
    policies: list[ReadingPolicy]


class SitePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Positions and areas, areas first."""

    at: int
    placed: list[PlacedThing]


@get("/things", opt=documented(answer=ThingList))
async def list_things(
    request: HttpRequest,
    node: NodeDependency,
    concept: FromQuery[str] = "",
    search: FromQuery[str] = "",
    offset: Offset = 0,
    limit: Limit = 100,
) -> Reply:
    """Things with their present values, in the order of their ids: of one concept, or those whose
    id or text contains what is searched for.
    """
    require_unfiltered(request, node, _EVENTS)
    await node.things.refresh()
    return json_response(
        await node.things.find(
            node.policy.ontology,
            node.site.tables,
            concept=concept,
            search=search,
            offset=offset,
            limit=limit,
        )
    )


@get("/things/{concept:str}/{id:str}", opt=documented(answer=ThingPage))
async def show_thing(
    request: HttpRequest, concept: FromPath[str], id: FromPath[str], node: NodeDependency
) -> Reply:
    """One thing with its present values and the policies that read them."""
    require_unfiltered(request, node, _EVENTS)
    await node.things.refresh()
    ontology, tables = node.policy.ontology, node.site.tables
    if not node.things.is_known(ontology, tables, concept, id):
        raise UnknownName(concept, id, [])
    (view,) = (one for one in node.things.concepts(ontology, tables) if one.name == concept)
    readers = [
        ReadingPolicy(name=plan.policy, alias=alias)
        for plan in sorted(plans_in_force(node), key=lambda plan: plan.policy)
        for alias in _aliases(plan, concept)
    ]
    page = ThingPage(
        thing=node.things.thing(ontology, tables, concept, id),
        attributes=view.attributes,
        policies=readers,
    )
    return json_response(page)


@get("/things/{concept:str}/{id:str}/values", opt=documented(answer=CurveWithLimits))
async def show_values(
    request: HttpRequest,
    concept: FromPath[str],
    id: FromPath[str],
    node: NodeDependency,
    attribute: FromQuery[str],
    begin: From = "",
    end: To = "",
) -> Reply:
    """The values of an attribute over a time, by default the last day, with the limits of policies;
    from the log, and from the lake what the log no longer holds.
    """
    require_unfiltered(request, node, _EVENTS)
    until = parse_time(end) if end else node.clock.now_ms()
    since = parse_time(begin) if begin else until - _DAY_MS
    if since >= until:
        raise InvalidInput(
            "the time ends before it begins", code="things.bad_time", hint="from is before to"
        )
    ontology = node.policy.ontology

    async def work(channels: Channels) -> Curve:
        return await read_curve(
            channels, ontology, concept, id, attribute, since=since, until=until
        )

    curve, _looked = await node.history.ask(work)
    limits = [
        limit for plan in plans_in_force(node) for limit in limits_of(plan, concept, attribute)
    ]
    return json_response(CurveWithLimits(**msgspec.structs.asdict(curve), limits=limits))


@get("/plan", opt=documented(answer=SitePlan))
async def show_plan(request: HttpRequest, node: NodeDependency, at: FromQuery[str] = "") -> Reply:
    """Positions and areas of all things, now or at an earlier time; areas come from tables, so they
    are those of now.
    """
    require_unfiltered(request, node, _EVENTS)
    await node.things.refresh()
    ontology = node.policy.ontology
    placed = await node.things.placed(ontology, node.site.tables, _MOST_PLACED)
    at_ms = parse_time(at) if at else node.clock.now_ms()
    if at:
        placed = await _placed_then(node, placed, at_ms)
    return json_response(SitePlan(at=at_ms, placed=placed))


async def _placed_then(node: Node, placed: list[PlacedThing], at_ms: int) -> list[PlacedThing]:
    """The same with the positions of then; what had none then is left out."""
    found = [one for one in placed if not one.time]
    moving = dict.fromkeys((one.concept, one.attribute) for one in placed if one.time)
    names = {(one.concept, one.id): one.name for one in placed}
    for concept, attribute in moving:
        then = await placed_at(node.channels, node.policy.ontology, concept, attribute, at_ms)
        found += [
            PlacedThing(
                concept=concept,
                id=id,
                name=names.get((concept, id), id),
                attribute=attribute,
                value=value,
                time=time,
            )
            for id, (time, value) in then.items()
        ]
    return found


def _aliases(plan: Plan | SituationPlan, concept: str) -> list[str]:
    return sorted(alias for alias, of in aliases_of(plan).items() if of == concept)
