"""Errors at the SOAP door: a fault in the caller's version of SOAP. [CH-12]

The HTTP status is the error's own (400, 403, 409, ...), in SOAP 1.1 as well: its rule of 500 for
every fault would call a caller's mistake a failure of the node, in every proxy and every alarm.
"""

from __future__ import annotations

from typing import Any

from litestar import Request, Response
from litestar.exceptions import HTTPException

from rapport.channel.xmessages.envelope import MEDIA_TYPES, SOAP_11, SOAP_12, SoapError, write_fault
from rapport.core.errors import InvalidInput, RapportError, TooLarge
from rapport.kernel.telemetry import get_logger
from rapport.web.headers import SAFE_HEADERS, text_type
from rapport.web.problems import error_headers

_log = get_logger(__name__)


def fault_response(request: Request[Any, Any, Any], error: RapportError) -> Response[bytes]:
    """The fault of one of our errors; Retry-After where it helps."""
    version = error.version if isinstance(error, SoapError) else _version(request)
    return _respond(version, error, error.status, error_headers(error))


def http_fault_response(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """The framework's own refusals."""
    if error.status_code == 413:
        told: RapportError = TooLarge("the envelope is too large", hint="send smaller batches")
    else:
        told = InvalidInput(str(error.detail), code="http.refused")
    return _respond(_version(request), told, error.status_code, {})


def unexpected_fault_response(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """A fault of ours: logged with its trace, told without inner details."""
    _log.exception("SOAP request failed", path=request.url.path, exc_info=error)
    told = RapportError("the node failed to answer this request; its log says why")
    return _respond(_version(request), told, 500, {})


FAULTS: dict[int | type[Exception], Any] = {
    RapportError: fault_response,
    HTTPException: http_fault_response,
    Exception: unexpected_fault_response,
}


def _version(request: Request[Any, Any, Any]) -> str:
    """What the caller speaks by its media type; its envelope may be what is wrong."""
    media_type = request.headers.get("content-type", "")
    return SOAP_12 if media_type.startswith("application/soap+xml") else SOAP_11


def _respond(
    version: str, error: RapportError, status: int, headers: dict[str, str]
) -> Response[bytes]:
    return Response(
        write_fault(version, error),
        status_code=status,
        media_type=text_type(MEDIA_TYPES[version]),
        headers=SAFE_HEADERS | headers,
    )
