"""The console in a real browser: each page, phone and desk, light and dark, for different roles.

One node and one browser serve all tests of this module.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest
from playwright.async_api import Browser, Locator, Page, Route, expect

from rapport.channel.consumers import serve
from rapport.channel.dead_letters import append_dead_letter
from rapport.core.event import Event, StoredEvent
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.node import Node
from rapport.node.wiring import make_node
from rapport.site.site import load_site
from rapport.web.app import serving
from rapport.web.browser_sessions import LoginLinks
from support.browser import BackgroundLoop, browser_program, opened_browser
from support.freezer_site import PASSWORD, TOKEN, walk, warm_night, write_freezer_site
from web.conftest import NodeApi
from web.test_new_sources import CSV, web_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser_program() is None, reason="there is no Chromium on this machine"),
    pytest.mark.xdist_group("console"),
]

AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
PAGES = (
    "",
    "things/freezer",
    "things/freezer/f2",
    "plan",
    "detections",
    "detections/{detection}",
    "policies",
    "policies/too-warm",
    "policies/too-warm/edit",
    "new-policy",
    "why-not/too-warm?who=F%3Df1",
    "messages",
    "send",
    "people",
    "people/import",
    "people/person",
    "people/person/ana",
    "people/group",
    "people/group/watch",
    "sources",
    "explore",
    "explore?channel=raw.freezers&query=data.temperature > -12&range=own",
    "explore?query=typo = 5",
    "explore/dead-letters",
    "explore/ledger",
    "network",
    "sources/add",
    "source/freezers",
    "history",
    "site",
)
ROSTER = [
    {"person": "ana", "days": "mon-fri", "hours": "08:00-20:00"},
    {"person": "vera", "days": "mon-fri", "hours": "20:00-08:00"},
]


class Console:
    """A node with data, and a browser."""

    def __init__(self, loop: BackgroundLoop, api: NodeApi, browser: Browser, links: LoginLinks):
        self.run, self.api, self.node, self.browser = loop.run, api, api.node, browser
        self.links = links

    @asynccontextmanager
    async def visit(self, path: str = "/console/", **options: Any) -> AsyncIterator[Page]:
        """A page of a browser that has no session; fails for errors in its console."""
        context = await self.browser.new_context(base_url=self.api.url, **options)
        page = await context.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "console",
            lambda line: (
                faults.append(line.text) if "Content Security Policy" in line.text else None
            ),
        )
        try:
            await page.goto(path)
            yield page
            assert faults == []
        finally:
            await context.close()

    @asynccontextmanager
    async def enter(self, path: str = "/console/", **options: Any) -> AsyncIterator[Page]:
        """The same after the one-time link."""
        async with self.visit(f"/login/{self.links.make()}", **options) as page:
            await page.wait_for_selector("nav")
            if path != "/console/":
                await page.goto(path)
            yield page


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    loop, stack = BackgroundLoop(), AsyncExitStack()
    try:
        yield loop.run(open_console(loop, stack, tmp_path_factory.mktemp("console")))
    finally:
        loop.run(stack.aclose())
        loop.close()


async def open_console(loop: BackgroundLoop, stack: AsyncExitStack, directory: Path) -> Console:
    site = load_site(write_freezer_site(directory, closed=True, freezers=400))
    node: Node = make_node(site, NodeSettings(port=0), SystemClock())
    links = LoginLinks(node.clock)
    stack.push_async_callback(node.stop)
    url = await stack.enter_async_context(serving(node, links=links))
    await node.start()
    await node.logins.set_password("vera", PASSWORD, by="test")
    api = NodeApi(node, url)
    now_ms, bearer = node.clock.now_ms(), {"Authorization": f"Bearer {TOKEN}"}
    bad = [{"freezer": "f1", "temperature": "<b>warm</b>"}]
    for source, body in (
        ("freezers", warm_night(now_ms)),
        ("tags", walk(now_ms)),
        ("freezers", bad),
    ):
        assert (await api.call("POST", f"/sources/{source}", body, bearer)).status == 200
    roster = {"zone": "Europe/Vienna", "roster": ROSTER}
    await node.people.put_collective("watch", roster, ["ana", "vera"], by="test")
    await node.channels.channel("detections").wait_after(0, timeout_ms=20_000)
    browser = await stack.enter_async_context(opened_browser())
    return Console(loop, api, browser, links)


async def detection_of(console: Console) -> str:
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    found = (await console.api.call("GET", "/detections", headers=bearer)).json()
    return str(found["detections"][0]["id"])


@pytest.mark.parametrize(
    ("size", "scheme", "rules"),
    # Dark differs from light in its colours only.
    [(PHONE, "light", []), (DESK, "dark", ["color-contrast"])],
    ids=["light on a phone", "dark on a desk"],
)
def test_no_page_has_serious_faults_for_screen_readers_or_is_wider_than_a_phone(
    console: Console, size: Any, scheme: Any, rules: list[str]
) -> None:
    async def scenario() -> None:
        detection = await detection_of(console)
        async with console.enter(viewport=size, color_scheme=scheme) as page:
            for path in PAGES:
                await page.goto(f"/console/{path.format(detection=detection)}")
                await expect(page.locator("h1").first).to_be_visible()
                await expect(page.get_by_text("Loading …")).to_have_count(0)
                assert await serious_faults(page, rules) == [], (path, scheme)
                width = await page.evaluate("document.documentElement.scrollWidth")
                assert width <= size["width"], (path, width)

    console.run(scenario())


async def serious_faults(page: Page, rules: Sequence[str] = ()) -> list[tuple[str, list[Any]]]:
    """What axe finds, of serious and critical impact; by some rules or by all."""
    await page.evaluate(AXE)
    options = {"runOnly": {"type": "rule", "values": rules}} if rules else {}
    found = await page.evaluate("options => axe.run(options)", options)
    return [
        (one["id"], [node["html"][:200] for node in one["nodes"]])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]


def test_a_visitor_logs_in_with_a_password_and_sees_what_the_role_allows(console: Console) -> None:
    async def scenario() -> None:
        async with console.visit("/console/policies/too-warm") as page:
            await expect(page.get_by_role("heading", name="Log in")).to_be_visible()
            assert await serious_faults(page) == []
            await page.get_by_label("Name").fill("vera")
            await page.get_by_label("Password").fill("not the password")
            await page.get_by_role("button", name="Log in").click()
            await expect(page.get_by_role("alert")).to_have_text(
                "The name or the password is wrong."
            )
            await page.get_by_label("Password").fill(PASSWORD)
            await page.get_by_role("button", name="Log in").click()
            await expect(page.get_by_role("heading", name="too-warm")).to_be_visible()
            await expect(page.get_by_text("vera · Viewer")).to_be_visible()
            await expect(page.get_by_role("button", name="Pause")).to_have_count(0)
            await page.get_by_role("button", name="Log out").click()
            await expect(page.get_by_role("heading", name="Log in")).to_be_visible()

    console.run(scenario())


def test_the_overview_leads_from_a_detection_to_the_payload_behind_it(console: Console) -> None:
    async def scenario() -> None:
        async with console.enter(viewport=DESK) as page:
            wrong = page.get_by_role("region", name="Needs attention")
            await expect(wrong).to_contain_text("temperature is the text '<b>warm</b>'")
            newest = page.get_by_role("region", name="Newest detections")
            await expect(newest).to_contain_text("freezer f2")
            await newest.get_by_role("row").nth(1).get_by_role("link").first.click()
            await expect(page.get_by_role("heading", name="too-warm")).to_be_visible()
            why = page.get_by_role("region", name="Why")
            await expect(why).to_contain_text("temperature of F > -12 degC for 2 min")
            chain = page.get_by_role("region", name="From which readings")
            await expect(chain.locator("pre").first).to_contain_text('"temperature": -9.5')
            await page.go_back()
            await expect(page.get_by_role("heading", name="Overview")).to_be_visible()

    console.run(scenario())


def test_a_back_test_is_started_from_the_page_and_its_result_opened(console: Console) -> None:
    async def scenario() -> None:
        async with console.enter("/console/policies/too-warm", viewport=DESK) as page:
            await page.get_by_role("link", name="Run over the past").click()
            await expect(page.get_by_role("combobox", name="Policy")).to_have_value("too-warm")
            await page.get_by_role("combobox", name="Period").select_option("last day")
            await page.get_by_role("button", name="Start").click()
            await expect(page.get_by_role("heading", name="too-warm")).to_be_visible()
            totals = page.get_by_role("region", name="Totals").first
            await expect(totals).to_contain_text("Found1", timeout=30_000)
            days = page.get_by_role("region", name="Per day")
            await expect(days.get_by_role("img")).to_have_attribute(
                "aria-label", "too-warm: 1 in all, on 1 days; the table has them"
            )
            await expect(page.get_by_role("region", name="Most often")).to_contain_text("f2")
            assert await serious_faults(page) == []
            await page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
            width = await page.evaluate("document.documentElement.scrollWidth")
            assert width <= PHONE["width"]
            address = page.url
            await page.get_by_role("link", name="History").first.click()
            await page.goto(address)
            await expect(totals).to_contain_text("Found1")
        async with console.visit("/console/history") as page:
            await page.get_by_label("Name").fill("vera")
            await page.get_by_label("Password").fill(PASSWORD)
            await page.get_by_role("button", name="Log in").click()
            await expect(page.get_by_role("region", name="Runs")).to_contain_text("done")
            await expect(page.get_by_role("button", name="Start")).to_have_count(0)

    console.run(scenario())


def test_the_site_page_checks_reloads_and_examines_for_an_admin_only(console: Console) -> None:
    async def scenario() -> None:
        async with console.enter("/console/site", viewport=DESK) as page:
            await expect(page.get_by_role("region", name="Problems of the files")).to_contain_text(
                "too-warm.dpl:4:3"
            )
            await page.get_by_role("button", name="Reload the files").click()
            await expect(page.get_by_text("The files are loaded; nothing")).to_be_visible()
            await page.get_by_role("button", name="too-warm.dpl").click()
            await expect(page.get_by_role("region", name="Files", exact=True)).to_contain_text(
                "temperature of F above -12 degC"
            )
            await page.get_by_role("button", name="Examine").click()
            await expect(page.get_by_role("region", name="Health")).to_contain_text("GiB free")
        async with console.visit("/console/site") as page:
            await page.get_by_label("Name").fill("vera")
            await page.get_by_label("Password").fill(PASSWORD)
            await page.get_by_role("button", name="Log in").click()
            await expect(page.get_by_role("region", name="Figures")).to_contain_text("Readings")
            await expect(page.get_by_role("button", name="Reload the files")).to_have_count(0)
            await expect(page.get_by_role("region", name="Log of the node")).to_have_count(0)

    console.run(scenario())


def test_a_limit_in_a_policy_file_is_changed_on_the_site_page_and_changed_back(
    console: Console,
) -> None:
    async def scenario() -> None:
        file = console.node.site.directory / "too-warm.dpl"
        before = file.read_text()
        async with console.enter("/console/site", viewport=DESK) as page:
            files = page.get_by_role("region", name="Files", exact=True)
            await files.get_by_role("button", name="too-warm.dpl").click()
            await files.get_by_role("button", name="Edit", exact=True).click()
            editor = files.get_by_label("Text of too-warm.dpl")
            await expect(editor).to_have_value(before)
            await editor.fill(before.replace("-12 degC", "-12 degX"))
            await files.get_by_role("button", name="Show the change").click()
            await expect(files.get_by_text("It cannot be saved like this")).to_be_visible()
            await expect(files.get_by_role("button", name="Save and reload")).to_have_count(0)
            await editor.fill(before.replace("-12 degC", "-15 degC"))
            await files.get_by_role("button", name="Show the change").click()
            await expect(
                files.get_by_text("+  temperature of F above -15 degC for 2 min")
            ).to_be_visible()
            assert await serious_faults(page) == []
            assert file.read_text() == before
            await files.get_by_role("button", name="Save and reload").click()
            await expect(files.get_by_text("too-warm.dpl is saved and in force")).to_be_visible()
            assert "-15 degC" in file.read_text()
            assert "-15 degC" in console.node.policies.life.policy("too-warm").text
            await files.get_by_role("button", name="Undo").click()
            await expect(files.get_by_text("too-warm.dpl is as it was before")).to_be_visible()
            await expect(files.get_by_text("undone", exact=True)).to_be_visible()
            await expect(files.get_by_role("button", name="Undo")).to_have_count(0)
            assert file.read_text() == before
            assert console.node.policies.life.policy("too-warm").text == before

    console.run(scenario())


def test_the_page_shows_a_fault_while_it_lasts(console: Console) -> None:
    async def scenario() -> None:
        async with console.enter() as page:
            wrong = page.get_by_role("region", name="Needs attention")
            console.node.conditions.begin("disk.full", "no <b>space</b> is left for the log")
            await expect(wrong).to_contain_text("no <b>space</b> is left", timeout=10_000)
            console.node.conditions.end("disk.full")
            await expect(wrong).not_to_contain_text("space", timeout=10_000)

    console.run(scenario())


def test_a_long_list_has_only_the_rows_on_the_screen_and_a_search(console: Console) -> None:
    async def scenario() -> None:
        async with console.enter("/console/things/freezer", viewport=DESK) as page:
            await expect(page.get_by_role("link", name="Freezer 1", exact=True)).to_be_visible()
            assert await page.get_by_role("row").count() < 80
            await page.evaluate("scrollTo(0, document.body.scrollHeight)")
            await expect(page.get_by_role("link", name="Freezer 400", exact=True)).to_be_visible()
            await page.get_by_role("searchbox").fill("freezer 39")
            await expect(page.get_by_role("link", name="Freezer 399", exact=True)).to_be_visible()
            await expect(page.get_by_text("11 things")).to_be_visible()

    console.run(scenario())


def test_a_curve_shows_the_limit_and_a_click_asks_why_not(console: Console) -> None:
    async def scenario() -> None:
        path = "/console/things/freezer/f1?range=6h"
        async with console.enter(path, viewport=DESK) as page:
            curve = page.get_by_role("img", name="temperature of f1")
            await expect(curve).to_have_attribute(
                "aria-label", "temperature of f1: 60, from -20 to -18, now -19 °C"
            )
            await page.locator(".u-over").click(position={"x": 720, "y": 60})
            await page.get_by_role("link", name="Why not too-warm?").click()
            await expect(page.get_by_role("heading", name="Why not too-warm?")).to_be_visible()
            await expect(page.locator("main")).to_contain_text("is not > -12 degC")

    console.run(scenario())


def test_a_new_detection_appears_without_reloading_and_a_cut_is_said(console: Console) -> None:
    async def scenario() -> None:
        async with console.enter("/console/things/person/p2") as page:
            await expect(page.get_by_text("No reading yet")).to_be_visible()
            reading = [{**walk(console.node.clock.now_ms())[-1], "id": "new", "person": "p2"}]
            bearer = {"Authorization": f"Bearer {TOKEN}"}
            await console.api.call("POST", "/sources/tags", reading, bearer)
            await expect(page.get_by_text("(15.75, 4)").first).to_be_visible(timeout=10_000)
            await page.route("**/live", lambda route: route.abort())
            await page.reload()
            await expect(page.get_by_text("No connection since")).to_be_visible(timeout=10_000)

    console.run(scenario())


def test_the_texts_are_german_for_a_german_browser(console: Console) -> None:
    async def scenario() -> None:
        async with console.enter(locale="de-AT") as page:
            await expect(page.get_by_role("heading", name="Überblick")).to_be_visible()
            assert await page.locator("html").get_attribute("lang") == "de"

    console.run(scenario())


def test_lines_that_are_pasted_become_a_source_whose_readings_are_seen_and_are_taken_back(
    console: Console,
) -> None:
    async def scenario() -> None:
        async with console.enter("/console/sources", viewport=DESK) as page:
            await page.get_by_role("link", name="Add a source").click()
            lines = (
                "box_id,when,temp,note\n"
                "b7,2026-03-02 20:00,-8.5,<b>x</b>\n"
                "b7,2026-03-02 20:05,-9,y\n"
            )
            await page.get_by_label("Or paste a few lines").fill(lines)
            await page.get_by_label("Name of the source").fill("boxes")
            await page.get_by_role("button", name="Look at it").click()
            write = page.get_by_role("button", name="Add the source")
            await expect(write).to_be_disabled()
            await expect(page.get_by_text("Which time zone?")).to_be_visible()
            await expect(page.get_by_text("<b>x</b>, y")).to_be_visible()
            assert await serious_faults(page) == []
            await page.get_by_role("button", name="take UTC").first.click()
            await page.get_by_role("button", name="take degC").click()
            readings = page.get_by_role("region", name="Readings")
            await expect(readings.get_by_role("cell", name="freezer.temperature")).to_have_count(2)
            await expect(readings.get_by_role("cell", name="-8.5")).to_be_visible()
            assert await serious_faults(page) == []
            await write.click()
            await expect(
                page.get_by_text("Readings can be posted to /sources/boxes")
            ).to_be_visible()
            kind = {"Content-Type": "text/csv", "Authorization": f"Bearer {TOKEN}"}
            now = format_time(console.node.clock.now_ms()).replace("T", " ").rstrip("Z")
            heading, *_ = lines.splitlines()
            posted = await console.api.call(
                "POST", "/sources/boxes", f"{heading}\nb7,{now},-14.5,\n".encode(), kind
            )
            assert posted.status == 200
            async with console.enter("/console/things/freezer/b7") as other:
                await expect(other.get_by_role("heading", name="b7")).to_be_visible()
                await expect(other.get_by_text("-14.5 °C").first).to_be_visible()
            await page.get_by_role("button", name="Take it back").click()
            await expect(page.get_by_text("boxes was taken out of site.toml")).to_be_visible()
            await write.click()
            await expect(page.get_by_text("boxes stands in site.toml.")).to_be_visible()
            await page.get_by_role("link", name="Sources").first.click()
            row = page.get_by_role("row", name="boxes")
            await row.get_by_role("button", name="Take it back").click()
            await expect(row.get_by_role("button")).to_have_count(0)
            await expect(page.get_by_text("boxes was taken out of site.toml")).to_be_visible()
            site = (console.node.site.directory / "site.toml").read_text()
            assert "boxes" not in site

    console.run(scenario())


def test_of_two_columns_that_may_be_the_identity_one_is_chosen(console: Console) -> None:
    async def scenario() -> None:
        async with console.enter("/console/sources/add", viewport=PHONE) as page:
            rows = [
                f"{sensor},{device},2026-03-02T20:00Z,1.5" for sensor in "ab" for device in "xy"
            ]
            lines = "\n".join(["sensor,device,when,temp_degC", *rows])
            await page.get_by_label("Or paste a few lines").fill(lines)
            await page.get_by_role("button", name="Look at it").click()
            await expect(page.get_by_role("button", name="Add the source")).to_be_disabled()
            await page.get_by_role("button", name="take device").click()
            await expect(page.get_by_role("button", name="Add the source")).to_be_enabled()
            await expect(page.get_by_label("Identifies the thing")).to_have_value("device")
            await page.get_by_label("Identifies the thing").select_option(
                "all rows are about one thing"
            )
            await page.get_by_label("Name of the thing").fill("cellar")
            await page.get_by_label("Name of the thing").blur()
            readings = page.get_by_role("region", name="Readings")
            await expect(readings.get_by_role("cell", name="cellar")).to_have_count(4)
            assert await serious_faults(page) == []

    console.run(scenario())


def test_unusable_readings_are_released_and_what_became_of_them_is_said(console: Console) -> None:
    async def scenario() -> None:
        async with console.enter("/console/sources", viewport=DESK) as page:
            await page.get_by_role("button", name="release those of freezers").click()
            await expect(
                page.get_by_text("freezers: 0 released, 1 still unusable.")
            ).to_be_visible()
            assert await serious_faults(page) == []

    console.run(scenario())


def test_a_coordinator_adds_people_sends_a_drill_watches_the_answer_and_closes_it(
    console: Console,
) -> None:
    async def scenario() -> None:
        async with console.enter("/console/people/import", viewport=DESK) as page:
            page.on("dialog", lambda dialog: dialog.accept())
            table = "name,addresses,groups\nzoe,inbox:,night\nyan,inbox:,night\nana,inbox:,night\n"
            await page.get_by_role("textbox", name="Or the table as text").fill(table)
            await page.get_by_role("button", name="Preview").click()
            rows = page.get_by_role("region", name="What the import does")
            await expect(rows.get_by_role("row", name="ana")).to_contain_text("left out")
            await expect(rows).to_contain_text("New groups: night")
            await page.get_by_role("button", name="Import 2 rows").click()
            await expect(page.get_by_text("2 people were imported.")).to_be_visible()

            await page.goto("/console/people/group/night")
            await expect(page.get_by_role("link", name="yan")).to_be_visible()
            await page.get_by_role("link", name="Send a message").click()
            await page.get_by_label("Text").fill("Who can <b>come</b>?")
            await page.get_by_label("This is a drill").check()
            await page.get_by_label("Answers to choose from").fill("at once, in an hour")
            await page.get_by_label("Answers needed").fill("2")
            await page.get_by_label("Answer within").fill("30")
            await page.get_by_role("button", name="Send the drill").click()
            heading = page.get_by_role("heading", name="DRILL: Who can <b>come</b>?")
            await expect(heading).to_be_visible()
            assert await serious_faults(page) == []

            people = page.get_by_role("region", name="People")
            await expect(people.get_by_role("row", name="zoe")).to_contain_text("reached")
            made = await page.evaluate(
                "fetch('/peers/zoe/inbox-link', { method: 'POST' }).then((one) => one.json())"
            )
            address = "/" + made["link"].split("/", 3)[3]
            async with console.visit(address, viewport=PHONE) as inbox:
                await expect(inbox.get_by_text("DRILL: Who can <b>come</b>?")).to_be_visible()
                await inbox.get_by_role("button", name="in an hour").click()
            answered = people.get_by_role("row", name="zoe")
            await expect(answered).to_contain_text("answered: in an hour", timeout=10_000)
            await page.get_by_role("button", name="Close it").click()
            await expect(page.locator("main")).to_contain_text("closed by", timeout=10_000)
            await expect(page.get_by_role("button", name="Close it")).to_have_count(0)


def test_an_editor_makes_a_roster_with_a_substitute_and_sees_who_is_on_duty(
    console: Console,
) -> None:
    async def scenario() -> None:
        await console.node.people.put_collective("gate", {}, ["ana", "vera"], by="test")
        async with console.enter("/console/people/group/gate", viewport=DESK) as page:
            duty = page.get_by_role("region", name="On duty")
            await expect(duty).to_contain_text("There is no roster")
            await duty.get_by_role("button", name="Make a roster").click()
            await duty.get_by_label("Person").select_option("ana")
            await duty.get_by_label("Time zone").fill("Europe/Vena")
            await duty.get_by_role("button", name="Save").click()
            await expect(duty.get_by_role("alert")).to_contain_text("is not a time zone")
            await duty.get_by_label("Time zone").fill("Europe/Vienna")
            await duty.get_by_role("button", name="Save").click()
            await expect(duty.get_by_text("on duty: ana")).to_be_visible()
            await expect(duty.get_by_role("row")).to_have_count(1 + 15)

            await duty.get_by_role("button", name="Change the roster").click()
            await duty.get_by_role("button", name="Add a shift").click()
            substitute = duty.get_by_role("group").nth(1)
            await substitute.get_by_label("Person").select_option("vera")
            await substitute.get_by_label("Instead of").select_option("ana")
            assert await serious_faults(page) == []
            await duty.get_by_role("button", name="Save").click()
            await expect(duty.get_by_text("on duty: vera")).to_be_visible()

            await page.goto("/console/send?to=collective:gate")
            await expect(page.get_by_text("on duty: vera")).to_be_visible()
            await page.goto("/console/")
            line = page.get_by_role("region", name="On duty").get_by_role("listitem")
            await expect(line.filter(has_text="gate")).to_contain_text("on duty: vera")

    console.run(scenario())


def test_a_mistake_is_shown_where_it_stands_and_its_hint_mends_it(console: Console) -> None:
    async def scenario() -> None:
        async with console.enter("/console/new-policy", viewport=DESK) as page:
            text = page.get_by_label("Text of the policy").locator(".cm-content")
            await expect(text).to_contain_text("temperature of F above 100 degC for 10 min")
            await text.click()
            for key in ("Control+Home", "ArrowDown", "Home", "Delete"):
                await page.keyboard.press(key)
            mark = page.locator(".cm-lintRange-error").first
            await expect(mark).to_have_text("reezer")
            await mark.hover()
            await page.get_by_role("button", name="Write “freezer”").click()
            await expect(text).to_contain_text("freezer F")
            await page.reload()
            await expect(text).to_contain_text("freezer F")  # nothing typed is lost
            await text.click()
            await page.keyboard.press("Control+End")
            await page.keyboard.type("actions when cleared")
            await expect(page.get_by_role("listbox")).to_have_count(0)
            await page.keyboard.press("Enter")
            await page.keyboard.type("  te")
            await page.get_by_role("option", name="tell ana").click()
            await expect(text).to_contain_text("actions when cleared  tell ana")
            await page.get_by_role("button", name="Check").click()
            await expect(page.get_by_text("No problems found.")).to_be_visible()

    console.run(scenario())


def test_a_limit_is_changed_in_the_form_tried_on_history_and_saved_by_one_of_two(
    console: Console,
) -> None:
    text = """concepts
  freezer F
