"""Errors at the HTTP doors: one mapping from RapportError to status and problem details. [UX-5]"""

from __future__ import annotations

import math
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException

from rapport.core.errors import NotAuthenticated, RapportError, Unavailable
from rapport.kernel.telemetry import get_logger
from rapport.web.headers import SAFE_HEADERS

_log = get_logger(__name__)
PROBLEM_JSON = "application/problem+json"
_BEFORE_TOKENS = {"answer": 4, "inbox": 3}
"""Links of people: how many parts of the path stand before the token."""


def problem_response(
    _request: Request[Any, Any, Any] | None, error: RapportError
) -> Response[bytes]:
    """RFC 9457 problem details: code, message, hint and every single problem; Retry-After where it
    helps.
    """
    return _respond(problem_members(error), error.status, error_headers(error))


def error_headers(error: RapportError) -> dict[str, str]:
    """What HTTP wants said beside an error: when to come again, how to say who one is."""
    if isinstance(error, Unavailable):
        return {"Retry-After": str(math.ceil(error.retry_after_seconds))}
    if isinstance(error, NotAuthenticated):
        return {"WWW-Authenticate": "Bearer"}
    return {}


def problem_members(error: RapportError) -> dict[str, Any]:
    """The problem details as JSON members."""
    return {
        "type": f"urn:rapport:error:{error.code}",
        "title": error.code,
        "status": error.status,
        "detail": error.message,
        "hint": error.hint,
        "problems": [msgspec.to_builtins(problem) for problem in error.problems_found()],
    }


def http_error_response(_request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """The framework's own refusals (no such path, body too large, wrong parameter) in the same
    form.
    """
    code = {404: "http.not_found", 405: "http.method_not_allowed", 413: "input.too_large"}.get(
        error.status_code, "http.refused"
    )
    wrong = _wrong_values(error.extra)
    body = {
        "type": f"urn:rapport:error:{code}",
        "title": code,
        "status": error.status_code,
        "detail": "; ".join([str(error.detail), *wrong]),
        "hint": "GET /schema lists every door" if error.status_code == 404 else "",
        "problems": [],
    }
    return _respond(body, error.status_code, error.headers or {})


def _wrong_values(extra: Any) -> list[str]:
    """Which parameters of a request are wrong, and why, as the framework found it."""
    if not isinstance(extra, list):
        return []
    found = [each for each in extra if isinstance(each, dict)]
    return [f"{each.get('key', 'a value')}: {each.get('message', 'wrong')}" for each in found]


def unexpected_response(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """A fault of ours: logged with its trace, told without inner details."""
    _log.exception("request failed", path=shown_path(request.url.path), exc_info=error)
    return _respond(unexpected_members(), 500, {})


def shown_path(path: str) -> str:
    """A path as it may stand in a log: without what proves that somebody is a person.

    >>> shown_path("/answer/m1/ana/6c83"), shown_path("/inbox/ana/17.ab/socket")
    ('/answer/m1/ana/***', '/inbox/ana/***')
    """
    parts = path.split("/")
    kept = _BEFORE_TOKENS.get(parts[1] if len(parts) > 1 else "", len(parts))
    return "/".join([*parts[:kept], "***"]) if len(parts) > kept else path


def unexpected_members() -> dict[str, Any]:
    """Problem details of a fault of ours."""
    return {
        "type": "urn:rapport:error:rapport.error",
        "title": "rapport.error",
        "status": 500,
        "detail": "the node failed to answer this request; its log says why",
        "hint": "",
        "problems": [],
    }


def _respond(body: dict[str, Any], status: int, headers: dict[str, str]) -> Response[bytes]:
    return Response(
        msgspec.json.encode(body),
        status_code=status,
        media_type=PROBLEM_JSON,
        headers=SAFE_HEADERS | headers,
    )
