"""The endpoints of tables: how fresh they are, and asking a source now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


def test_the_status_of_tables_is_shown_and_a_source_is_asked_at_once(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            site = api.node.site.directory
            shown = (await api.call("GET", "/tables")).json()
            names = [one["table"] for one in shown]
            assert names == ["badges", "doors", "persons", "rooms", "sensors"]
            assert all(one["failures"] == 0 and one["error"] is None for one in shown)
            same = await api.call("POST", "/tables/badges/refresh")
            assert same.json() == {"changed": False}
            with (site / "badges.csv").open("a") as file:
                file.write("NEW-1,p01\n")
            assert (await api.call("POST", "/tables/badges/refresh")).json() == {"changed": True}
            assert api.node.site.tables.lookup("badges", "NEW-1", "person") == "p01"
            (site / "badges.csv").write_text("tag\nE1\n")
            refused = await api.call("POST", "/tables/badges/refresh")
            assert (refused.status, refused.json()["title"]) == (400, "tables.schema_changed")
            (badges,) = [
                one for one in (await api.call("GET", "/tables")).json() if one["failures"]
            ]
            assert badges["error"]["code"] == "tables.schema_changed"
            assert (await api.call("POST", "/tables/none/refresh")).status == 404
            told = (await api.call("GET", "/metrics")).body
            assert b'rapport_table_failures{table="badges"} 1.0' in told

    asyncio.run(scenario())


def test_tables_are_shown_to_who_may_change_the_node(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node(token="t" * 40) as api:
            for method, path in (("GET", "/tables"), ("POST", "/tables/badges/refresh")):
                assert (await api.call(method, path)).status in (401, 403)

    asyncio.run(scenario())
