"""A misspelt query parameter is refused at every endpoint, with the nearest known one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

ANY_QUERY = re.compile(r"/(answer|inbox|static|soap|inputs|console|login)\b|/sources/|/\Z")
"""Readings, webhooks, SOAP and links of people may have further parameters."""


def test_a_misspelt_parameter_is_refused_with_the_nearest_one(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            for path, nearest in (
                ("/channels/events/events?limt=5", "'limit'"),
                ("/messages?typ=TASK", "'type'"),
                ("/ledger?persn=ana", "'person'"),
                ("/load?limit=5", "leave it out"),
            ):
                answer = await api.call("GET", path)
                assert answer.status == 400, (path, answer.body)
                assert answer.json()["title"] == "http.unknown_parameter"
                assert nearest in answer.json()["hint"]

    asyncio.run(scenario())


def test_every_endpoint_refuses_unknown_parameters_or_passes_them_through(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            document = (await api.call("GET", "/schema/openapi.json")).json()
            for path, operations in document["paths"].items():
                filled = re.sub(r"{\w+}", "x", path)
                for method in operations:
                    answer = await api.call(method.upper(), f"{filled}?no-such=1")
                    is_refused = b"http.unknown_parameter" in answer.body
                    assert is_refused != bool(ANY_QUERY.match(path)), (method, path, answer.body)

    asyncio.run(scenario())
