"""The OpenAPI document: what the framework knows of the routes, completed with what it cannot know.
[CH-12, UX-5]

A door that is not in the table below is still told: summary from its docstring, JSON answers, and
problems. Served at `/schema/openapi.json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import MediaType
from litestar import Request as HttpRequest
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin

from rapport.channel.mqtt.declare import Bridge
from rapport.channel.requesting.batch import Request
from rapport.mediation.changing.considering import Done
from rapport.mediation.changing.shown import Overview, ShownChange
from rapport.mediation.changing.wanting import Wanted
from rapport.web.asyncapi import asyncapi_document
from rapport.web.problems import PROBLEM_JSON
from rapport.web.publishing import BATCH_TYPE, EVENT_TYPE
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

Members = dict[str, Any]

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
_JSON = "application/json"
_HTML, _TEXT = "text/html; charset=utf-8", "text/plain; version=1.0.0; charset=utf-8"
_REFUSALS = ("400", "401", "403", "404", "409", "413", "422", "429", "503")
_OPEN = (
    *("/healthz", "/readyz", "/", "/static/{name}", "/answer/{message}/{peer}/{token}"),
    *("/sessions", "/inbox", "/inbox/{peer}", "/inbox/{peer}/{link}"),
)
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
    _JSON: reference(Wanted),
    **{f"application/{kind}": {"type": "string"} for kind in ("toml", "yaml", "xml")},
}
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


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the table says of a door."""

    summary: str
    tag: str
    bodies: dict[str, Members] = {}
    """Schemas of request bodies by media type."""
    example: Any = None
    """Of the first kind of body."""
    answer: Members = _ANY
    media: tuple[str, ...] = (_JSON,)
    parameters: tuple[Members, ...] = ()
    statuses: tuple[str, ...] = ("200",)


