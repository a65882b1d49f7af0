"""The console's page, and logging in to it, over real HTTP."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.wiring import make_node
from rapport.site.site import load_site
from rapport.web.app import serving
from rapport.web.browser_sessions import LINK_LASTS_MS, LoginLinks
from rapport.web.console import PAGE
from support.freezer_site import PASSWORD, TOKEN, write_freezer_site
from web.conftest import Answer, NodeApi

pytestmark = pytest.mark.slow


@asynccontextmanager
async def closed_node(directory: Path) -> AsyncIterator[tuple[NodeApi, LoginLinks]]:
    """A node that asks who comes; ana is an operator, ben has a password and no role."""
    site = load_site(write_freezer_site(directory, closed=True))
    node = make_node(site, NodeSettings(port=0), SystemClock())
    links = LoginLinks(node.clock)
    try:
        async with serving(node, links=links) as url:
            await node.start()
            for person in ("ana", "ben"):
                await node.logins.set_password(person, PASSWORD, by="test")
            yield NodeApi(node, url), links
    finally:
        await node.stop()


def cookie_of(answer: Answer) -> dict[str, str]:
    """The headers of a browser that got this answer."""
    found = re.search(r"rapport_session=(\"[^\"]*\"|[^;]*)", answer.headers["set-cookie"])
    assert found is not None
    return {"Cookie": found.group(0)}


def test_a_person_logs_in_with_a_password_and_has_the_rights_of_the_role(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with closed_node(tmp_path / "site") as (api, _links):
            assert (await api.call("GET", "/things")).status == 401
            nobody = (await api.call("GET", "/session")).json()
            assert (nobody["identity"], nobody["site"]) == ("", "cold-store")
            wrong = {"person": "ana", "password": "wrong password"}
            assert (await api.call("POST", "/session", wrong)).status == 401
            right = {"person": "ana", "password": PASSWORD}
            entered = await api.call("POST", "/session", right)
            assert (entered.json()["identity"], entered.json()["role"]) == ("ana", "operator")
            for part in ("HttpOnly", "SameSite=Strict", "Path=/"):
                assert part in entered.headers["set-cookie"]
            browser = cookie_of(entered)
            assert (await api.call("GET", "/things", headers=browser)).status == 200
            inbox = re.search(r"rapport_inbox=[^;]*", entered.headers["set-cookie"])
            assert inbox is not None
            shown = await api.call(
                "GET", entered.json()["inbox"], headers={"Cookie": inbox.group()}
            )
            assert (shown.status, b"<h1>ana</h1>" in shown.body) == (200, True)
            own = browser | {"Origin": api.url}
            refused = await api.call("POST", "/policies/too-warm/pause", headers=own)
            assert (refused.status, refused.json()["title"]) == (403, "access.no_role")
            await api.call("DELETE", "/session", headers=own)
            assert (await api.call("GET", "/things", headers=browser)).status == 401

    asyncio.run(scenario())


def test_a_person_without_a_role_is_led_to_the_inbox(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with closed_node(tmp_path / "site") as (api, _links):
            login = {"person": "ben", "password": PASSWORD}
            refused = await api.call("POST", "/session", login)
            assert (refused.status, refused.json()["title"]) == (403, "access.no_role")
            assert "set-cookie" not in refused.headers

    asyncio.run(scenario())


def test_a_token_and_a_link_open_a_session_and_the_link_only_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with closed_node(tmp_path / "site") as (api, links):
            by_token = await api.call("POST", "/session", {"token": TOKEN})
            assert by_token.json()["identity"] == "gateway"
            assert (await api.call("GET", "/things", headers=cookie_of(by_token))).status == 200
            assert (await api.call("POST", "/session", {"token": "x" * 30})).status == 401

            path = f"/login/{links.make()}"
            entered = await api.call("GET", path)
            assert (entered.status, entered.headers["location"]) == (303, "/console/")
            session = await api.call("GET", "/session", headers=cookie_of(entered))
            assert session.json()["role"] == "admin"
            again = await api.call("GET", path)
            assert again.headers["location"] == "/console/login?why=link"
            assert "set-cookie" not in again.headers

            forged = cookie_of(by_token)["Cookie"].replace("gateway", "node")
            assert (await api.call("GET", "/things", headers={"Cookie": forged})).status == 401

    asyncio.run(scenario())


def test_a_change_by_cookie_needs_the_origin_of_an_own_page(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with closed_node(tmp_path / "site") as (api, links):
            browser = cookie_of(await api.call("GET", f"/login/{links.make()}"))
            pause = ("POST", "/policies/too-warm/pause", None)
            assert (await api.call(*pause, headers=browser)).status == 401
            for origin in ("https://evil.example", api.url.replace("http", "https"), "null"):
                foreign = browser | {"Origin": origin}
                assert (await api.call(*pause, headers=foreign)).status == 403, origin
            assert (await api.call(*pause, headers=browser | {"Origin": api.url})).status == 200
            sandboxed = {"Origin": "null"}
            refused = await api.call("POST", "/session", {"token": TOKEN}, headers=sandboxed)
            assert (refused.status, refused.json()["title"]) == (403, "access.origin")

    asyncio.run(scenario())


def test_a_person_of_the_name_of_another_identity_does_not_get_its_rights(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with closed_node(tmp_path / "site") as (api, _links):
            for name in ("node", "gateway", "local"):
                await api.node.people.put_peer(name, {"addresses": ["inbox:"]}, by="test")
                await api.node.logins.set_password(name, PASSWORD, by="test")
                login = {"person": name, "password": PASSWORD}
                assert (await api.call("POST", "/session", login)).status == 403, name

    asyncio.run(scenario())


def test_an_open_node_asks_for_no_login(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = load_site(write_freezer_site(tmp_path / "site"))
        node = make_node(site, NodeSettings(port=0), SystemClock())
        try:
            async with serving(node) as url:
                await node.start()
                api = NodeApi(node, url)
                session = (await api.call("GET", "/session")).json()
                assert (session["role"], session["by_login"]) == ("admin", False)
        finally:
            await node.stop()

    asyncio.run(scenario())


def test_every_address_of_the_console_gives_the_page_and_its_files_are_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with closed_node(tmp_path / "site") as (api, _links):
            for path in ("/", "/console", "/console/things/freezer/f%2F1"):
                page = await api.call("GET", path)
                assert (page.status, page.headers["content-type"][:9]) == (200, "text/html")
                assert b"<title>cold-store</title>" in page.body
                policy = page.headers["content-security-policy"]
                assert "default-src 'self'" in policy
                assert "unsafe" not in policy
                assert page.headers["cache-control"] == "no-store"
            script = re.search(rb"/console-files/index-[\w-]+\.js", page.body)
            assert script is not None
            plain = await api.call("GET", script.group().decode())
            packed = await api.call(
                "GET", script.group().decode(), headers={"Accept-Encoding": "gzip"}
            )
            assert "immutable" in plain.headers["cache-control"]
            assert packed.headers["content-encoding"] == "gzip"
            assert gzip.decompress(packed.body) == plain.body
            for other in ("index.html", "sources.sha256", "..%2Fapp.py", "none.js"):
                assert (await api.call("GET", f"/console-files/{other}")).status == 404

    asyncio.run(scenario())


def test_the_live_stream_says_what_moved(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with closed_node(tmp_path / "site") as (api, _links):
            host, port = api.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            head = f"GET /live HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
            writer.write(head.encode())
            assert b"200" in await asyncio.wait_for(reader.readline(), 10)
            await asyncio.wait_for(reader.readuntil(b"event: state"), 10)
            await reader.readuntil(b"data: ")
            assert b'"detections":0' in await reader.readline()
            api.node.conditions.begin("disk.full", "no space is left")
            await asyncio.wait_for(reader.readuntil(b'"faults":"disk.full"'), 10)
            writer.close()
            await writer.wait_closed()

    asyncio.run(scenario())


def test_a_link_that_was_not_used_is_over_after_an_hour() -> None:
    class Clock(SystemClock):
        time_ms = 0

        def now_ms(self) -> int:
            return self.time_ms

    clock = Clock()
    links = LoginLinks(clock)
    code, late = links.make(), links.make()
    assert links.use(code)
    assert not links.use(code)
    assert not links.use("guessed")
    clock.time_ms = LINK_LASTS_MS
    assert not links.use(late)


def test_the_first_load_is_small() -> None:
    page = (PAGE / "index.html").read_text()
    first = re.findall(r"/console-files/([\w.-]+)", page)
    packed = sum(len(gzip.compress((PAGE / name).read_bytes())) for name in first)
    assert 10_000 < packed < 300_000
