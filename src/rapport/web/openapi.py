"""The OpenAPI document: the framework's knowledge of the routes, completed by `endpoint_docs`.
[CH-12, UX-5]

Served at `/schema/openapi.json`; the AsyncAPI document at `/schema/asyncapi.json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from litestar import Litestar, MediaType
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin
from litestar.routes import HTTPRoute

from rapport.channel.mqtt.bridge import Bridge
from rapport.web.asyncapi import asyncapi_document
from rapport.web.endpoint import HttpRequest
from rapport.web.endpoint_docs import DOC, EndpointDoc, Members
from rapport.web.problems import PROBLEM_JSON, is_link
from rapport.web.schemas import CHANNEL_PATTERN, ProblemDetails, reference, schema_components
from rapport.web.security import OPEN

_REFUSALS = ("400", "401", "403", "404", "409", "413", "422", "429", "503")


class OpenApiDocument(JsonRenderPlugin):
    """Gives out the completed document."""

    def __init__(self) -> None:
        super().__init__(path="/openapi.json")
        self._rendered: bytes | None = None

    def render(self, request: HttpRequest, openapi_schema: Members) -> bytes:
        """The document, completed once."""
        if self._rendered is None:
            routes = documented_routes(request.app)
            self._rendered = msgspec.json.encode(completed(openapi_schema, routes))
        return self._rendered


class AsyncApiDocument(OpenAPIRenderPlugin):
    """Gives out the AsyncAPI document beside it."""

    def __init__(self, version: str, bridges: Sequence[Bridge]) -> None:
        super().__init__(path="/asyncapi.json", media_type=MediaType.JSON)
        self._rendered = msgspec.json.encode(asyncapi_document(version, bridges))

    def render(self, request: HttpRequest, openapi_schema: Members) -> bytes:
        """The document; it depends on nothing the framework knows."""
        return self._rendered


Operation = tuple[str, str]
"""Method in lower case, and path."""


def documented_routes(app: Litestar) -> dict[Operation, tuple[EndpointDoc, bool]]:
    """The EndpointDoc of each route, and whether it needs no bearer token."""
    return {
        (method.lower(), route.path_format): (
            handler.opt.get(DOC, EndpointDoc()),
            bool(handler.opt.get(OPEN)),
        )
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for method, (handler, _arguments) in route.route_handler_map.items()
    }


def completed(schema: Members, routes: Mapping[Operation, tuple[EndpointDoc, bool]]) -> Members:
    """The framework's document with bodies, answers, problems, examples, tags and security."""
    paths = {
        path: {
            method: _operation(path, known, *routes[method, path])
            for method, known in operations.items()
        }
        for path, operations in schema["paths"].items()
    }
    return schema | {
        "paths": paths,
        "tags": [{"name": name} for name in _tags(paths)],
        "components": {
            "schemas": schema_components(
                one for endpoint, _is_open in routes.values() for one in endpoint.structs()
            ),
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


def _operation(path: str, known: Members, endpoint: EndpointDoc, is_open: bool) -> Members:
    summary = _summary(known)
    answer = _schema(endpoint.answer)
    shown = {"type": "array", "items": answer} if endpoint.is_list else answer
    content = {media: {"schema": shown} for media in endpoint.media}
    answers: Members = {
        status: {"description": summary, **({"content": content} if status != "204" else {})}
        for status in _statuses(endpoint, known)
    }
    for status in _REFUSALS:
        problem = "ProblemAtLink" if is_link(path) else "Problem"
        answers.setdefault(status, {"$ref": f"#/components/responses/{problem}"})
    if path == "/readyz":
        answers["503"] = {"description": "Not ready", "content": content}
    parameters = (*known.get("parameters", ()), *endpoint.parameters)
    operation = {
        "operationId": known["operationId"],
        "summary": summary,
        "description": known.get("description", ""),
        "tags": [_tag(path)],
        "parameters": [_parameter(one) for one in parameters],
        "responses": answers,
        "security": [] if is_open else [{}, {"bearer": []}],
    }
    return operation | _body(endpoint)


def _statuses(endpoint: EndpointDoc, known: Members) -> tuple[str, ...]:
    own = tuple(status for status in known["responses"] if status.startswith("2"))
    return (
        tuple(dict.fromkeys((*own, *endpoint.statuses))) if endpoint.statuses != ("200",) else own
    )


def _body(endpoint: EndpointDoc) -> Members:
    if not endpoint.bodies:
        return {}
    content: Members = {media: {"schema": _schema(body)} for media, body in endpoint.bodies.items()}
    if endpoint.example is not None:
        next(iter(content.values()))["example"] = endpoint.example
    return {"requestBody": {"required": True, "content": content}}


def _schema(kind: type[msgspec.Struct] | Members) -> Members:
    return reference(kind) if isinstance(kind, type) else kind


def _summary(known: Members) -> str:
    """The first sentence of the handler's docstring."""
    sentence = " ".join(str(known.get("description") or known["summary"]).split()).split(". ")[0]
    return sentence.rstrip(".")


_TAGS = {
    "soap": "channels",
    "ledger": "people",
    "answer": "people",
    "sessions": "people",
    "inbox": "people",
    "inputs": "people",
    "peers": "people",
    "collectives": "people",
    "explain": "people",
    "healthz": "service",
    "identity": "service",
    "readyz": "service",
    "metrics": "service",
    "reload": "service",
    "static": "page",
    "overview": "console",
    "console": "page",
    "console-files": "page",
    "login": "page",
    "session": "console",
    "things": "console",
    "plan": "console",
    "detections": "console",
    "rates": "console",
    "live": "console",
    "network": "console",
    "": "page",
}
"""Tags by the first part of a path; others are that part itself."""


def _tag(path: str) -> str:
    first = path.strip("/").split("/")[0]
    return _TAGS.get(first, first)


def _parameter(known: Members) -> Members:
    """Names of channels get their pattern."""
    shown = {name: known[name] for name in known if name not in ("deprecated", "allowReserved")}
    if known["in"] == "path" and known["name"] in ("name", "source"):
        shown["schema"] = {"type": "string", "pattern": CHANNEL_PATTERN}
        shown["example"] = "raw.readers" if known["name"] == "name" else "readers"
    return shown


def _tags(paths: Members) -> list[str]:
    found = (operation["tags"][0] for methods in paths.values() for operation in methods.values())
    return list(dict.fromkeys(found))
