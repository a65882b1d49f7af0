from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from rapport.core.event import Event
from rapport.mediation.formats.base import Document
from rapport.mediation.formats.catalogue import get_format
from rapport.mediation.rejections import RejectedValue

NOW_MS = 1_772_442_000_000
MakeEvent = Callable[..., Event]
Read = Callable[..., list[Document]]
Refusal = Callable[..., RejectedValue]


def make_event(data: Any, *, topic: str = "", subject: str = "") -> Event:
    """JSON values stand as they are, text and octets as doors keep them."""
    headers = {"mqtttopic": topic} if topic else {}
    if isinstance(data, bytes):
        headers |= {"datacontenttype": "application/octet-stream", "dataencoding": "base64"}
        data = base64.b64encode(data).decode()
    elif isinstance(data, str):
        headers |= {"datacontenttype": "text/plain"}
    raw = json.dumps(data).encode()
    return Event("s", "e1", "s.raw", subject, NOW_MS, raw, headers)


@pytest.fixture
def event() -> MakeEvent:
    return make_event


@pytest.fixture
def read() -> Read:
    """Documents of data in a format: `read("csv", data, delimiter=";")`."""

    def read_data(name: str, data: Any, **options: Any) -> list[Document]:
        return get_format(name, options).read(make_event(data), {})

    return read_data


@pytest.fixture
def refusal() -> Refusal:
    """Why a format refuses data."""

    def refusal_of(name: str, data: Any, **options: Any) -> RejectedValue:
        with pytest.raises(RejectedValue) as caught:
            get_format(name, options).read(make_event(data), {})
        return caught.value

    return refusal_of
