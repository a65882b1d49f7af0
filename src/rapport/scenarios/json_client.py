"""Posting JSON like a small device would: standard library, off the event loop."""

from __future__ import annotations

import asyncio
import urllib.request
from typing import Any

import msgspec

_TIMEOUT_SECONDS = 10


async def post_json(url: str, value: Any) -> Any:
    """Posts a value and returns the decoded answer; raises OSError like the library does."""
    return await asyncio.to_thread(_post, url, msgspec.json.encode(value))


def _post(url: str, body: bytes) -> Any:
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
        raw = answer.read()
    return msgspec.json.decode(raw) if answer.headers.get_content_subtype() == "json" else raw
