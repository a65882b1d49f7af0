"""What the doors of a node tell programs about themselves. [CH-12, UX-5]

What is told of one door: the words and shapes that the framework cannot know. [CH-12, UX-5]

Every door of the node, as the OpenAPI document tells of it. [CH-12, UX-5]

A door that is not in this table is still told, see `document.py`.

The OpenAPI document: what the framework knows of the routes, completed with what it cannot know.
[CH-12, UX-5]

A door that is not in the table of doors is still told: summary from its docstring, JSON answers,
and problems. Served at `/schema/openapi.json`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from litestar import Litestar, MediaType
from litestar import Request as HttpRequest
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin
from litestar.routes import HTTPRoute

from rapport.channel.mqtt.declare import Bridge
from rapport.channel.requesting.batch import Request
from rapport.channel.requesting.message_leases import Answers, Settled
from rapport.mediation.changing.considering import Done
from rapport.mediation.changing.shown import Overview, ShownChange
from rapport.mediation.changing.wanting import Wanted
from rapport.web.asyncapi import asyncapi_document
from rapport.web.cloudevents import BATCH_TYPE, EVENT_TYPE
from rapport.web.problems import PROBLEM_JSON, is_link
from rapport.web.schemas import (
    CHANNEL_PATTERN,
    BatchShown,
    CloudEvent,
    Page,
    ProblemDetails,
    Published,
    reference,
    schema_components,
)
from rapport.web.security import OPEN

Members = dict[str, Any]
JSON = "application/json"


class EndpointDoc(msgspec.Struct, frozen=True, kw_only=True):
    """What the table says of a door."""

    summary: str
    tag: str
    bodies: dict[str, Members] = {}
    """Schemas of request bodies by media type."""
    example: Any = None
    """Of the first kind of body."""
    answer: Members = {}
    media: tuple[str, ...] = (JSON,)
    parameters: tuple[Members, ...] = ()
    statuses: tuple[str, ...] = ("200",)


EXAMPLE_EVENT: Members = {
    "id": "4711",
    "source": "readers",
    "type": "badge.seen",
    "subject": "tag/77",
    "time": "2026-03-02T09:14:05.210Z",
    "data": {"room": "R123"},
}
EXAMPLE_POLICY = """concepts
  person A (status='guest')
  room R (security='restricted')
conditions
  A is inside R
actions
  raise alarm
