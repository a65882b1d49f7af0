"""Four people do their work in the browser, from the first page to the last. [CN-15]

Each journey is described with pictures in `docs/console/journeys.md`; the steps of the page are
those of the test. One node with the site of `rapport init --template home`, one broker with a
freezer and one browser serve all of them.
"""

from __future__ import annotations

import asyncio
import csv
import os
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from rapport.cli.main import run
from rapport.core.times import format_time, parse_time
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.wiring import make_node
from rapport.site.site import load_site
from rapport.web.app import serving
from rapport.web.browser_sessions import LoginLinks
from support.browser import BackgroundLoop, browser_program, opened_browser
from support.freezer_site import PASSWORD
from support.journeys import Journey
from support.servers.mqtt import Device, mqtt_broker  # noqa: F401
from support.servers.nats import NatsServer
from web.conftest import NodeApi
from web.test_console_browser import Console

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser_program() is None, reason="there is no Chromium on this machine"),
    pytest.mark.xdist_group("console"),
]

MINUTE_MS = 60_000
PHONE: Any = {"viewport": {"width": 390, "height": 760}, "locale": "en-GB"}
DESK: Any = {"viewport": {"width": 1120, "height": 680}, "locale": "en-GB"}
DRILL_AT_NIGHT = "name,addresses,groups\n" + "".join(
    f"{name},inbox:,night\n"
    for name in ("ada", "bea", "cem", "dora", "emil", "finn", "gus", "hana", "ida", "jon")
)
Begin = Callable[[str], Journey]


class House(Console):
    """The node of a household, and the freezer in the shed that speaks MQTT."""

    freezer: Device
    topic: str

    async def post(self, path: str, body: Any) -> None:
        assert (await self.api.call("POST", path, body)).status < 300

    async def play_night(self, until_ms: int) -> None:
        """The night that the template has recorded, ending then."""
        await self.post("/sources/freezers", recorded_night(self.node.site.directory, until_ms))


@pytest.fixture(scope="module")
def house(
    tmp_path_factory: pytest.TempPathFactory,
    mqtt_broker: NatsServer,  # noqa: F811
) -> Iterator[House]:
    site = tmp_path_factory.mktemp("journeys") / "home"
    topic = f"zigbee-{os.getpid()}"
    expect.set_options(timeout=30_000)
    assert run(["init", str(site), "--template", "home"]) == 0
    for name in ("silent.dpl", "door-open.dpl"):  # the time of day is of no account here
        (site / name).unlink()
    loop, stack = BackgroundLoop(), AsyncExitStack()
    with Device(mqtt_broker.mqtt_port, client_id=f"{topic}-shed") as device:
        newest = shed(SystemClock().now_ms(), minutes_ago=600, temperature=-18.5)
        device.publish(f"{topic}/shed", newest, retain=True)
        address = f"mqtt://127.0.0.1:{mqtt_broker.mqtt_port}/{topic}/#"
        add = ["add", address, "--site", str(site), "--name", "zigbee", "--listen", "1s", "--yes"]
        assert run(add) == 0
        try:
            house = loop.run(open_house(loop, stack, site))
            house.freezer, house.topic = device, topic
            yield house
        finally:
            expect.set_options(timeout=5_000)
            loop.run(stack.aclose())
            loop.close()


async def open_house(loop: BackgroundLoop, stack: AsyncExitStack, directory: Path) -> House:
    node = make_node(load_site(directory), NodeSettings(port=0), SystemClock())
    links = LoginLinks(node.clock)
    stack.push_async_callback(node.stop)
    url = await stack.enter_async_context(serving(node, links=links))
    await node.start()
    await node.logins.set_password("me", PASSWORD, by="test")
    browser = await stack.enter_async_context(opened_browser())
    house = House(loop, NodeApi(node, url), browser, links)
    await house.play_night(node.clock.now_ms() - 200 * MINUTE_MS)
    return house


@pytest.fixture
def begin(request: pytest.FixtureRequest) -> Begin:
    rewrites = bool(request.config.getoption("--rewrite-pictures", default=False))
    return lambda heading: Journey(heading, rewrites=rewrites)


