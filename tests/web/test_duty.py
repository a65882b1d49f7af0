"""Rosters by HTTP: who is on duty when, and who may change it. [CN-9]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from secrets import token_urlsafe
from typing import Any

import pytest

pytestmark = pytest.mark.slow

SHIFTS = [
    {"person": "ana", "hours": "08:00-20:00"},
    {"person": "lea", "hours": "20:00-08:00"},
    {"person": "ana", "instead_of": "lea", "dates": "2026-12-24..2026-12-24"},
]
WATCH = {"members": ["ana", "lea"], "zone": "Europe/Vienna", "roster": SHIFTS}


def test_a_roster_is_put_with_its_group_and_shown_for_a_span(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            made = await api.call("PUT", "/collectives/watch", WATCH)
            assert (made.status, made.json()["warnings"]) == (200, [])
            assert made.json()["entry"]["settings"]["roster"] == SHIFTS
            span = "from=2026-12-24T12:00:00Z&to=2026-12-26T00:00:00Z"
            duty = (await api.call("GET", f"/collectives/watch/duty?{span}")).json()
            assert (duty["zone"], duty["on_duty"]) == ("Europe/Vienna", ["ana"])
            assert [one["people"] for one in duty["spans"]] == [["ana"], ["lea"]]
            now = (await api.call("GET", "/collectives/watch/duty")).json()
            assert now["on_duty"] in (["ana"], ["lea"])
            assert now["spans"][0]["end"] == now["next_change"]
            assert now["spans"][-1]["end"] - now["spans"][0]["start"] == 14 * 86_400_000

    asyncio.run(scenario())


def test_wrong_rosters_and_spans_are_refused_with_a_reason(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            none = await api.call("GET", "/collectives/guards/duty")
            assert (none.status, none.json()["title"]) == (404, "collective.no_roster")
            assert (await api.call("GET", "/collectives/nobody/duty")).status == 404
            stranger = {**WATCH, "members": ["ana"]}
            refused = await api.call("PUT", "/collectives/watch", stranger)
            assert refused.status == 400
            assert b"collective.not_a_member" in refused.body
            await api.call("PUT", "/collectives/watch", WATCH)
            for span in (
                "from=2026-12-24&to=2026-12-23",
                "from=2026-01-01&to=2030-01-01",
                "from=9999-01-01",
            ):
                bad = await api.call("GET", f"/collectives/watch/duty?{span}")
                assert bad.status == 400, bad.body

    asyncio.run(scenario())


ROLES = """
[access.vera]
role = "viewer"
token = "env:VERA_TOKEN"
[access.edda]
role = "editor"
token = "env:EDDA_TOKEN"
"""


def test_a_viewer_reads_the_roster_and_only_an_editor_changes_it(
    served_node: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = {name: token_urlsafe(32) for name in ("vera", "edda")}
    for name, token in tokens.items():
        monkeypatch.setenv(f"{name.upper()}_TOKEN", token)

    async def scenario() -> None:
        async with served_node(site_text=ROLES) as api:

            async def call(who: str, method: str, path: str, body: Any = None) -> int:
                bearer = {"Authorization": f"Bearer {tokens[who]}"}
                return int((await api.call(method, path, body, bearer)).status)

            assert await call("vera", "PUT", "/collectives/watch", WATCH) == 403
            assert await call("edda", "PUT", "/collectives/watch", WATCH) == 200
            assert await call("vera", "GET", "/collectives/watch/duty") == 200

    asyncio.run(scenario())
