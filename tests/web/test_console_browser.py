"""The console in a real browser: each page, phone and desk, light and dark, for different roles.

One node and one browser serve all tests of this module.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest
from playwright.async_api import Browser, Page, expect

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


def test_no_page_has_serious_faults_for_screen_readers_or_is_wider_than_a_phone(
    console: Console,
) -> None:
    async def scenario() -> None:
        detection = await detection_of(console)
        # Dark differs from light in its colours only.
        looks: tuple[tuple[Any, str, list[str]], ...] = (
            (PHONE, "light", []),
            (DESK, "dark", ["color-contrast"]),
        )
        for size, scheme, rules in looks:
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


def test_the_form_says_that_it_cannot_show_a_text_it_does_not_understand(
    console: Console,
) -> None:
    async def scenario() -> None:
        async with console.enter("/console/policies/too-warm/edit") as page:
            await page.get_by_role("button", name="Form").click()
            await expect(page.get_by_text("more than the form can show")).to_be_visible()

    console.run(scenario())