situation
  temperature of F above -12 degC for 4 min
actions
  tell ana
"""

    async def scenario() -> None:
        life = console.node.policies.life
        await life.register("warm-edited", text, by="test")
        path = "/console/policies/warm-edited/edit"
        async with console.enter(path, viewport=PHONE) as page:
            await page.get_by_role("button", name="Form").click()
            limit = page.get_by_label("Limit (°C)")
            await limit.fill("a lot")
            await limit.press("Tab")
            await expect(limit).to_have_value("-12")
            await limit.fill("-19.5")
            await limit.press("Tab")
            await page.get_by_role("button", name="Try on history").click()
            tried = page.get_by_role("region", name="On history").first
            await expect(tried).to_contain_text("Against the version in force")
            await expect(tried.get_by_role("row").nth(1)).to_contain_text("f")
            await page.get_by_role("button", name="Save …").click()
            change = page.get_by_role("region", name="This will change")
            await expect(change).to_contain_text("+  temperature of F above -19.5 degC for 4 min")
            await life.replace("warm-edited", text.replace("-12", "-11"), by="ben")
            await page.get_by_role("button", name="Save this version").click()
            other = page.get_by_role("region", name="ben has saved another version meanwhile")
            await expect(other).to_contain_text("-  temperature of F above -11 degC for 4 min")
            assert "-11" in life.policy("warm-edited").text
            await page.get_by_role("button", name="I have seen it").click()
            await page.get_by_role("button", name="Save this version").click()
            await page.wait_for_url("**/console/policies/warm-edited")
            assert life.policy("warm-edited").text == text.replace("-12", "-19.5")
        await life.delete("warm-edited", by="test")

    console.run(scenario())


def test_the_editor_writes_the_file_of_a_policy_and_makes_one_for_a_new_policy(
    console: Console,
) -> None:
    async def scenario() -> None:
        life, directory = console.node.policies.life, console.node.site.directory
        file, made = directory / "too-warm.dpl", directory / "too-warm-too.dpl"
        before = file.read_text()
        async with console.enter("/console/policies/too-warm/edit", viewport=DESK) as page:
            text = page.get_by_label("Text of the policy").locator(".cm-content")
            await write(page, text, before.replace("-12 degC", "-13 degC"))
            await page.get_by_role("button", name="Save …").click()
            change = page.get_by_role("region", name="This will change in too-warm.dpl")
            await expect(change).to_contain_text("+  temperature of F above -13 degC for 2 min")
            assert await serious_faults(page) == []
            file.write_text(before.replace("-12 degC", "-14 degC"))  # with an editor of texts
            await page.get_by_role("button", name="Save this version").click()
            other = page.get_by_role("region", name="too-warm.dpl was changed meanwhile")
            await expect(other).to_contain_text("-  temperature of F above -14 degC for 2 min")
            assert "-14 degC" in file.read_text()
            await page.get_by_role("button", name="I have seen it").click()
            await page.get_by_role("button", name="Save this version").click()
            await page.wait_for_url("**/console/policies/too-warm")
            assert file.read_text() == before.replace("-12 degC", "-13 degC")
            assert life.policy("too-warm").text == file.read_text()

            await page.goto("/console/new-policy")
            await page.get_by_label("Name").fill("too-warm-too")
            await write(page, text, before)
            await page.get_by_role("button", name="Save …").click()
            await page.get_by_role("button", name="Start too-warm-too").click()
            await page.wait_for_url("**/console/policies/too-warm-too")
            assert made.read_text() == life.policy("too-warm-too").text == before

            await page.goto("/console/site")
            for name in ("too-warm-too.dpl", "too-warm.dpl"):
                change = page.get_by_role("listitem").filter(has_text=name)
                undo = change.get_by_role("button", name="Undo")
                await undo.click()
                await expect(undo).to_have_count(0)
            assert file.read_text() == before.replace("-12 degC", "-14 degC")
            assert not made.exists()
        file.write_text(before)
        await console.node.policies.reload()

    console.run(scenario())


def test_a_version_runs_beside_the_one_in_force_until_somebody_decides(console: Console) -> None:
    async def scenario() -> None:
        life = console.node.policies.life
        before = life.policy("too-warm").text
        async with console.enter("/console/policies/too-warm/edit", viewport=DESK) as page:
            text = page.get_by_label("Text of the policy").locator(".cm-content")
            await write(page, text, before.replace("-12 degC", "-13 degC"))
            await page.get_by_role("button", name="Save …").click()
            await page.get_by_role("button", name="Run it beside the present version").click()
            beside = page.get_by_role("region", name="Beside it, for comparison")
            await expect(beside).to_contain_text("Both found 0")
            assert await serious_faults(page) == []
            assert life.policy("too-warm").text == before
            assert "-13 degC" in life.policy("too-warm").shadow_text
            await beside.get_by_role("button", name="Drop it").click()
            await expect(beside).to_have_count(0)
            assert life.policy("too-warm").shadow == ""

    console.run(scenario())


PASTE = """(editor, text) => {
  const clipboardData = new DataTransfer();
  clipboardData.setData("text/plain", text);
  const given = { clipboardData, bubbles: true, cancelable: true };
  editor.dispatchEvent(new ClipboardEvent("paste", given));
}"""


async def write(page: Page, editor: Locator, text: str) -> None:
    """As somebody who pastes a text over the old one."""
    await expect(editor).to_contain_text("concepts")
    await editor.click()
    await page.keyboard.press("Control+a")
    await editor.evaluate(PASTE, text)


def test_the_page_of_a_source_shows_what_was_received_beside_what_it_means(
    console: Console,
) -> None:
    async def scenario() -> None:
        async with console.enter("/console/sources", viewport=DESK) as page:
            await page.get_by_role("link", name="freezers").click()
            newest = page.get_by_role("region", name="Newest reading, and what was received")
            await expect(newest).to_contain_text("temperature of freezer")
            await expect(newest).to_contain_text("As received from freezers")
            await expect(newest.locator("pre").first).to_contain_text('"temperature"')

    console.run(scenario())


def test_what_an_address_holds_is_looked_at_on_the_page_of_new_sources(
    console: Console, tmp_path: Path
) -> None:
    async def scenario() -> None:
        (tmp_path / "boxes.csv").write_bytes(CSV)
        async with console.enter("/console/sources/add", viewport=DESK) as page:
            address = page.get_by_label("Or listen to a broker, or fetch an address")
            await address.fill("mqtt://127.0.0.1:1/zigbee2mqtt/#")
            await page.get_by_label("How long").select_option("5")
            await page.get_by_role("button", name="Listen").click()
            await expect(page.get_by_role("alert")).to_contain_text("no broker", timeout=15_000)
            assert await serious_faults(page) == []
            with web_server(tmp_path) as url:
                await address.fill(f"{url}/boxes.csv")
                await page.get_by_role("button", name="Fetch").click()
                preview = page.get_by_role("region", name="Readings")
                await expect(preview.get_by_role("row").nth(1)).to_contain_text("-18.5")

    console.run(scenario())


def test_the_form_says_that_it_cannot_show_a_text_it_does_not_understand(
    console: Console,
) -> None:
    async def scenario() -> None:
        async with console.enter("/console/policies/too-warm/edit") as page:
            await page.get_by_role("button", name="Form").click()
            await expect(page.get_by_text("more than the form can show")).to_be_visible()

    console.run(scenario())


def test_an_event_is_found_by_a_condition_and_followed_to_its_cause_and_new_ones_appear(
    console: Console,
) -> None:
    async def scenario() -> None:
        async with console.enter("/console/explore", viewport=DESK) as page:
            await page.get_by_role("searchbox", name="Search channels").fill("readings in the")
            await page.get_by_role("button", name="Readings in the site's units").click()
            condition = page.get_by_role("textbox", name="Condition")
            await condition.fill("typo = 'freezer.temperature'")
            await page.get_by_role("button", name="Search", exact=True).click()
            await expect(page.get_by_role("alert")).to_contain_text("there is no field 'typo'")
            await expect(page.get_by_role("alert").locator("pre")).to_contain_text("^")
            assert await serious_faults(page) == []
            await condition.fill("type = 'freezer.temperature'")
            await page.get_by_text("Build a condition").click()
            await page.get_by_label("Field").fill("data.value[0]")
            await page.get_by_label("Comparison").select_option(">")
            await page.get_by_label("Value").fill("-12")
            await page.get_by_role("button", name="Add", exact=True).click()
            built = "type = 'freezer.temperature' AND data.value[0] > -12"
            await expect(condition).to_have_value(built)
            await page.get_by_role("button", name="Search", exact=True).click()
            events = page.get_by_role("region", name="Events")
            await expect(events.get_by_role("row")).to_have_count(11)  # ten and the head
            await expect(events).not_to_contain_text("-18")

            await page.get_by_role("button", name="Follow").click()
            await expect(events).to_contain_text("New events appear here")
            hot = {**warm_night(console.node.clock.now_ms())[-1], "id": "hot", "temperature": 3.25}
            bearer = {"Authorization": f"Bearer {TOKEN}"}
            await console.api.call("POST", "/sources/freezers", [hot], bearer)
            newest = events.get_by_role("row").nth(1)
            await expect(newest).to_contain_text("3.25", timeout=10_000)

            await newest.get_by_role("button").click()
            assert await serious_faults(page) == []
            await page.get_by_role("link", name="Where this comes from").click()
            chain = page.locator("main")
            await expect(chain).to_contain_text("As received from freezers")
            await expect(chain.locator("pre").first).to_contain_text('"temperature": 3.25')
            await page.go_back()
            await expect(condition).to_have_value(built)

    console.run(scenario())


def test_following_goes_on_after_a_cut_without_a_gap_or_a_repetition(console: Console) -> None:
    async def scenario() -> None:
        channel = console.node.channels.channel("seen-live")
        await channel.append([numbered(1)])
        connections: list[str] = []
        event = {"id": "2", "source": "s", "type": "t", "time": "2026-01-01T00:00:00Z"}
        text = json.dumps({**event, "position": 2, "received": 1_767_225_600_000, "data": 2})
        cut = f"retry: 100\n\nid: 2\ndata: {text}\n\n"

        async def answer(route: Route) -> None:
            """The first connection ends after one event."""
            connections.append(route.request.url)
            if len(connections) == 1:
                await channel.append([numbered(2), numbered(3), numbered(4)])
                await route.fulfill(body=cut, content_type="text/event-stream")
            else:
                await route.continue_()

        async with console.enter("/console/explore?channel=seen-live", viewport=DESK) as page:
            await page.route("**/stream?*", answer)
            events = page.get_by_role("region", name="Events")
            await expect(events.get_by_role("row")).to_have_count(2)
            await page.get_by_role("button", name="Follow").click()
            await expect(events.get_by_role("row")).to_have_count(5, timeout=20_000)
            await expect(events).to_contain_text("New events appear here")
            shown = await events.get_by_role("row").all_inner_texts()
            assert [text.split()[-1] for text in shown[1:]] == ["4", "3", "2", "1"]
            assert len(connections) == 2

    console.run(scenario())


def numbered(number: int) -> Event:
    return Event("s", str(number), "t", "", number, data=str(number).encode())


def test_an_operator_replays_a_dead_letter_and_removes_another(console: Console) -> None:
    async def scenario() -> None:
        channels, handled, paper = console.node.channels, list[str](), asyncio.Event()

        async def handle(batch: Sequence[StoredEvent]) -> None:
            if not paper.is_set():
                raise ValueError("the printer is <b>out</b> of paper")
            handled.extend(one.event.id for one in batch)

        reader = asyncio.create_task(serve(channels, "job", "printer", handle, console.node.clock))
        try:
            await channels.channel("job").append([numbered(1)])
            assert await channels.channel("dead_letters").wait_after(0, timeout_ms=20_000)
            paper.set()
            (stored,) = await channels.channel("job").read_after(0)
            await append_dead_letter(channels, "job", "gone", stored, ValueError("no"), 3)
            async with console.enter("/console/explore/dead-letters", viewport=DESK) as page:
                page.on("dialog", lambda dialog: dialog.accept())
                printer = page.get_by_role("region", name="printer")
                await expect(printer).to_contain_text("the printer is <b>out</b> of paper")
                await printer.get_by_role("row").nth(1).get_by_role("button").first.click()
                await expect(printer.locator("pre")).to_contain_text('"id": "1"')
                assert await serious_faults(page) == []
                await printer.get_by_role("button", name="Replay", exact=True).click()
                await expect(page.get_by_text("1 is tried again.")).to_be_visible()
                await page.get_by_label("State").select_option("replayed")
                await expect(printer).to_contain_text("handled since", timeout=10_000)
                assert handled == ["1"]
                await page.get_by_label("State").select_option("open")
                gone = page.get_by_role("region", name="gone")
                await gone.get_by_role("button", name="Replay all").click()
                await expect(page.get_by_role("alert")).to_contain_text("is not supported")
                await gone.get_by_role("button", name="Remove", exact=True).click()
                await expect(page.get_by_text("1 was removed.")).to_be_visible()
                await expect(gone).to_have_count(0)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    console.run(scenario())


def test_the_ledger_is_filtered_and_saved_as_a_file(console: Console) -> None:
    async def scenario() -> None:
        async with console.enter("/console/explore/ledger", viewport=DESK) as page:
            await expect(page.get_by_role("row", name="f2 is too warm")).to_be_visible()
            await page.get_by_label("Kind").fill("NOTHING")
            await expect(page.get_by_text("No message matches.")).to_be_visible()
            await page.get_by_label("Kind").fill("NOTIFICATION")
            await page.get_by_label("Person").fill("ana")
            await expect(page.get_by_role("row", name="f2 is too warm")).to_be_visible()
            async with page.expect_download() as download:
                await page.get_by_role("link", name="CSV").click()
            saved = await asyncio.to_thread((await (await download.value).path()).read_text)
            assert saved.startswith("time,message,kind,")
            assert "f2 is too warm" in saved

    console.run(scenario())


def test_the_network_shows_a_cut_link_with_its_reason_and_the_rate_of_another(
    console: Console, tmp_path: Path
) -> None:
    links = f"""
