"""Every door of the node, as the OpenAPI document tells of it. [CH-12, UX-5]

A door that is not in this table is still told, see `document.py`.
"""

from __future__ import annotations

from rapport.channel.requests.leases import Answers, Settled
from rapport.channel.requests.request import Request
from rapport.mediation.interpretations.change_requests import ChangeRequest
from rapport.mediation.interpretations.change_state import ChangeResult
from rapport.mediation.interpretations.views import ChangeView, InterpretationOverview
from rapport.web.openapi.told import JSON, Members, Told
from rapport.web.publishing import BATCH_TYPE, EVENT_TYPE
from rapport.web.schemas import BatchShown, CloudEvent, Page, Published, reference

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
    JSON: reference(ChangeRequest),
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
    ("get", "/soap/channels/{name}"): Told(
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
    ("post", "/channels/{name}/events"): Told(
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
    ("post", "/channels/{name}/interceptors"): Told(
        summary="Add an interceptor for good; it works from the next event on",
        tag="channels",
        bodies={JSON: _OBJECT},
        example={"name": "no-tests", "kind": "drop", "settings": {"where": "type = 'test'"}},
    ),
    ("post", "/dead-letters/replay"): Told(
        summary="Send dead letters back to the readers that failed",
        tag="dead-letters",
        bodies={JSON: _OBJECT},
        example={"channel": "events", "republish": False},
    ),
    ("post", "/dead-letters/forget"): Told(
        summary="Strike dead letters off the list",
        tag="dead-letters",
        bodies={JSON: _OBJECT},
        example={"channel": "events"},
    ),
    ("post", "/quarantine/release"): Told(
        summary="Mediate what is held back by what is in force now",
        tag="quarantine",
        bodies={JSON: _OBJECT},
        example={"source": "readers", "dry_run": True},
    ),
    ("post", "/interpretations/again"): Told(
        summary="Mediate raw events of a source again; readings that differ are corrected",
        tag="interpretations",
        bodies={JSON: _OBJECT},
        example={"source": "readers", "dry_run": True},
    ),
    ("post", "/federation/channels/{name}/events"): Told(
        summary="Hand over another node's events; answered when they are on disk",
        tag="federation",
        bodies={JSON: _OBJECT},
        example={"node": "0123456789abcdef", "events": [EXAMPLE_EVENT]},
    ),
    ("post", "/pipeline/channels/{name}/events"): Told(
        summary="Take in what the pipeline found; answered when it is on disk",
        tag="pipeline",
        bodies={JSON: _BATCH_OF_EVENTS},
        example=[EXAMPLE_EVENT],
        answer=reference(Published),
    ),
    ("get", "/channels/{name}/events"): Told(
        summary="Read events after a position, waiting for a first one (long poll)",
        tag="channels",
        answer=reference(Page),
    ),
    ("post", "/channels/{name}/requests"): Told(
        summary="Request a batch of messages by query or by token",
        tag="channels",
        bodies={JSON: reference(Request)},
        example={"query": "type = 'badge.seen'", "max_messages": 10},
        answer=reference(BatchShown),
    ),
    ("post", "/channels/{name}/acks"): Told(
        summary="Ack deliveries of a leased take, give them back or renew leases; durable at once",
        tag="channels",
        bodies={JSON: reference(Answers)},
        example={"ack": ["17.3f2a9c01d4e5b6a7"], "nak": [], "delay_ms": 0, "error": ""},
        answer=reference(Settled),
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
        summary="Take readings of a source in its own format; answered when they are on disk",
        tag="sources",
        bodies={JSON: _ANY, **dict.fromkeys(_READINGS, _ANY)},
        parameters=_IDEMPOTENCY_KEY,
        example={"reader": "r1", "tag": "E200-01", "dx": 1.0, "dy": 2.0},
        answer=reference(Published),
    ),
    ("get", "/interpretations"): Told(
        summary="All interpretations with parents and versions, and those that are refused",
        tag="interpretations",
        answer=reference(InterpretationOverview),
    ),
    ("get", "/interpretations/{interpretation}"): Told(
        summary="One interpretation: by name, by NAME@VERSION, or NAME/transformers/TYPE as Python",
        tag="interpretations",
        media=(JSON, "text/x-python; charset=utf-8"),
    ),
    ("get", "/interpretations/changes"): Told(
        summary="The history of changes and what became of each",
        tag="interpretations",
        answer={"type": "array", "items": reference(ChangeView)},
    ),
    ("post", "/interpretations/changes"): Told(
        summary="Change interpretations, all or nothing; answered when it is in force",
        tag="interpretations",
        bodies=_CHANGE_BODIES,
        example={"changes": [{"type": "remove", "name": "us"}]},
        answer=reference(ChangeResult),
    ),
    ("post", "/interpretations/check"): Told(
        summary="Say what a change would do",
        tag="interpretations",
        bodies=_CHANGE_BODIES,
        example={"changes": [{"type": "remove", "name": "us"}]},
        answer=reference(ChangeResult),
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
    ("get", "/identity"): Told(summary="Which node of which site answers", tag="service"),
    ("get", "/readyz"): Told(
        summary="Whether the node takes events and its readers run, and what degrades it",
        tag="service",
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
        bodies={JSON: _texts_body("answer")},
        example={"answer": "yes"},
        answer={"type": "string"},
        media=(_HTML,),
    ),
    ("post", "/sessions"): Told(
        summary="Log a peer in by its password, or renew its token",
        tag="people",
        bodies={JSON: _texts_body("peer", optional=("password", "token"))},
        example={"peer": "ana", "password": "..."},
        statuses=("201",),
    ),
    ("post", "/sessions/messages"): Told(
        summary="Take messages of a logged-in peer, or its AUTH REQUEST",
        tag="people",
        bodies={JSON: _ANY},
        example={"type": "TASK", "subtype": "DONE", "sender": "peer:ana"},
        statuses=("202",),
    ),
    ("delete", "/sessions"): Told(
        summary="Log a peer out: Authorization: Session TOKEN", tag="people"
    ),
    ("post", "/peers/{peer}/password"): Told(
        summary="Set a peer's password and end its sessions",
        tag="people",
        bodies={JSON: _texts_body("password")},
        example={"password": "..."},
    ),
    ("post", "/inputs/{name}"): Told(
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
        bodies={JSON: {"type": "object"}},
        example=EXAMPLE_INFORMATION,
    ),
    ("put", "/messages/info/{kind}/{subtype}"): Told(
        summary="Tell what a type and subtype of message means",
        tag="messages",
        bodies={JSON: {"type": "object"}},
        example=EXAMPLE_INFORMATION,
    ),
    ("put", "/context/{entity_type}/{entity_id}/{entity_scope}"): Told(
        summary="Say what is true of an entity for a while; answered when it is on disk",
        tag="context",
        bodies={JSON: _NEW_VALUES},
        example={"values": {"open": True}, "valid": "30s"},
    ),
    ("post", "/routing"): Told(
        summary="Add a routing rule; answered when it is in force",
        tag="routing",
        bodies={JSON: {"type": "object"}},
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
    ("put", "/peers/{peer}"): Told(
        summary="Add a peer or replace its settings",
        tag="people",
        bodies={JSON: _OBJECT},
        example={"addresses": ["inbox:"], "quiet": "22:00-07:00", "zone": "Europe/Vienna"},
    ),
    ("patch", "/peers/{peer}"): Told(
        summary="Change some settings of a peer; null takes one away",
        tag="people",
        bodies={JSON: _OBJECT},
        example={"delivery": "preferred"},
    ),
    ("put", "/collectives/{collective}"): Told(
        summary="Add a collective or replace its settings and members",
        tag="people",
        bodies={JSON: _OBJECT},
        example={"delivery": "at-least 2", "members": ["ana", "ben"]},
    ),
    ("post", "/collectives/{collective}/members"): Told(
        summary="Let peers join and leave a collective",
        tag="people",
        bodies={JSON: _OBJECT},
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
