"""People and sending as the console needs them: search, import, choices, close, roles."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from secrets import token_urlsafe
from typing import Any

import pytest

pytestmark = pytest.mark.slow

TABLE = b"""name;mail;groups;language;quiet
ida;ida@example.org;night|leads;de;22:00-07:00
ana;ana@example.org;;;
jon;jon@example.org;;xx;
ida;other@example.org;;;
"""
CSV = {"Content-Type": "text/csv"}


def request(to: str, **wishes: Any) -> dict[str, Any]:
    return {
        "type": "DRILL",
        "subtype": "REQUEST",
        "sender": "component:test",
        "receiver": to,
        "content": "Who can come?",
        "wishes": wishes,
    }


async def until(api: Any, name: str, state: str) -> Any:
    for _ in range(300):
        shown = await api.call("GET", f"/ledger/messages/{name}")
        if shown.status == 200 and shown.json()["message"]["state"] == state:
            return shown.json()
        await asyncio.sleep(0.02)
    raise AssertionError(f"{name} did not become {state}: {shown.body!r}")


def test_people_are_found_by_name_address_and_group(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await api.call("PUT", "/peers/zoe", {"addresses": ["inbox:", "mail:z@example.org"]})
            await api.call("PUT", "/collectives/night", {"members": ["zoe", "ana"]})

            async def names(search: str) -> list[str]:
                found = await api.call("GET", f"/peers?search={search}")
                return [one["name"] for one in found.json()]

            assert await names("ZOE") == ["zoe"]
            assert await names("z%40example") == ["zoe"]
            assert await names("night") == ["ana", "zoe"]
            assert await names("night+zo") == ["zoe"]
            assert await names("nobody") == []
            limited = (await api.call("GET", "/peers?search=night&limit=1&after=ana")).json()
            assert [(one["name"], one["collectives"]) for one in limited] == [("zoe", ["night"])]

    asyncio.run(scenario())


def test_a_table_of_people_is_previewed_row_by_row_and_imported(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            preview = (await api.call("POST", "/peers/import", TABLE, CSV)).json()
            outcomes = [(one["line"], one["name"], one["outcome"]) for one in preview["people"]]
            assert outcomes == [
                (2, "ida", "added"),
                (3, "ana", "refused"),
                (4, "jon", "refused"),
                (5, "ida", "refused"),
            ]
            assert (preview["new_groups"], preview["applied"]) == (["night", "leads"], False)
            codes = [[problem["code"] for problem in one["problems"]] for one in preview["people"]]
            assert codes[1:] == [["people.in_site_file"], codes[2], ["people.bad_table"]]
            assert (await api.call("GET", "/peers/ida")).status == 404
            done = (await api.call("POST", "/peers/import?apply=true", TABLE, CSV)).json()
            assert done["applied"]
            shown = (await api.call("GET", "/peers/ida")).json()
            assert shown["settings"]["addresses"] == ["mail:ida@example.org"]
            assert shown["collectives"] == ["leads", "night"]
            assert (await api.call("GET", "/peers/jon")).status == 404
            again = (await api.call("POST", "/peers/import", TABLE, CSV)).json()
            assert again["people"][0]["outcome"] == "unchanged"
            assert again["new_groups"] == []

    asyncio.run(scenario())


@pytest.mark.parametrize("table", [b"mail\nx\n", b"name,colour\nx,red\n", b"", b"name\n\xff\n"])
def test_a_table_that_is_none_is_refused_with_a_hint(
    served_node: Callable[..., Any], table: bytes
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            wrong = await api.call("POST", "/peers/import", table, CSV)
            assert (wrong.status, wrong.json()["title"]) == (400, "people.bad_table")
            assert wrong.json()["hint"]

    asyncio.run(scenario())


def test_a_message_with_choices_is_answered_and_then_closed(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            for name in ("zoe", "yan"):
                await api.call("PUT", f"/peers/{name}", {"addresses": ["inbox:"]})
            await api.call("PUT", "/collectives/night", {"members": ["zoe", "yan"]})
            wanted = request(
                "collective:night", least=2, answer_within=600_000, choices=["Now", "<b>Later</b>"]
            )
            sent = await api.call("POST", "/messages", wanted)
            (name,) = sent.json()["ids"]
            shown = await until(api, name, "open")
            assert shown["message"]["choices"] == "Now\n<b>Later</b>"
            made = await api.call("POST", "/peers/zoe/inbox-link")
            inbox = made.json()["link"].split("/", 3)[3]
            for _ in range(100):
                page = await api.call("GET", f"/{inbox}")
                if b"Who can come?" in page.body:
                    break
                await asyncio.sleep(0.02)
            assert b">&lt;b&gt;Later&lt;/b&gt;</button>" in page.body
            assert b"Drill: request" in page.body
            closed = await api.call("POST", f"/messages/{name}/close")
            assert (closed.status, closed.json()) == (202, {"closed": name})
            over = await until(api, name, "closed")
            assert over["message"]["reason"] == "closed by local"
            assert (await api.call("POST", f"/messages/{name}/close")).status == 202
            assert (await api.call("POST", "/messages/none/close")).status == 404

    asyncio.run(scenario())


@pytest.mark.parametrize("choices", [["a", "a"], [""], ["x" * 61], [str(n) for n in range(11)]])
def test_choices_are_few_short_and_different(
    served_node: Callable[..., Any], choices: list[str]
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            wrong = await api.call("POST", "/messages", request("peer:ana", choices=choices))
            assert (wrong.status, wrong.json()["title"]) == (400, "message.bad_wishes")

    asyncio.run(scenario())


ROLES = """
[access.vera]
role = "viewer"
[access.otto]
role = "operator"
token = "env:OTTO_TOKEN"
[access.edda]
role = "editor"
token = "env:EDDA_TOKEN"
"""


def test_operators_send_and_close_and_editors_change_people(
    served_node: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = {name: token_urlsafe(32) for name in ("otto", "edda")}
    for name, token in tokens.items():
        monkeypatch.setenv(f"{name.upper()}_TOKEN", token)

    async def scenario() -> None:
        async with served_node(site_text=ROLES) as api:

            async def call(who: str, method: str, path: str, body: Any = None) -> Any:
                bearer = {"Authorization": f"Bearer {tokens[who]}"}
                return await api.call(method, path, body, bearer)

            settings = {"addresses": ["inbox:"]}
            refused = await call("otto", "PUT", "/peers/zoe", settings)
            assert (refused.status, refused.json()["title"]) == (403, "access.no_role")
            assert (await call("otto", "POST", "/peers/import", b"name\nx\n")).status == 403
            assert (await call("edda", "PUT", "/peers/zoe", settings)).status == 200
            assert (await call("edda", "POST", "/peers/zoe/password", {})).status == 403
            sent = await call("otto", "POST", "/messages", request("peer:zoe", least=1))
            assert sent.status == 202
            (name,) = sent.json()["ids"]
            bearer = {"Authorization": f"Bearer {tokens['otto']}"}
            for _ in range(300):
                if (await api.call("GET", f"/ledger/messages/{name}", None, bearer)).status == 200:
                    break
                await asyncio.sleep(0.02)
            assert (await call("otto", "POST", f"/messages/{name}/close")).status == 202

    asyncio.run(scenario())
