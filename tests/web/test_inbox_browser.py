"""The inbox in a real browser: its script shows what is delivered, and says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rapport.communication.adapters.base import Confirmed
from rapport.communication.adapters.inbox import PageAdapter, PageSettings
from rapport.communication.links import inbox_token
from rapport.testing.suites.adapter import make_delivery
from support.browser import browser_program, browsing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser_program() is None, reason="there is no Chromium on this machine"),
]


def test_a_browser_shows_a_delivery_and_confirms_it(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            node = api.node
            secret = node._parts.communication.secret
            token = inbox_token(secret, "ana", node.clock.now_ms() + 600_000)
            adapter = PageAdapter(node.pages, PageSettings(wait_ms=20_000), node.clock)
            async with browsing(f"{api.url}/inbox/ana/{token}"):
                for _ in range(600):
                    if node.pages.is_open("ana"):
                        break
                    await asyncio.sleep(0.05)
                delivery = make_delivery("ws:", text="<script>alert(1)</script>")
                assert await adapter.send(delivery) == Confirmed(delivery.key)

    asyncio.run(scenario())
