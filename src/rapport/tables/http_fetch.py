"""Fetching a document by HTTP: bounded in time and size, asked for again only if it changed. [PO-2]

Redirects are not followed: the site named this address, not another. Blocking: background work
calls it in a thread.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

import msgspec

from rapport.core.errors import SourceUnavailable

MOST_BYTES = 256 * 1024 * 1024
_CHUNK = 1 << 16


class Fetched(msgspec.Struct, frozen=True):
    """A body with the tag by which to ask whether it changed; no body: it did not."""

    body: bytes | None
    tag: str = ""


def fetch(
    url: str,
    headers: Mapping[str, str],
    *,
    timeout_ms: int,
    tag: str = "",
    most_bytes: int = MOST_BYTES,
) -> Fetched:
    """Asks once; raises SourceUnavailable when there is no usable answer within the time, however
    slowly its bytes come.
    """
    try:
        connection, parts = _connection(url, timeout_ms)
    except ValueError:
        raise _failed("the address cannot be used", "source.bad_address") from None
    too_late = threading.Event()
    hurry = threading.Timer(timeout_ms / 1_000, _hang_up, (connection, too_late))
    hurry.daemon = True
    hurry.start()
    failed: SourceUnavailable | None = None
    try:
        fetched = _ask(connection, parts, headers, tag, most_bytes)
    except SourceUnavailable as error:
        failed = error
    except http.client.InvalidURL:
        failed = _unsendable()
    except (OSError, http.client.HTTPException) as error:
        failed = _failed(str(error)[:200] or type(error).__name__, "source.unreachable")
        if isinstance(error, TimeoutError):
            failed = _failed(f"no answer within {timeout_ms} ms", "source.timeout")
    except ValueError:
        failed = _unsendable()
    finally:
        hurry.cancel()
        connection.close()
    if too_late.is_set():  # whatever came of it: once hung up, the answer is not whole
        raise _failed(f"no answer within {timeout_ms} ms", "source.timeout")
    if failed is not None:
        raise failed
    return fetched


def _connection(url: str, timeout_ms: int) -> tuple[http.client.HTTPConnection, SplitResult]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname, parts.port, timeout=timeout_ms / 1_000), parts


def _ask(
    connection: http.client.HTTPConnection,
    parts: SplitResult,
    headers: Mapping[str, str],
    tag: str,
    most_bytes: int,
) -> Fetched:
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    asked = {"Accept": "application/json", **headers}
    if tag:
        asked["If-None-Match"] = tag
    connection.request("GET", path, headers=asked)
    with connection.getresponse() as response:
        if response.status == http.client.NOT_MODIFIED and tag:
            return Fetched(None, tag)
        if response.status != http.client.OK:
            raise _wrong_status(response)
        return Fetched(_body(response, most_bytes), response.headers.get("ETag", ""))


def _body(response: http.client.HTTPResponse, most_bytes: int) -> bytes:
    body = bytearray()
    while chunk := response.read(_CHUNK):
        body += chunk
        if len(body) > most_bytes:
            message = f"the answer is larger than {most_bytes} bytes"
            raise _failed(message, "source.too_large", "let it give fewer rows")
    if response.length:  # the connection ended early
        raise _failed(f"{response.length} bytes are missing", "source.unreachable")
    return bytes(body)


def _wrong_status(response: http.client.HTTPResponse) -> SourceUnavailable:
    message = f"it answered {response.status} {response.reason}"[:200]
    hint = "look at the address and the headers"
    if 300 <= response.status < 400:
        # Without what is asked there: a token may stand in it, which a server sends along.
        there = response.headers.get("Location", "").partition("?")[0][:200]
        hint = f"redirects are not followed; name the address itself: {there}"
    return _failed(message, "source.bad_status", hint)


def _hang_up(connection: http.client.HTTPConnection, too_late: threading.Event) -> None:
    """Wakes whoever waits for bytes."""
    too_late.set()
    sock = connection.sock
    if sock is None:
        return
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it was closed already, which is what we want


def _unsendable() -> SourceUnavailable:
    """Without the driver's words: they show the address or the header, which may be a secret."""
    return _failed("the address or a header cannot be sent", "source.bad_address")


def _failed(message: str, code: str, hint: str = "") -> SourceUnavailable:
    return SourceUnavailable(message, code=code, hint=hint or "it is asked again later")