"""
EXAMPLE_INFORMATION: Members = {
    "text": "Please check a machine and say when it is done.",
    "schema": {"type": "object", "properties": {"machine": {"type": "integer"}}},
    "answers": [{"type": "TASK", "subtype": "DONE", "text": "when it is done"}],
}
_HTML, _TEXT = "text/html; charset=utf-8", "text/plain; version=1.0.0; charset=utf-8"
_ANY: Members = {}
_OBJECT: Members = {"type": "object"}
_FORM = "application/x-www-form-urlencoded"
_FORM_FIELDS: Members = {"type": "object", "additionalProperties": {"type": "string"}}
_MESSAGE: Members = {
    "type": "object",
    "required": ["type", "subtype", "sender"],
    "properties": {name: {"type": "string"} for name in ("type", "subtype", "sender", "content")},
}
_NEW_VALUES: Members = {
    "type": "object",
    "required": ["values", "valid"],
    "properties": {
        "values": {"type": "object"},
        **{name: {"type": "string"} for name in ("valid", "valid_from", "provider")},
    },
    "additionalProperties": False,
}
_BATCH_OF_EVENTS: Members = {"type": "array", "items": reference(CloudEvent)}
_CHANGE_BODIES: dict[str, Members] = {
    JSON: reference(Wanted),
    **{f"application/{kind}": {"type": "string"} for kind in ("toml", "yaml", "xml")},
}
_READINGS = ("application/xml", "application/msgpack", "text/csv", "text/plain")
"""Besides JSON; the interpretation of the source says which."""
_IDEMPOTENCY_KEY: tuple[Members, ...] = (
    {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "schema": {"type": "string", "maxLength": 256},
        "description": "names the request; repeated under the same key it is stored once",
    },
)
_BINARY = tuple(
    {
        "name": f"ce-{name}",
        "in": "header",
        "required": False,
        "description": "CloudEvents binary mode: the attribute; the body is then the data alone.",
        "schema": {"type": "string"},
    }
    for name in ("id", "source", "type")
)


def _texts_body(*needed: str, optional: tuple[str, ...] = ()) -> Members:
    """An object of texts."""
    return {
        "type": "object",
        "properties": {name: {"type": "string"} for name in (*needed, *optional)},
        "required": list(needed),
        "additionalProperties": False,
    }


_POSTED_PAGE = EndpointDoc(
    summary="Log in, answer or log out; leads back to the page",
    tag="people",
    bodies={_FORM: _FORM_FIELDS},
    answer={"type": "string"},
    media=(_HTML,),
    statuses=("200", "303"),
)
_SHOWN_PAGE = EndpointDoc(
    summary="A person's inbox, or the way to the login",
    tag="people",
    answer={"type": "string"},
    media=(_HTML,),
    statuses=("200", "303"),
)
ENDPOINT_DOCS: dict[tuple[str, str], EndpointDoc] = {
    ("get", "/soap/channels/{name}"): EndpointDoc(
        summary="The WSDL (?wsdl) or the XML Schema (?xsd) of a channel's SOAP endpoint",
        tag="channels",
        answer={"type": "string"},
        media=("text/xml; charset=utf-8",),
        parameters=tuple(
            {
                "name": name,
                "in": "query",
                "required": False,
                "allowEmptyValue": True,
                "description": what,
                "schema": {"type": "string", "maxLength": 0},
            }
            for name, what in (("wsdl", "Gives the WSDL."), ("xsd", "Gives the XML Schema."))
        ),
    ),
    ("post", "/channels/{name}/events"): EndpointDoc(
        summary="Publish one or many CloudEvents; answered when they are on disk",
        tag="channels",
        bodies={
            EVENT_TYPE: reference(CloudEvent),
            BATCH_TYPE: _BATCH_OF_EVENTS,
            JSON: {"anyOf": [reference(CloudEvent), _BATCH_OF_EVENTS]},
        },
        example=EXAMPLE_EVENT,
        answer=reference(Published),
        parameters=_BINARY,
    ),
    ("post", "/channels/{name}/interceptors"): EndpointDoc(
        summary="Add an interceptor for good; it works from the next event on",
        tag="channels",
        bodies={JSON: _OBJECT},
        example={"name": "no-tests", "kind": "drop", "settings": {"where": "type = 'test'"}},
    ),
    ("post", "/dead-letters/replay"): EndpointDoc(
        summary="Send dead letters back to the readers that failed",
        tag="dead-letters",
        bodies={JSON: _OBJECT},
        example={"channel": "events", "republish": False},
    ),
    ("post", "/dead-letters/forget"): EndpointDoc(
        summary="Strike dead letters off the list",
        tag="dead-letters",
        bodies={JSON: _OBJECT},
        example={"channel": "events"},
    ),
    ("post", "/quarantine/release"): EndpointDoc(
        summary="Mediate what is held back by what is in force now",
        tag="quarantine",
        bodies={JSON: _OBJECT},
        example={"source": "readers", "dry_run": True},
    ),
    ("post", "/interpretations/again"): EndpointDoc(
        summary="Mediate raw events of a source again; readings that differ are corrected",
        tag="interpretations",
        bodies={JSON: _OBJECT},
        example={"source": "readers", "dry_run": True},
    ),
    ("post", "/federation/channels/{name}/events"): EndpointDoc(
        summary="Hand over another node's events; answered when they are on disk",
        tag="federation",
        bodies={JSON: _OBJECT},
        example={"node": "0123456789abcdef", "events": [EXAMPLE_EVENT]},
    ),
    ("post", "/pipeline/channels/{name}/events"): EndpointDoc(
        summary="Take in what the pipeline found; answered when it is on disk",
        tag="pipeline",
        bodies={JSON: _BATCH_OF_EVENTS},
        example=[EXAMPLE_EVENT],
        answer=reference(Published),
    ),
    ("get", "/channels/{name}/events"): EndpointDoc(
        summary="Read events after a position, waiting for a first one (long poll)",
        tag="channels",
        answer=reference(Page),
    ),
    ("post", "/channels/{name}/requests"): EndpointDoc(
        summary="Request a batch of messages by query or by token",
        tag="channels",
        bodies={JSON: reference(Request)},
        example={"query": "type = 'badge.seen'", "max_messages": 10},
        answer=reference(BatchShown),
    ),
    ("post", "/channels/{name}/acks"): EndpointDoc(
        summary="Ack deliveries of a leased take, give them back or renew leases; durable at once",
        tag="channels",
        bodies={JSON: reference(Answers)},
        example={"ack": ["17.3f2a9c01d4e5b6a7"], "nak": [], "delay_ms": 0, "error": ""},
        answer=reference(Settled),
    ),
    ("get", "/channels/{name}/stream"): EndpointDoc(
        summary="Follow a channel as Server-Sent Events: history first, then live",
        tag="channels",
        answer={"type": "string"},
        media=("text/event-stream; charset=utf-8",),
        statuses=("200", "204"),
    ),
    ("get", "/load/stream"): EndpointDoc(
        summary="Follow the load as Server-Sent Events, with a tolerated imprecision",
        tag="load",
        answer={"type": "string"},
        media=("text/event-stream; charset=utf-8",),
    ),
    ("post", "/sources/{source}"): EndpointDoc(
        summary="Take readings of a source in its own format; answered when they are on disk",
        tag="sources",
        bodies={JSON: _ANY, **dict.fromkeys(_READINGS, _ANY)},
        parameters=_IDEMPOTENCY_KEY,
        example={"reader": "r1", "tag": "E200-01", "dx": 1.0, "dy": 2.0},
        answer=reference(Published),
    ),
    ("get", "/interpretations"): EndpointDoc(
        summary="All interpretations with parents and versions, and those that are refused",
        tag="interpretations",
        answer=reference(Overview),
    ),
    ("get", "/interpretations/{interpretation}"): EndpointDoc(
        summary="One interpretation: by name, by NAME@VERSION, or NAME/transformers/TYPE as Python",
        tag="interpretations",
        media=(JSON, "text/x-python; charset=utf-8"),
    ),
    ("get", "/interpretations/changes"): EndpointDoc(
        summary="The history of changes and what became of each",
        tag="interpretations",
        answer={"type": "array", "items": reference(ShownChange)},
    ),
    ("post", "/interpretations/changes"): EndpointDoc(
        summary="Change interpretations, all or nothing; answered when it is in force",
        tag="interpretations",
        bodies=_CHANGE_BODIES,
        example={"changes": [{"type": "remove", "name": "us"}]},
        answer=reference(Done),
    ),
    ("post", "/interpretations/check"): EndpointDoc(
        summary="Say what a change would do",
        tag="interpretations",
        bodies=_CHANGE_BODIES,
        example={"changes": [{"type": "remove", "name": "us"}]},
        answer=reference(Done),
    ),
    ("post", "/policies/{policy}"): EndpointDoc(
        summary="Register, replace or shadow a policy; answered when it runs",
        tag="policies",
        bodies={"text/plain": {"type": "string"}},
        example=EXAMPLE_POLICY,
    ),
    ("post", "/policies/{policy}/check"): EndpointDoc(
        summary="Say every problem of a policy",
        tag="policies",
        bodies={"text/plain": {"type": "string"}},
        example=EXAMPLE_POLICY,
    ),
    ("post", "/reload"): EndpointDoc(
        summary="Take over what the site's files say now; answered when it is in force",
        tag="service",
    ),
    ("get", "/healthz"): EndpointDoc(summary="Whether the process runs", tag="service"),
    ("get", "/identity"): EndpointDoc(summary="Which node of which site answers", tag="service"),
    ("get", "/readyz"): EndpointDoc(
        summary="Whether the node takes events and its readers run, and what degrades it",
        tag="service",
    ),
    ("get", "/metrics"): EndpointDoc(
        summary="Prometheus text", tag="service", answer={"type": "string"}, media=(_TEXT,)
    ),
    ("get", "/answer/{message}/{peer}/{token}"): EndpointDoc(
        summary="The page behind the link in a message",
        tag="people",
        answer={"type": "string"},
        media=(_HTML,),
    ),
    ("post", "/answer/{message}/{peer}/{token}"): EndpointDoc(
        summary="Record a person's answer",
        tag="people",
        bodies={JSON: _texts_body("answer")},
        example={"answer": "yes"},
        answer={"type": "string"},
        media=(_HTML,),
    ),
    ("post", "/sessions"): EndpointDoc(
        summary="Log a peer in by its password, or renew its token",
        tag="people",
        bodies={JSON: _texts_body("peer", optional=("password", "token"))},
        example={"peer": "ana", "password": "..."},
        statuses=("201",),
    ),
    ("post", "/sessions/messages"): EndpointDoc(
        summary="Take messages of a logged-in peer, or its AUTH REQUEST",
        tag="people",
        bodies={JSON: _ANY},
        example={"type": "TASK", "subtype": "DONE", "sender": "peer:ana"},
        statuses=("202",),
    ),
    ("delete", "/sessions"): EndpointDoc(
        summary="Log a peer out: Authorization: Session TOKEN", tag="people"
    ),
    ("post", "/peers/{peer}/password"): EndpointDoc(
        summary="Set a peer's password and end its sessions",
        tag="people",
        bodies={JSON: _texts_body("password")},
        example={"password": "..."},
    ),
    ("post", "/inputs/{name}"): EndpointDoc(
        summary="Take messages of an input: JSON, CloudEvents or a form; answered when durable",
        tag="people",
        bodies={
            JSON: {"anyOf": [_MESSAGE, {"type": "array", "items": _MESSAGE}]},
            EVENT_TYPE: reference(CloudEvent),
            _FORM: _FORM_FIELDS,
        },
        example={"type": "REPLY", "subtype": "TEXT", "sender": "peer:ana", "content": "yes"},
        statuses=("202",),
    ),
    ("get", "/inbox"): EndpointDoc(
        summary="Where a person logs in to their inbox",
        tag="people",
        answer={"type": "string"},
        media=(_HTML,),
    ),
    ("post", "/inbox"): _POSTED_PAGE,
    ("get", "/inbox/{peer}"): _SHOWN_PAGE,
    ("get", "/inbox/{peer}/{link}"): _SHOWN_PAGE,
    ("post", "/inbox/{peer}"): _POSTED_PAGE,
    ("post", "/inbox/{peer}/{link}"): _POSTED_PAGE,
    ("get", "/messages"): EndpointDoc(
        summary="Messages that were handled, by criteria", tag="messages"
    ),
    ("put", "/messages/info/{kind}"): EndpointDoc(
        summary="Tell what a type of message means",
        tag="messages",
        bodies={JSON: {"type": "object"}},
        example=EXAMPLE_INFORMATION,
    ),
    ("put", "/messages/info/{kind}/{subtype}"): EndpointDoc(
        summary="Tell what a type and subtype of message means",
        tag="messages",
        bodies={JSON: {"type": "object"}},
        example=EXAMPLE_INFORMATION,
    ),
    ("put", "/context/{entity_type}/{entity_id}/{entity_scope}"): EndpointDoc(
        summary="Say what is true of an entity for a while; answered when it is on disk",
        tag="context",
        bodies={JSON: _NEW_VALUES},
        example={"values": {"open": True}, "valid": "30s"},
    ),
    ("post", "/routing"): EndpointDoc(
        summary="Add a routing rule; answered when it is in force",
        tag="routing",
        bodies={JSON: {"type": "object"}},
        example={"type": "TASK", "sender": "peer:ana", "to": ["collective:watchers"]},
    ),
    ("get", "/ledger"): EndpointDoc(summary="Who was told what, and who answered", tag="people"),
    ("get", "/ledger/messages"): EndpointDoc(summary="Messages and how they stand", tag="people"),
    ("get", "/ledger/messages/{message}"): EndpointDoc(
        summary="One message: how far it got with each person, and what happened", tag="people"
    ),
    ("post", "/messages"): EndpointDoc(
        summary="Send messages; answered when they are on disk",
        tag="people",
        bodies={JSON: {"anyOf": [_OBJECT, {"type": "array", "items": _OBJECT}]}},
        example={
            "type": "NOTIFICATION",
            "subtype": "MESSAGE",
            "sender": "component:app",
            "receiver": "collective:guards",
            "content": "Please come to the gate",
            "wishes": {"least": 1, "answer_within": 600_000},
        },
    ),
    ("put", "/peers/{peer}"): EndpointDoc(
        summary="Add a peer or replace its settings",
        tag="people",
        bodies={JSON: _OBJECT},
        example={"addresses": ["inbox:"], "quiet": "22:00-07:00", "zone": "Europe/Vienna"},
    ),
    ("patch", "/peers/{peer}"): EndpointDoc(
        summary="Change some settings of a peer; null takes one away",
        tag="people",
        bodies={JSON: _OBJECT},
        example={"delivery": "preferred"},
    ),
    ("put", "/collectives/{collective}"): EndpointDoc(
        summary="Add a collective or replace its settings and members",
        tag="people",
        bodies={JSON: _OBJECT},
        example={"delivery": "at-least 2", "members": ["ana", "ben"]},
    ),
    ("post", "/collectives/{collective}/members"): EndpointDoc(
        summary="Let peers join and leave a collective",
        tag="people",
        bodies={JSON: _OBJECT},
        example={"join": ["ana"], "leave": []},
    ),
    ("get", "/explain/{event_id}"): EndpointDoc(
        summary="The chain of causes of an event", tag="people"
    ),
    ("get", "/explain/{event_id}/why"): EndpointDoc(
        summary="The conditions behind a detection", tag="policies"
    ),
    ("get", "/policies/{policy}/why-not"): EndpointDoc(
        summary="Why a policy did not fire around a time", tag="policies"
    ),
    ("get", "/"): EndpointDoc(
        summary="The page of what happens", tag="page", answer={"type": "string"}, media=(_HTML,)
    ),
    ("get", "/static/{name}"): EndpointDoc(
        summary="Style and script of the page",
        tag="page",
        answer={"type": "string"},
        media=("text/css; charset=utf-8", "text/javascript; charset=utf-8"),
    ),
    ("get", "/overview"): EndpointDoc(summary="Figures for the page", tag="page"),
}


_REFUSALS = ("400", "401", "403", "404", "409", "413", "422", "429", "503")


class OpenApiDocument(JsonRenderPlugin):
    """Gives out the completed document."""

    def __init__(self) -> None:
        super().__init__(path="/openapi.json")
        self._rendered: bytes | None = None

    def render(self, request: HttpRequest[Any, Any, Any], openapi_schema: Members) -> bytes:
        """The document, completed once."""
        if self._rendered is None:
            operations = open_operations(request.app)
            self._rendered = msgspec.json.encode(completed(openapi_schema, operations))
        return self._rendered


class AsyncApiDocument(OpenAPIRenderPlugin):
    """Gives out the AsyncAPI document beside it."""

    def __init__(self, version: str, bridges: Sequence[Bridge]) -> None:
        super().__init__(path="/asyncapi.json", media_type=MediaType.JSON)
        self._rendered = msgspec.json.encode(asyncapi_document(version, bridges))

    def render(self, request: HttpRequest[Any, Any, Any], openapi_schema: Members) -> bytes:
        """The document; it depends on nothing the framework knows."""
        return self._rendered


def open_operations(app: Litestar) -> set[tuple[str, str]]:
    """Method and path of every route that needs no bearer token."""
    return {
        (method.lower(), route.path_format)
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for method, (handler, _arguments) in route.route_handler_map.items()
        if handler.opt.get(OPEN)
    }


def completed(schema: Members, open_ones: Collection[tuple[str, str]]) -> Members:
    """The framework's document with bodies, answers, problems, examples, tags and security."""
    paths = {
        path: {
            method: _operation(method, path, told, is_open=(method, path) in open_ones)
            for method, told in operations.items()
        }
        for path, operations in schema["paths"].items()
    }
    return schema | {
        "paths": paths,
        "tags": [{"name": name} for name in _tags(paths)],
        "components": {
            "schemas": schema_components(),
            "responses": {
                "Problem": {
                    "description": "What is wrong and what to do about it",
                    "content": {PROBLEM_JSON: {"schema": reference(ProblemDetails)}},
                },
                "ProblemAtLink": {
                    "description": "What is wrong with a link: a page for people, or problem "
                    "details for a program",
                    "content": {
                        "text/html": {"schema": {"type": "string"}},
                        PROBLEM_JSON: {"schema": reference(ProblemDetails)},
                    },
                },
            },
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Asked for once the site names tokens; see its [access].",
                }
            },
        },
    }


