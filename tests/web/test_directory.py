"""The endpoints to the directory: people added and changed while the node runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_peers_are_added_changed_shown_and_removed(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            ask = api.call
            added = await ask("PUT", "/peers/zoe", {"addresses": ["inbox:"]})
            assert (added.status, added.json()["entry"]["origin"]) == (200, "store")
            quiet = await ask("PATCH", "/peers/zoe", {"quiet": "22:00-07:00"})
            assert [one["code"] for one in quiet.json()["warnings"]] == ["peer.quiet_without_zone"]
            shown = (await ask("GET", "/peers/zoe")).json()
            assert shown["settings"] == {"addresses": ["inbox:"], "quiet": "22:00-07:00"}
            names = [one["name"] for one in (await ask("GET", "/peers")).json()]
            assert names == sorted(names)
            assert {"ana", "ben", "zoe"} <= set(names)
            assert (await ask("DELETE", "/peers/zoe")).json() == {"removed": "zoe"}
            gone = await ask("GET", "/peers/zoe")
            assert (gone.status, gone.json()["title"]) == (404, "peer.unknown")

    asyncio.run(scenario())


def test_collectives_are_made_joined_left_and_removed(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            ask = api.call
            body = {"delivery": "at-least 2", "members": ["ana", "ben"]}
            assert (await ask("PUT", "/collectives/night", body)).status == 200
            moved = await ask("POST", "/collectives/night/members", {"join": ["lea"]})
            assert moved.json() == {"joined": 1, "left": 0}
            members = await ask("GET", "/collectives/night/members?after=ana&limit=1")
            assert members.json() == ["ben"]
            assert (await ask("GET", "/peers/lea")).json()["collectives"][-1] == "security-leads"
            left = await ask("POST", "/collectives/night/members", {"leave": ["lea", "nobody"]})
            assert left.json() == {"joined": 0, "left": 1}
            listed = (await ask("GET", "/collectives")).json()
            assert ("night", "store") in {(one["name"], one["origin"]) for one in listed}
            assert (await ask("DELETE", "/collectives/night")).status == 200
            assert (await ask("GET", "/collectives/night/members")).status == 404

    asyncio.run(scenario())


def test_wrong_settings_and_names_of_the_site_file_are_refused(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            ask = api.call
            wrong = await ask("PUT", "/peers/zoe", {"addresses": ["mial:x"], "colour": 1})
            assert wrong.status == 400
            assert {one["code"] for one in wrong.json()["problems"]} == {
                "adapter.unknown",
                "site.unknown_key",
            }
            own = await ask("PUT", "/peers/ana", {"addresses": ["inbox:"]})
            assert (own.status, own.json()["title"]) == (409, "people.in_site_file")
            assert "site.toml" in own.json()["detail"]
            assert (await ask("PUT", "/peers/zoe", b"no json")).status == 400
            assert (await ask("PUT", "/peers/zoe", [1])).status == 400
            nobody = await ask("POST", "/collectives/guards/members", {"join": ["anna"]})
            assert (nobody.status, nobody.json()["hint"]) == (404, "did you mean 'ana'?")
            assert (await ask("PUT", "/collectives/x", {"members": "ana"})).status == 400

    asyncio.run(scenario())


def test_who_may_not_change_the_node_changes_nobody(
    served_node: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "reader.token").write_text("reader-Zx8Cv7Bn6Mm5Lk4Jh3Gf2Ds1\n")
    (tmp_path / "none.token").write_text("none-Zx8Cv7Bn6Mm5Lk4Jh3Gf2Ds1aa\n")
    access = f"""
[access.reader]
token = "file:{tmp_path}/reader.token"
subscribe = ["log"]
[access.none]
token = "file:{tmp_path}/none.token"
subscribe = ["events"]
"""

    async def scenario() -> None:
        async with served_node(site_text=access) as api:
            reader = {"Authorization": "Bearer reader-Zx8Cv7Bn6Mm5Lk4Jh3Gf2Ds1"}
            none = {"Authorization": "Bearer none-Zx8Cv7Bn6Mm5Lk4Jh3Gf2Ds1aa"}
            body = {"addresses": ["inbox:"]}
            message = {"type": "T", "subtype": "S", "sender": "component:x", "receiver": "ana"}
            assert (await api.call("GET", "/peers", None, reader)).status == 200
            assert (await api.call("GET", "/peers", None, none)).status == 403
            assert (await api.call("PUT", "/peers/zoe", body, reader)).status == 403
            assert (await api.call("DELETE", "/peers/zoe", None, reader)).status == 403
            join = {"join": ["ana"]}
            moved = await api.call("POST", "/collectives/guards/members", join, reader)
            assert moved.status == 403
            assert (await api.call("POST", "/messages", message, reader)).status == 403
            assert (await api.call("GET", "/ledger/messages", None, none)).status == 403

    asyncio.run(scenario())
