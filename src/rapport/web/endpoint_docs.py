"""Descriptions of handlers for the OpenAPI document. [CH-12, UX-5]

Handlers read their bodies themselves, so the framework cannot know them: a handler names the types
of its body and answer in `opt=documented(...)`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rapport.mediation.interpretations.change_requests import ChangeRequest
from rapport.web.request_limits import ANY_QUERY
from rapport.web.schemas import CloudEvent, reference
from rapport.web.security import OPEN

Members = dict[str, Any]
Bodies = dict[str, type[msgspec.Struct] | Members]
JSON = "application/json"
ANY_JSON: Members = {}

DOC = "doc"
"""Option of routes with the facts of the OpenAPI document that the signature does not show."""


class EndpointDoc(msgspec.Struct, frozen=True, kw_only=True):
    """Bodies, examples and answers of an endpoint; its summary is the first sentence of the
    handler's docstring.
    """

    bodies: Bodies = {}
    """Types or JSON Schemas of request bodies by media type."""
    example: Any = None
    """Of the first kind of body."""
    answer: type[msgspec.Struct] | Members = {}
    is_list: bool = False
    """The answer is a list of such values."""
    media: tuple[str, ...] = (JSON,)
    parameters: tuple[Members, ...] = ()
    statuses: tuple[str, ...] = ("200",)

    def structs(self) -> list[type[msgspec.Struct]]:
        """The types whose schemas the document needs."""
        return [one for one in (*self.bodies.values(), self.answer) if isinstance(one, type)]


_NO_BODIES: Bodies = {}


def documented(
    *,
    bodies: Bodies = _NO_BODIES,
    example: Any = None,
    answer: type[msgspec.Struct] | Members = ANY_JSON,
    is_list: bool = False,
    media: tuple[str, ...] = (JSON,),
    parameters: tuple[Members, ...] = (),
    statuses: tuple[str, ...] = ("200",),
    is_open: bool = False,
    any_query: bool = False,
) -> dict[str, Any]:
    """The options of a route with the facts of its `EndpointDoc`; `is_open` routes need no token,
    `any_query` ones take any query parameter.
    """
    endpoint = EndpointDoc(
        bodies=bodies,
        example=example,
        answer=answer,
        is_list=is_list,
        media=media,
        parameters=parameters,
        statuses=statuses,
    )
    return {DOC: endpoint, OPEN: is_open, ANY_QUERY: any_query}


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
CSV = "text/csv"
HTML = "text/html; charset=utf-8"
TEXT: Members = {"type": "string"}
PROMETHEUS_TEXT = "text/plain; version=1.0.0; charset=utf-8"
JSON_OBJECT: Members = {"type": "object"}
FORM = "application/x-www-form-urlencoded"
FORM_FIELDS: Members = {"type": "object", "additionalProperties": {"type": "string"}}
OPEN_PAGE = documented(answer=TEXT, media=(HTML,), is_open=True, any_query=True)
PAGE_OR_REDIRECT = documented(
    answer=TEXT, media=(HTML,), statuses=("200", "303"), is_open=True, any_query=True
)
FORM_TO_PAGE = documented(
    bodies={FORM: FORM_FIELDS},
    answer=TEXT,
    media=(HTML,),
    statuses=("200", "303"),
    is_open=True,
    any_query=True,
)
MESSAGE_SCHEMA: Members = {
    "type": "object",
    "required": ["type", "subtype", "sender"],
    "properties": {name: {"type": "string"} for name in ("type", "subtype", "sender", "content")},
}
EVENT_ARRAY: Members = {"type": "array", "items": reference(CloudEvent)}
CHANGE_BODIES: Bodies = {
    JSON: ChangeRequest,
    **{f"application/{kind}": TEXT for kind in ("toml", "yaml", "xml")},
}
READING_TYPES = ("application/xml", "application/msgpack", "text/csv", "text/plain")
"""Besides JSON; depends on the interpretation of the source."""
IDEMPOTENCY_KEY: tuple[Members, ...] = (
    {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "schema": {"type": "string", "maxLength": 256},
        "description": "names the request; repeated under the same key it is stored once",
    },
)
BINARY_HEADERS = tuple(
    {
        "name": f"ce-{name}",
        "in": "header",
        "required": False,
        "description": "CloudEvents binary mode: the attribute; the body is then the data alone.",
        "schema": {"type": "string"},
    }
    for name in ("id", "source", "type")
)