def _operation(method: str, path: str, known: Members, *, is_open: bool) -> Members:
    told = ENDPOINT_DOCS.get((method, path)) or _by_docstring(path, known)
    content = {media: {"schema": told.answer} for media in told.media}
    answers: Members = {
        status: {"description": told.summary, **({"content": content} if status != "204" else {})}
        for status in _statuses(told, known)
    }
    for status in _REFUSALS:
        problem = "ProblemAtLink" if is_link(path) else "Problem"
        answers.setdefault(status, {"$ref": f"#/components/responses/{problem}"})
    if path == "/readyz":
        answers["503"] = {"description": "Not ready", "content": content}
    operation = {
        "operationId": known["operationId"],
        "summary": told.summary,
        "description": known.get("description", ""),
        "tags": [told.tag],
        "parameters": [_parameter(one) for one in (*known.get("parameters", ()), *told.parameters)],
        "responses": answers,
        "security": [] if is_open else [{}, {"bearer": []}],
    }
    return operation | _body(told)


def _statuses(told: EndpointDoc, known: Members) -> tuple[str, ...]:
    own = tuple(status for status in known["responses"] if status.startswith("2"))
    return tuple(dict.fromkeys((*own, *told.statuses))) if told.statuses != ("200",) else own


def _body(told: EndpointDoc) -> Members:
    if not told.bodies:
        return {}
    content: Members = {media: {"schema": schema} for media, schema in told.bodies.items()}
    if told.example is not None:
        next(iter(content.values()))["example"] = told.example
    return {"requestBody": {"required": True, "content": content}}


def _by_docstring(path: str, known: Members) -> EndpointDoc:
    """A door that has no entry: its docstring's first sentence, JSON in and out."""
    sentence = " ".join(str(known.get("description") or known["summary"]).split()).split(". ")[0]
    return EndpointDoc(summary=sentence.rstrip("."), tag=path.strip("/").split("/")[0] or "page")


def _parameter(known: Members) -> Members:
    """Names of channels are told as what they may be."""
    shown = {name: known[name] for name in known if name not in ("deprecated", "allowReserved")}
    if known["in"] == "path" and known["name"] in ("name", "source"):
        shown["schema"] = {"type": "string", "pattern": CHANNEL_PATTERN}
        shown["example"] = "raw.readers" if known["name"] == "name" else "readers"
    return shown


def _tags(paths: Members) -> list[str]:
    found = (operation["tags"][0] for methods in paths.values() for operation in methods.values())
    return list(dict.fromkeys(found))