_POSTED_PAGE = Told(
    summary="Log in, answer or log out; leads back to the page",
    tag="people",
    bodies={_FORM: _FORM_FIELDS},
    answer={"type": "string"},
    media=(_HTML,),
    statuses=("200", "303"),
)
_SHOWN_PAGE = Told(
    summary="A person's inbox, or the way to the login",
    tag="people",
    answer={"type": "string"},
    media=(_HTML,),
    statuses=("200", "303"),
)
DOORS: dict[tuple[str, str], Told] = {
    ("post", "/channels/{name}/events"): Told(
        summary="Publish one or many CloudEvents; answered when they are on disk",
        tag="channels",
        bodies={
            EVENT_TYPE: reference(CloudEvent),
            BATCH_TYPE: _BATCH_OF_EVENTS,
            _JSON: {"anyOf": [reference(CloudEvent), _BATCH_OF_EVENTS]},
        },
        example=EXAMPLE_EVENT,
        answer=reference(Published),
        parameters=_BINARY,
    ),
    ("get", "/channels/{name}/events"): Told(
        summary="Read events after a position, waiting for a first one (long poll)",
        tag="channels",
        answer=reference(Page),
    ),
    ("post", "/channels/{name}/requests"): Told(
        summary="Request a batch of messages by query or by token",
        tag="channels",
        bodies={_JSON: reference(Request)},
        example={"query": "type = 'badge.seen'", "max_messages": 10},
        answer=reference(BatchShown),
    ),
    ("get", "/channels/{name}/stream"): Told(
        summary="Follow a channel as Server-Sent Events: history first, then live",
        tag="channels",
        answer={"type": "string"},
        media=("text/event-stream; charset=utf-8",),
        statuses=("200", "204"),
    ),
    ("get", "/load/stream"): Told(
        summary="Follow the load as Server-Sent Events, with a tolerated imprecision",
        tag="load",
        answer={"type": "string"},
        media=("text/event-stream; charset=utf-8",),
    ),
    ("post", "/sources/{source}"): Told(
        summary="Take a device's own JSON; answered when it is on disk",
        tag="sources",
        bodies={_JSON: _ANY},
        example={"reader": "r1", "tag": "E200-01", "dx": 1.0, "dy": 2.0},
        answer=reference(Published),
    ),
    ("get", "/interpretations"): Told(
        summary="All interpretations with parents and versions, and those that are refused",
        tag="interpretations",
        answer=reference(Overview),
    ),
    ("get", "/interpretations/{interpretation}"): Told(
        summary="One interpretation: by name, by NAME@VERSION, or NAME/transformers/TYPE as Python",
        tag="interpretations",
        media=(_JSON, "text/x-python; charset=utf-8"),
    ),
    ("get", "/interpretations/changes"): Told(
        summary="The history of changes and what became of each",
        tag="interpretations",
        answer={"type": "array", "items": reference(ShownChange)},
    ),
    ("post", "/interpretations/changes"): Told(
        summary="Change interpretations, all or nothing; answered when it is in force",
        tag="interpretations",
        bodies=_CHANGE_BODIES,
        example={"changes": [{"type": "remove", "name": "us"}]},
        answer=reference(Done),
    ),
    ("post", "/interpretations/check"): Told(
        summary="Say what a change would do",
        tag="interpretations",
        bodies=_CHANGE_BODIES,
        example={"changes": [{"type": "remove", "name": "us"}]},
        answer=reference(Done),
    ),
    ("post", "/policies/{policy}"): Told(
        summary="Register, replace or shadow a policy; answered when it runs",
        tag="policies",
        bodies={"text/plain": {"type": "string"}},
        example=EXAMPLE_POLICY,
    ),
    ("post", "/policies/{policy}/check"): Told(
        summary="Say every problem of a policy",
        tag="policies",
        bodies={"text/plain": {"type": "string"}},
        example=EXAMPLE_POLICY,
    ),
    ("post", "/reload"): Told(
        summary="Take over what the site's files say now; answered when it is in force",
        tag="service",
    ),
    ("get", "/healthz"): Told(summary="Whether the process runs", tag="service"),
    ("get", "/readyz"): Told(
        summary="Whether the node takes events and its readers run", tag="service"
    ),
    ("get", "/metrics"): Told(
        summary="Prometheus text", tag="service", answer={"type": "string"}, media=(_TEXT,)
    ),
    ("get", "/answer/{message}/{peer}/{token}"): Told(
        summary="The page behind the link in a message",
        tag="people",
        answer={"type": "string"},
        media=(_HTML,),
    ),
    ("post", "/answer/{message}/{peer}/{token}"): Told(
        summary="Record a person's answer",
        tag="people",
        bodies={_JSON: {"type": "object", "additionalProperties": {"type": "string"}}},
        example={"answer": "yes"},
        answer={"type": "string"},
        media=(_HTML,),
    ),
    ("post", "/sessions"): Told(
        summary="Log a peer in by its password, or renew its token",
        tag="people",
        bodies={_JSON: _texts_body("peer", optional=("password", "token"))},
        example={"peer": "ana", "password": "..."},
        statuses=("201",),
    ),
    ("post", "/sessions/messages"): Told(
        summary="Take messages of a logged-in peer, or its AUTH REQUEST",
        tag="people",
        bodies={_JSON: _ANY},
        example={"type": "TASK", "subtype": "DONE", "sender": "peer:ana"},
        statuses=("202",),
    ),
    ("delete", "/sessions"): Told(
        summary="Log a peer out: Authorization: Session TOKEN", tag="people"
    ),
    ("post", "/peers/{peer}/password"): Told(
        summary="Set a peer's password and end its sessions",
        tag="people",
        bodies={_JSON: _texts_body("password")},
        example={"password": "..."},
    ),
    ("post", "/inputs/{name}"): Told(
        summary="Take messages of an input: JSON, CloudEvents or a form; answered when durable",
        tag="people",
        bodies={
            _JSON: {"anyOf": [_MESSAGE, {"type": "array", "items": _MESSAGE}]},
            EVENT_TYPE: reference(CloudEvent),
            _FORM: _FORM_FIELDS,
        },
        example={"type": "REPLY", "subtype": "TEXT", "sender": "peer:ana", "content": "yes"},
        statuses=("202",),
    ),
    ("get", "/inbox"): Told(
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
    ("get", "/messages"): Told(summary="Messages that were handled, by criteria", tag="messages"),
    ("put", "/messages/info/{kind}"): Told(
        summary="Tell what a type of message means",
        tag="messages",
        bodies={_JSON: {"type": "object"}},
        example=EXAMPLE_INFORMATION,
    ),
    ("put", "/messages/info/{kind}/{subtype}"): Told(
        summary="Tell what a type and subtype of message means",
        tag="messages",
        bodies={_JSON: {"type": "object"}},
        example=EXAMPLE_INFORMATION,
    ),
    ("put", "/context/{entity_type}/{entity_id}/{entity_scope}"): Told(
        summary="Say what is true of an entity for a while; answered when it is on disk",
        tag="context",
        bodies={_JSON: _NEW_VALUES},
        example={"values": {"open": True}, "valid": "30s"},
    ),
    ("post", "/routing"): Told(
        summary="Add a routing rule; answered when it is in force",
        tag="routing",
        bodies={_JSON: {"type": "object"}},
        example={"type": "TASK", "sender": "peer:ana", "to": ["collective:watchers"]},
    ),
    ("get", "/ledger"): Told(summary="Who was told what, and who answered", tag="people"),
    ("get", "/ledger/messages"): Told(summary="Messages and how they stand", tag="people"),
    ("get", "/ledger/messages/{message}"): Told(
        summary="One message: how far it got with each person, and what happened", tag="people"
    ),
    ("post", "/messages"): Told(
        summary="Send messages; answered when they are on disk",
        tag="people",
        bodies={_JSON: {"anyOf": [_OBJECT, {"type": "array", "items": _OBJECT}]}},
        example={
            "type": "NOTIFICATION",
            "subtype": "MESSAGE",
            "sender": "component:app",
            "receiver": "collective:guards",
            "content": "Please come to the gate",
            "wishes": {"least": 1, "answer_within": 600_000},
        },
    ),
    ("put", "/peers/{peer}"): Told(
        summary="Add a peer or replace its settings",
        tag="people",
        bodies={_JSON: _OBJECT},
        example={"addresses": ["inbox:"], "quiet": "22:00-07:00", "zone": "Europe/Vienna"},
    ),
    ("patch", "/peers/{peer}"): Told(
        summary="Change some settings of a peer; null takes one away",
        tag="people",
        bodies={_JSON: _OBJECT},
        example={"delivery": "preferred"},
    ),
    ("put", "/collectives/{collective}"): Told(
        summary="Add a collective or replace its settings and members",
        tag="people",
        bodies={_JSON: _OBJECT},
        example={"delivery": "at-least 2", "members": ["ana", "ben"]},
    ),
    ("post", "/collectives/{collective}/members"): Told(
        summary="Let peers join and leave a collective",
        tag="people",
        bodies={_JSON: _OBJECT},
        example={"join": ["ana"], "leave": []},
    ),
    ("get", "/explain/{event_id}"): Told(summary="The chain of causes of an event", tag="people"),
    ("get", "/explain/{event_id}/why"): Told(
        summary="The conditions behind a detection", tag="policies"
    ),
    ("get", "/policies/{policy}/why-not"): Told(
        summary="Why a policy did not fire around a time", tag="policies"
    ),
    ("get", "/"): Told(
        summary="The page of what happens", tag="page", answer={"type": "string"}, media=(_HTML,)
    ),
    ("get", "/static/{name}"): Told(
        summary="Style and script of the page",
        tag="page",
        answer={"type": "string"},
        media=("text/css; charset=utf-8", "text/javascript; charset=utf-8"),
    ),
    ("get", "/overview"): Told(summary="Figures for the page", tag="page"),
}


class OpenApiDocument(JsonRenderPlugin):
    """Gives out the completed document."""

    def __init__(self) -> None:
        super().__init__(path="/openapi.json")
        self._rendered: bytes | None = None

    def render(self, request: HttpRequest[Any, Any, Any], openapi_schema: Members) -> bytes:
        """The document, completed once."""
        if self._rendered is None:
            self._rendered = msgspec.json.encode(completed(openapi_schema))
        return self._rendered


class AsyncApiDocument(OpenAPIRenderPlugin):
    """Gives out the AsyncAPI document beside it."""

    def __init__(self, version: str, bridges: Sequence[Bridge]) -> None:
        super().__init__(path="/asyncapi.json", media_type=MediaType.JSON)
        self._rendered = msgspec.json.encode(asyncapi_document(version, bridges))

    def render(self, request: HttpRequest[Any, Any, Any], openapi_schema: Members) -> bytes:
        """The document; it depends on nothing the framework knows."""
        return self._rendered


def completed(schema: Members) -> Members:
    """The framework's document with bodies, answers, problems, examples, tags and security."""
    paths = {
        path: {method: _operation(method, path, told) for method, told in operations.items()}
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
                }
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


def _operation(method: str, path: str, known: Members) -> Members:
    told = DOORS.get((method, path)) or _by_docstring(path, known)
    content = {media: {"schema": told.answer} for media in told.media}
    answers: Members = {
        status: {"description": told.summary, **({"content": content} if status != "204" else {})}
        for status in _statuses(told, known)
    }
    for status in _REFUSALS:
        answers.setdefault(status, {"$ref": "#/components/responses/Problem"})
    if path == "/readyz":
        answers["503"] = {"description": "Not ready", "content": content}
    operation = {
        "operationId": known["operationId"],
        "summary": told.summary,
        "description": known.get("description", ""),
        "tags": [told.tag],
        "parameters": [_parameter(one) for one in (*known.get("parameters", ()), *told.parameters)],
        "responses": answers,
        "security": [] if path in _OPEN else [{}, {"bearer": []}],
    }
    return operation | _body(told)


def _statuses(told: Told, known: Members) -> tuple[str, ...]:
    own = tuple(status for status in known["responses"] if status.startswith("2"))
    return tuple(dict.fromkeys((*own, *told.statuses))) if told.statuses != ("200",) else own


def _body(told: Told) -> Members:
    if not told.bodies:
        return {}
    content: Members = {media: {"schema": schema} for media, schema in told.bodies.items()}
    if told.example is not None:
        next(iter(content.values()))["example"] = told.example
    return {"requestBody": {"required": True, "content": content}}


def _by_docstring(path: str, known: Members) -> Told:
    """A door that has no entry: its docstring's first sentence, JSON in and out."""
    sentence = " ".join(str(known.get("description") or known["summary"]).split()).split(". ")[0]
    return Told(summary=sentence.rstrip("."), tag=path.strip("/").split("/")[0] or "page")


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
