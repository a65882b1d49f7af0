"""The OpenAPI document: what the framework knows of the routes, completed with what it cannot know.
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

from rapport.channel.mqtt.bridge import Bridge
from rapport.web.guard import OPEN
from rapport.web.openapi.asyncapi import asyncapi_document
from rapport.web.openapi.doors import DOORS
from rapport.web.openapi.told import Members, Told
from rapport.web.problems import PROBLEM_JSON, is_link
from rapport.web.schemas import CHANNEL_PATTERN, ProblemDetails, reference, schema_components

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
    told = DOORS.get((method, path)) or _by_docstring(path, known)
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
