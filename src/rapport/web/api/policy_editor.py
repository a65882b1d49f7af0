"""What a policy editor needs: the words of the site, the difference to the version in force, and a
trial over the log. [CN-7, PO-16]

Checking and saving are in `policies.py`. Comparing and trying need the role of an editor and change
nothing.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import get
from litestar.params import FromPath, FromQuery, QueryParameter

from rapport.core.errors import InvalidInput
from rapport.core.schema import PART_UNITS, AttributeType
from rapport.core.times import parse_time
from rapport.policy.explain.evidence import TimeSpan
from rapport.policy.lifecycle.lifecycle import PolicyDifference
from rapport.policy.ontology import Ontology, known_kinds, resolve_kind
from rapport.policy.replay.trial import TrialResult
from rapport.web.api.policies import policy_text
from rapport.web.endpoint import (
    HttpRequest,
    NodeDependency,
    Reply,
    json_response,
    post,
    require_any_right,
    require_role,
)
from rapport.web.endpoint_docs import EXAMPLE_POLICY, TEXT, Members, documented

_DAY_MS = 86_400_000
_TEXT: dict[str, type[msgspec.Struct] | Members] = {"text/plain": TEXT}
Days = Annotated[float, QueryParameter(ge=0, le=36_500)]


class AttributeTerm(msgspec.Struct, frozen=True, kw_only=True):
    """An attribute of a concept."""

    name: str
    type: AttributeType
    unit: str = ""
    sources: list[str] = []
    """The sources that give it as readings; empty: tables give it."""


class ConceptTerm(msgspec.Struct, frozen=True, kw_only=True):
    """A name that may stand before an alias."""

    name: str
    concept: str
    """Of a specialised name or group: the concept whose attributes it has."""
    attributes: list[AttributeTerm]


class RelationshipTerm(msgspec.Struct, frozen=True, kw_only=True):
    """A relationship between two concepts."""

    name: str
    first: str
    second: str
    function: str


class FunctionTerm(msgspec.Struct, frozen=True, kw_only=True):
    """A function of the site for comparisons."""

    name: str
    of: list[str]
    """The concepts of its arguments."""
    unit: str = ""


class SiteVocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """The words of a site that its policies may use."""

    concepts: list[ConceptTerm]
    relationships: list[RelationshipTerm]
    functions: list[FunctionTerm]
    actions: list[str]
    """Phrases of `[actions]`."""
    day_tables: list[str]
    """Tables of days, for `time is on holidays`."""
    zone: str
    """Of times of day; empty: UTC."""


@get("/ontology", opt=documented(answer=SiteVocabulary))
async def show_ontology(request: HttpRequest, node: NodeDependency) -> Reply:
    """Concepts, attributes with units, relationships, functions, actions and tables of days that
    policies may name.
    """
    require_any_right(request, node, "the ontology")
    ontology = node.policy.ontology
    return json_response(
        SiteVocabulary(
            concepts=[_concept(ontology, name) for name in known_kinds(ontology)],
            relationships=[
                RelationshipTerm(
                    name=one.name, first=one.first[0], second=one.second[0], function=one.function
                )
                for one in ontology.relationships.values()
            ],
            functions=[
                FunctionTerm(name=name, of=[concept for concept, _ in one.of], unit=one.unit)
                for name, one in ontology.functions.items()
            ],
            actions=node.policies.phrases(),
            day_tables=list(ontology.day_tables),
            zone=ontology.zone,
        )
    )


def _concept(ontology: Ontology, name: str) -> ConceptTerm:
    kind = resolve_kind(ontology, name)
    assert kind is not None
    units = ontology.units.get(kind.concept, {})
    return ConceptTerm(
        name=name,
        concept=kind.concept,
        attributes=[
            AttributeTerm(
                name=attribute,
                type=type_,
                unit=units.get(attribute, PART_UNITS.get(type_, "")),
                sources=[
                    source.name
                    for source in ontology.sources.values()
                    if f"{kind.concept}.{attribute}" in source.streams
                ],
            )
            for attribute, type_ in ontology.concepts[kind.concept].items()
        ],
    )


@post(
    "/policies/{policy:str}/compare",
    opt=documented(bodies=_TEXT, example=EXAMPLE_POLICY, answer=PolicyDifference),
)
async def compare_policy(
    request: HttpRequest, policy: FromPath[str], node: NodeDependency
) -> Reply:
    """How the text in the body differs from the version in force; nothing is changed."""
    require_role(request, node, "editor")
    return json_response(node.policies.life.compare(policy, await policy_text(request)))


@post(
    "/policies/{policy:str}/try",
    opt=documented(bodies=_TEXT, example=EXAMPLE_POLICY, answer=TrialResult),
)
async def try_policy(
    request: HttpRequest,
    policy: FromPath[str],
    node: NodeDependency,
    days: Days = 7,
    until: FromQuery[str] = "",
) -> Reply:
    """Runs the text in the body over the newest readings of the log, up to now or `until`: episodes
    with their beginning and end, and the differences to the version in force. At most 200,000
    readings are read; `is_whole` says whether that was all. `days=0` takes all time. Nothing is
    changed.
    """
    require_role(request, node, "editor")
    text = await policy_text(request)
    end = node.clock.now_ms() if not until else _time(until)
    start = 0 if days == 0 else max(0, end - round(days * _DAY_MS))
    return json_response(await node.policies.try_text(policy, text, TimeSpan(start, end)))


def _time(text: str) -> int:
    try:
        return parse_time(text)
    except InvalidInput as error:
        error.code = "replay.bad_span"
        raise
