"""The inbox on a phone: manifest, icons, and a page for when the node is away. [CN-10]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rapport.web.inbox_page import app_manifest
from support.browser import browser_program, opened_browser

pytestmark = [pytest.mark.slow]


@pytest.mark.parametrize(
    ("start", "opened", "id"),
    [
        ("/inbox/ana", "/inbox/ana", "/inbox/ana"),
        ("/inbox/ana/17.ab-c_d", "/inbox/ana/17.ab-c_d", "/inbox/ana"),
        ("/inbox/~w6k", "/inbox/~w6k", "/inbox/~w6k"),
        ("", "/inbox", "/inbox"),
        ("https://elsewhere.example/inbox", "/inbox", "/inbox"),
        ("//elsewhere.example", "/inbox", "/inbox"),
        ("/inbox/../console", "/inbox", "/inbox"),
        ("/inbox/%2E%2e/console", "/inbox", "/inbox"),
        ("/inbox/ana?x=1", "/inbox", "/inbox"),
        ("/console", "/inbox", "/inbox"),
    ],
)
def test_an_app_opens_an_inbox_and_nothing_else(start: str, opened: str, id: str) -> None:
    manifest = app_manifest(start, "en")
    assert (manifest.start_url, manifest.id) == (opened, id)


def test_the_files_of_the_app_have_the_right_types_and_the_worker_its_scope(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            german = {"Accept-Language": "de-AT"}
            path = "/static/inbox.webmanifest?start=/inbox/ana"
            found = await api.call("GET", path, None, german)
            assert found.headers["content-type"] == "application/manifest+json"
            assert found.json()["name"] == "Posteingang · Rapport"
            for icon in found.json()["icons"]:
                image = await api.call("GET", icon["src"])
                assert image.headers["content-type"] == "image/png"
                size = int.from_bytes(image.body[16:20], "big")
                assert icon["sizes"] == f"{size}x{size}"
            worker = await api.call("GET", "/static/inbox-worker.js")
            assert worker.headers["content-type"].startswith("text/javascript")
            assert worker.headers["service-worker-allowed"] == "/inbox"
            offline = await api.call("GET", "/static/offline.html")
            assert offline.headers["content-type"].startswith("text/html")
            assert "service-worker-allowed" not in offline.headers

    asyncio.run(scenario())


def test_who_is_logged_in_comes_from_the_login_page_to_the_inbox(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api:
            await api.node.logins.set_password("ana", "a long password", by="test")
            form = {"Content-Type": "application/x-www-form-urlencoded"}
            body = b"peer=ana&password=a+long+password"
            opened = await api.call("POST", "/inbox", body, form)
            cookie = {"Cookie": opened.headers["set-cookie"].partition(";")[0]}
            again = await api.call("GET", "/inbox", None, cookie)
            assert (again.status, again.headers["location"]) == (303, "/inbox/ana")
            assert (await api.call("GET", "/inbox?why=left", None, cookie)).status == 200
            assert (await api.call("GET", "/inbox")).status == 200

    asyncio.run(scenario())


@pytest.mark.skipif(browser_program() is None, reason="there is no Chromium on this machine")
def test_a_browser_can_install_the_inbox_and_shows_a_page_while_the_node_is_away(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with served_node() as api, opened_browser() as browser:
            made = (await api.call("POST", "/peers/ana/inbox-link", b"")).json()
            context = await browser.new_context(base_url=api.url, locale="de-AT")
            page = await context.new_page()
            faults: list[str] = []
            page.on("pageerror", lambda error: faults.append(str(error)))
            path = "/" + made["link"].split("/", 3)[3]
            await page.goto(path)
            await page.evaluate("navigator.serviceWorker.ready.then(() => true)")
            session = await context.new_cdp_session(page)
            manifest = await session.send("Page.getAppManifest")
            assert manifest["errors"] == []
            assert f"start={path}" in manifest["url"]
            found = await session.send("Page.getInstallabilityErrors")
            # A window without a profile on disk installs nothing; all else is as it has to be.
            faults += [one["errorId"] for one in found["installabilityErrors"]]
            assert [one for one in faults if one != "in-incognito"] == []

            await page.reload()
            await context.set_offline(True)
            await page.reload()
            assert await page.text_content("h1") == "Not connected"
            kept = await page.evaluate(
                """async () => {
                  const found = [];
                  for (const name of await caches.keys())
                    for (const one of await (await caches.open(name)).keys())
                      found.push(new URL(one.url).pathname);
                  return found.sort();
                }"""
            )
            assert kept == ["/static/offline.html", "/static/rapport.css"]
            await context.set_offline(False)
            await page.reload()
            assert await page.title() == "Inbox of ana · Rapport"
            await context.close()

    asyncio.run(scenario())
