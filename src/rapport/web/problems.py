"""HTTP error responses: one mapping from RapportError to status and problem details. [UX-5]"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from litestar import Response
from litestar.exceptions import HTTPException

from rapport.communication.texts import TextReader
from rapport.core.errors import NotAuthenticated, RapportError, Unavailable
from rapport.kernel.telemetry import get_logger
from rapport.web.endpoint import HttpRequest, Reply
from rapport.web.page_texts import browser_language, translated
from rapport.web.pages import render
from rapport.web.security import SAFE_HEADERS

_log = get_logger(__name__)
PROBLEM_JSON = "application/problem+json"
_BEFORE_TOKENS = {"answer": 4, "inbox": 3}
"""Links of people: how many parts of the path stand before the token."""


def problem_response(request: HttpRequest | None, error: RapportError) -> Reply:
    """RFC 9457 problem details: code, message, hint and every single problem; Retry-After where it
    helps. At the links of people a page.
    """
    return _respond(request, problem_members(error), error.status, error_headers(error))


def error_headers(error: RapportError) -> dict[str, str]:
    """HTTP headers of an error: Retry-After, WWW-Authenticate."""
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


def http_error_response(request: HttpRequest, error: HTTPException) -> Reply:
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
        "hint": "GET /schema/openapi.json lists every endpoint" if error.status_code == 404 else "",
        "problems": [],
    }
    return _respond(request, body, error.status_code, error.headers or {})


_AT_LINKS = ("/answer", "/inbox")
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


def is_link(path: str) -> bool:
    """Whether people open this path by a link."""
    return any(path == link or path.startswith(f"{link}/") for link in _AT_LINKS)


def wants_page(path: str, method: str, headers: Mapping[str, str]) -> bool:
    """Whether a person asks: at a link of a message or of an inbox, unless the request says that
    it is a program's.
    """
    if not is_link(path):
        return False
    accepted = headers.get("accept", "")
    if "text/html" in accepted or "json" in accepted:
        return "text/html" in accepted
    return method == "GET" or headers.get("content-type", "").lower().startswith(_FORMS)


_FAULTS = {
    "answer.link_over": (
        "This link is too old",
        "The message it belongs to was closed some time ago, so it takes no answers any more.",
        "If it still matters, please contact whoever sent you the message.",
    ),
    "answer.bad": (
        "Your answer did not arrive",
        "Nothing was recorded, because the answer was empty or could not be read.",
        "Please go back and press one of the buttons.",
    ),
    "answer.too_long": (
        "Your answer is too long",
        "Nothing was recorded.",
        "Please go back and say it in fewer words.",
    ),
    "inbox.bad_form": (
        "This page was open for too long",
        "Nothing was recorded.",
        "Please open your inbox again.",
    ),
}
_BAD_LINK = (
    "This link does not work",
    "Perhaps it was cut off or changed on the way. Nothing was recorded.",
    "Please open the link in the message again: it has to be complete, to its last character.",
)
_TOO_FAST = (
    "Please wait a moment",
    "There were too many attempts in a short time. Nothing was recorded.",
    "Try again in a minute.",
)
_OUR_FAULT = (
    "Something went wrong here",
    "It is not your fault, and we do not know whether your answer was recorded.",
    "Please try again in a minute.",
)


def fault_page(code: str, status: int, language: str = "en") -> str:
    """What went wrong at a link, in people's words and without any part of the link."""
    fault = _FAULTS.get(code)
    if fault is None:
        fault = _TOO_FAST if status == 429 else _OUR_FAULT if status >= 500 else _BAD_LINK
    heading, text, advice = (translated(language, part) for part in fault)
    reader = TextReader(language=language)
    return render("fault.html", reader, title=heading, heading=heading, said=text, advice=advice)


def _wrong_values(extra: Any) -> list[str]:
    """Which parameters of a request are wrong, and why, as the framework found it."""
    if not isinstance(extra, list):
        return []
    found = [each for each in extra if isinstance(each, dict)]
    return [f"{each.get('key', 'a value')}: {each.get('message', 'wrong')}" for each in found]


def unexpected_response(request: HttpRequest, error: Exception) -> Reply:
    """An internal error: logged with its trace, reported without inner details."""
    _log.exception("request failed", path=shown_path(request.url.path), exc_info=error)
    return _respond(request, unexpected_members(), 500, {})


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


def _respond(
    request: HttpRequest | None, body: dict[str, Any], status: int, headers: dict[str, str]
) -> Reply:
    if request is not None and wants_page(request.url.path, request.method, request.headers):
        language = browser_language(request.headers.get("accept-language", ""))
        page = fault_page(str(body["title"]), status, language).encode()
        own = SAFE_HEADERS | headers
        return Response(page, status_code=status, media_type="text/html", headers=own)
    return Response(
        msgspec.json.encode(body),
        status_code=status,
        media_type=PROBLEM_JSON,
        headers=SAFE_HEADERS | headers,
    )