def recorded_night(site: Path, until_ms: int) -> list[dict[str, Any]]:
    """The readings of the freezers that come with the template, at other times."""
    with (site / "freezers-night.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    later = until_ms - max(parse_time(row["time"]) for row in rows)
    return [
        {
            **row,
            "time": format_time(parse_time(row["time"]) + later),
            "temperature": float(row["temperature"]),
        }
        for row in rows
    ]


def shed(now_ms: int, *, minutes_ago: int, temperature: float) -> dict[str, object]:
    """What the freezer in the shed publishes."""
    seen = format_time(now_ms - minutes_ago * MINUTE_MS)
    return {"temperature": temperature, "linkquality": 96, "last_seen_time": seen}


def logger_file(now_ms: int) -> str:
    """What a logger recorded; the garage thawed for a while, but not above -12 degrees."""
    rows = [
        f"{name},{format_time(now_ms - minutes * MINUTE_MS)},{temperature}"
        for minutes in range(190, 90, -5)
        for name, temperature in (
            ("garage", -13.4 if 120 < minutes < 150 else -18),
            ("pantry", -19),
        )
    ]
    return "\n".join(["freezer_id,measured,temp", *rows, ""])


def test_an_engineer_goes_from_a_file_to_the_first_alert_in_the_browser_only(
    house: House, begin: Begin
) -> None:
    async def scenario() -> None:
        journey = begin("An engineer: from a file to the first alert")
        now_ms = house.node.clock.now_ms()
        async with house.visit("/console/", **DESK) as page:
            journey.step("Choose *Sources*, *Add a source*, and drop the file of the logger.")
            await page.get_by_role("link", name="Sources").first.click()
            await page.get_by_role("link", name="Add a source").click()
            await page.locator("input[type=file]").set_input_files(
                {
                    "name": "garage.csv",
                    "mimeType": "text/csv",
                    "buffer": logger_file(now_ms).encode(),
                }
            )
            journey.step("It is not said in which unit `temp` is: take °C, which is likely.")
            await page.get_by_role("button", name="take degC").click()
            readings = page.get_by_role("region", name="Readings")
            await expect(readings.get_by_role("cell", name="freezer.temperature")).to_have_count(8)
            await journey.picture(page, "console-engineer-file.png")
            journey.step("*Add the source*, then *Take in its rows now*.")
            await page.get_by_role("button", name="Add the source").click()
            await page.get_by_role("button", name="Take in its rows now").click()
            await expect(page.get_by_text("Its rows were taken in.")).to_be_visible()

            journey.step(
                "Choose *Policies*, *New policy*, *Form*; a name, the limit -15 °C for 10 minutes."
            )
            await page.get_by_role("link", name="Policies").first.click()
            await page.get_by_role("link", name="New policy").click()
            await page.get_by_label("Name").fill("thawing")
            await page.get_by_role("button", name="Form").click()
            await page.get_by_label("Limit (°C)").fill("-15")
            await page.get_by_label("For how long").fill("10 min")
            await page.get_by_label("For how long").press("Tab")
            journey.step("*Try on history*: it would have found the garage two hours ago.")
            await page.get_by_role("button", name="Try on history").click()
            tried = page.get_by_role("region", name="On history").first
            await expect(tried).to_contain_text("garage")
            await journey.picture(page, "console-engineer-trial.png")
            journey.step("*Save*, look at the text, *Start thawing*.")
            await page.get_by_role("button", name="Save …").click()
            await page.get_by_role("button", name="Start thawing").click()
            await page.wait_for_url("**/console/policies/thawing")

            journey.step(
                "The garage gets warm again, and the logger sends. The detection says why."
            )
            warm = [
                f"garage,{format_time(now_ms - minutes * MINUTE_MS)},-13.4"
                for minutes in range(88, 60, -2)
            ]
            rows = "\n".join(["freezer_id,measured,temp", *warm, ""]).encode()
            kind = {"Content-Type": "text/csv"}
            await house.api.call("POST", "/sources/garage", rows, kind)
            found = page.get_by_role("link", name="garage").first
            await expect(found).to_be_visible(timeout=20_000)
            await page.get_by_role("link", name="Detections").first.click()
            row = page.get_by_role("row").filter(has_text="thawing").first
            await row.get_by_role("link").first.click()
            why = page.get_by_role("region", name="Why")
            await expect(why).to_contain_text("temperature of F above -15 degC for 10 min")
            await expect(why).to_contain_text("1.6 K above the limit")
            await expect(page.locator(".u-over")).to_be_visible()
            await journey.picture(page, "console-engineer-alert.png")
        journey.check()

    house.run(scenario())


def test_an_integrator_goes_from_an_mqtt_freezer_to_why_it_did_not_alarm(
    house: House, begin: Begin
) -> None:
    async def scenario() -> None:
        journey = begin("An integrator: from an MQTT freezer to why not")
        now_ms = house.node.clock.now_ms()
        journey.step(
            "In a terminal: `rapport add mqtt://BROKER/zigbee2mqtt/# --site home --name zigbee`,"
            " then `rapport up --site home`."
        )
        while any(one.counts.trouble for one in house.node.bridges.status()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        journey.step(
            "The freezer in the shed publishes. It got warmer for a while, and nobody was told."
        )
        for minutes in range(28, 0, -2):
            temperature = -12.4 if 12 <= minutes <= 18 else -18.5
            reading = shed(now_ms, minutes_ago=minutes, temperature=temperature)
            await asyncio.to_thread(house.freezer.publish, f"{house.topic}/shed", reading)
        async with house.visit("/console/", **DESK) as page:
            journey.step("Open the console, *Sources*: `zigbee` was heard.")
            await page.get_by_role("link", name="Sources").first.click()
            await expect(page.get_by_role("row", name="zigbee")).to_contain_text("ago")
            journey.step(
                "Choose *Things*, *freezer*, `shed`: the curve, with the limits of the policies."
            )
            await page.get_by_role("link", name="Things").first.click()
            await page.get_by_role("link", name="freezer").first.click()
            await page.get_by_role("link", name="shed", exact=True).click()
            await expect(page.get_by_role("img", name="temperature of shed")).to_be_visible()
            await journey.picture(page, "console-integrator-curve.png")
            journey.step("Click the peak of the curve, then *Why not too-warm?*")
            await click_at(page, now_ms - 15 * MINUTE_MS, now_ms)
            await page.get_by_role("link", name="Why not too-warm?").click()
            journey.step("It was -12.4 °C, the limit is -12: the page says how little was missing.")
            await expect(page.get_by_role("heading", name="Why not too-warm?")).to_be_visible()
            await expect(page.locator("main")).to_contain_text("0.4 K below the limit")
            await journey.picture(page, "console-integrator-why-not.png")
        journey.check()

    house.run(scenario())


async def click_at(page: Page, time_ms: int, now_ms: int) -> None:
    """Clicks the curve of the last hour where that moment stands."""
    curve = page.locator(".u-over").first
    await curve.scroll_into_view_if_needed()
    box = await curve.bounding_box()
    assert box is not None
    at = box["width"] * (1 - (now_ms - time_ms) / 3_600_000)
    await curve.click(position={"x": at, "y": box["height"] / 2})


def test_a_coordinator_drills_with_ten_people_of_whom_one_answers(
    house: House, begin: Begin
) -> None:
    async def scenario() -> None:
        journey = begin("A coordinator: a drill with ten people")
        async with house.visit("/console/", **DESK) as page:
            page.on("dialog", lambda dialog: dialog.accept())
            journey.step("Choose *People*, *Import*, and paste the table of the night shift.")
            await page.get_by_role("link", name="People").first.click()
            await page.get_by_role("link", name="Import").click()
            await page.get_by_role("textbox", name="Or the table as text").fill(DRILL_AT_NIGHT)
            await page.get_by_role("button", name="Preview").click()
            journey.step("*Preview* says what each row does; *Import 10 rows*.")
            await page.get_by_role("button", name="Import 10 rows").click()
            await expect(page.get_by_text("10 people were imported.")).to_be_visible()
            journey.step(
                "Choose the group `night`, *Send a message*: a text, *This is a drill*, "
                "two answers to choose from, five people needed."
            )
            await page.get_by_role("link", name="People").first.click()
            await page.get_by_role("link", name="night").first.click()
            await page.get_by_role("link", name="Send a message").click()
            await page.get_by_label("Text").fill("Who can come?")
            await page.get_by_label("This is a drill").check()
            await page.get_by_label("Answers to choose from").fill("at once, in an hour")
            await page.get_by_label("Answers needed").fill("5")
            await journey.picture(page, "console-coordinator-send.png")
            journey.step("*Send the drill*, and watch: ten people are reached.")
            await page.get_by_role("button", name="Send the drill").click()
            await expect(page.get_by_role("heading", name="DRILL: Who can come?")).to_be_visible()
            people = page.get_by_role("region", name="People")
            await expect(people.get_by_text("reached")).to_have_count(10)
            journey.step("Hana answers on her phone; the page shows it by itself.")
            link = (await house.api.call("POST", "/peers/hana/inbox-link")).json()["link"]
            async with house.visit("/" + link.split("/", 3)[3], **PHONE) as inbox:
                await inbox.get_by_role("button", name="in an hour").click()
                await expect(inbox.get_by_text("you answered in an hour")).to_be_visible()
            hana = people.get_by_role("row", name="hana")
            await expect(hana).to_contain_text("answered: in an hour")
            await journey.picture(page, "console-coordinator-watch.png")
            journey.step("*Close it*: nobody is asked any more.")
            await page.get_by_role("button", name="Close it").click()
            await expect(page.locator("main")).to_contain_text("closed by")
        journey.check()

    house.run(scenario())


def test_a_visitor_logs_in_to_the_inbox_on_a_phone_and_answers(house: House, begin: Begin) -> None:
    message = {
        "type": "TASK",
        "subtype": "REQUEST",
        "sender": "component:console",
        "receiver": "peer:me",
        "content": "The plumber comes at 5. Is somebody there?",
        "wishes": {"done_when": "answered"},
    }

    async def scenario() -> None:
        journey = begin("A visitor: the inbox on a phone")
        await house.post("/messages", message)
        async with house.visit("/inbox", **PHONE) as page:
            journey.step(
                "Open the address of the node with `/inbox`, and log in with name and password."
            )
            await page.get_by_label("Name").fill("me")
            await page.get_by_label("Password").fill(PASSWORD)
            await page.get_by_role("button", name="Log in").click()
            journey.step("Read what waits.")
            waiting = page.get_by_role("article").filter(has_text="The plumber comes at 5")
            await expect(waiting).to_be_visible()
            width = await page.evaluate("document.documentElement.scrollWidth")
            assert width <= 390
            await journey.picture(page, "console-visitor-inbox.png")
            journey.step("Press *I take care of it*; it moves to *Lately* with your answer.")
            await waiting.get_by_role("button", name="I take care of it").click()
            await expect(page.get_by_text("you answered yes")).to_be_visible()
            await journey.picture(page, "console-visitor-answered.png")
        journey.check()

    house.run(scenario())