[links.bologna]
url = "http://127.0.0.1:1"
receive = ["numbers"]
[links.milano]
url = "{console.api.url}"
token = "file:gateway.token"
receive = ["numbers"]
[context]
listen = "127.0.0.1:0"
"""

    async def scenario() -> None:
        folder = write_freezer_site(tmp_path / "linked")
        with (folder / "site.toml").open("a") as file:
            file.write(links)
        node = make_node(load_site(folder), NodeSettings(port=0), SystemClock())
        numbers = console.node.channels.channel("numbers")
        await numbers.append([numbered(0)])
        async with serving(node) as url:
            await node.start()
            for size, scheme in ((PHONE, "light"), (DESK, "dark")):
                looks: Any = {"viewport": size, "color_scheme": scheme}
                async with console.visit(f"{url}/console/network", **looks) as page:
                    words = page.get_by_role("region", name="In words")
                    cut = words.get_by_role("row", name="bologna")
                    await expect(cut).to_contain_text("cut off: no node answers", timeout=10_000)
                    drawing = page.get_by_role("img", name="2 neighbours; 1 are cut off")
                    await expect(drawing).to_contain_text("bologna")
                    await expect(words).to_contain_text("Context broker")
                    assert await serious_faults(page) == []
                    width = await page.evaluate("document.documentElement.scrollWidth")
                    assert width <= size["width"]
            async with console.visit(f"{url}/console/network", viewport=DESK) as page:
                await page.clock.install()
                await page.reload()
                linked = page.get_by_role("row", name="milano")
                await expect(linked).to_contain_text("receives numbers: 1")
                await numbers.append([numbered(number) for number in range(1, 31)])
                await expect(linked).to_contain_text("receives numbers: 31", timeout=10_000)
                await page.clock.fast_forward(30_000)
                await expect(linked).to_contain_text("a minute")
                await expect(page.get_by_role("img", name="neighbours")).to_contain_text("/min")
        await node.stop()

    console.run(scenario())
