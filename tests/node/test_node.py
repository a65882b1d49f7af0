"""A node starts from the last stage to the first and stops the other way; what it took it keeps."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from structlog.testing import capture_logs

from rapport.channel.backends.local import open_embedded
from rapport.channel.log.channels import LoggedChannels
from rapport.core.detection import DETECTED
from rapport.core.errors import ChannelUnavailable
from rapport.core.event import Event, make_event
from rapport.core.times import format_time
from rapport.kernel.clock import Clock, ManualClock, SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.node import Node
from rapport.node.wiring import make_node
from rapport.policy.engine.stream_steps import LATE_TYPE
from rapport.scenarios.mail_server import LocalMailServer
from rapport.scenarios.secure_building.building_play import prepare_site
from rapport.scenarios.secure_building.people import answer_link_of
from rapport.site.site import load_site
from rapport.web.app import serving

pytestmark = pytest.mark.slow

GUEST, COMPANION = "E200-01", "E100-11"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The secure building with short windows, and nobody at the other end."""
    return make_site(tmp_path / "site", mail_port=9)


def make_site(directory: Path, *, mail_port: int) -> Path:
    site = prepare_site(
        directory, mail_port=mail_port, phone_url="http://127.0.0.1:9/", answer_within="1h"
    )
    file = site / "site.toml"
    text = file.read_text().replace('lateness = "5s"', 'lateness = "200ms"')
    file.write_text(text.replace('window = "5s"', 'window = "300ms"'))
    return site


def new_node(site: Path, clock: Clock | None = None, **settings: Any) -> Node:
    return make_node(load_site(site), NodeSettings(port=0, **settings), clock or SystemClock())


def badge(id: str, time_ms: int, tag: str = GUEST) -> Event:
    """A raw reading of somebody in the lab."""
    seen = {"reader": "r1", "tag": tag, "dx": 0, "dy": 0, "t": format_time(time_ms)}
    return make_event(source="readers", id=id, type="readers.raw", time=time_ms, data=seen)


@asynccontextmanager
async def started(node: Node) -> AsyncIterator[Node]:
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 20) -> None:
    """Looks fifty times a second; fails after the deadline."""
    async with asyncio.timeout(seconds):
        while not await condition():
            await SystemClock().sleep(20)


async def ids_in(node: Node, channel: str, type: str = "") -> list[str]:
    kept = await node.channels.channel(channel).read_after(0, limit=100_000)
    return [one.event.id for one in kept if type in ("", one.event.type)]


def running_tasks(node: Node) -> list[asyncio.Task[None]]:
    """The readers in the order in which they were started: later stages, then mediation."""
    return [*node._tasks._running.values(), *node.mediation._tasks._running.values()]


def test_readers_start_from_the_last_stage_to_the_first_and_stop_the_other_way(site: Path) -> None:
    ended: list[str] = []

    async def scenario() -> None:
        node = new_node(site)
        await node.start()
        # Runs over history read no channel.
        readers = [task for task in running_tasks(node) if task.get_name() != "history.runs"]
        began = [task.get_name() for task in readers]
        assert sorted(began[:3]) == ["adapter.inbox", "adapter.mail", "adapter.webhook"]
        later = ["policy", "policy.words", "policy.load", "policy.reevaluation"]
        first = began.index("policy")
        assert began[3] == "communication"
        services = ("communication.", "message info")
        assert all(name.startswith(services) for name in began[4:first])
        assert began[first : first + 4] == later
        last = first + 4
        watch = [name for name in began[last:] if not name.startswith("mediation.")]
        assert watch == ["health"]
        for task in readers:
            task.add_done_callback(lambda done: ended.append(done.get_name()))
        await node.stop()
        mediation = [name for name in began[last:] if name != "health"]
        assert [name for name in ended if name != "health"] == [
            *reversed(mediation),
            *reversed(began[:last]),
        ]
        with pytest.raises(ChannelUnavailable, match="closed"):
            await node.append("raw.readers", [badge("1", 0)])

    asyncio.run(scenario())


async def _is(value: bool) -> bool:
    return value


def test_stopping_twice_or_without_a_start_is_no_error(site: Path) -> None:
    async def scenario() -> None:
        node = new_node(site)
        await node.stop()
        again = new_node(site)
        async with started(again):
            await again.stop()
            assert again.not_ready() == ["the readers have not been started"]

    asyncio.run(scenario())


def test_a_start_that_fails_half_way_leaves_nothing_running(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        node = new_node(site)
        before = asyncio.all_tasks()

        async def refuse() -> None:
            raise ChannelUnavailable("no room", code="channel.unavailable")

        monkeypatch.setattr(node.pushing, "start", refuse)
        with pytest.raises(ChannelUnavailable):
            await node.start()
        assert asyncio.all_tasks() > before
        await node.stop()
        assert running_tasks(node) == []

    asyncio.run(scenario())


def test_a_part_that_cannot_be_stopped_leaves_no_other_one_open(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        node = new_node(site)
        before = asyncio.all_tasks()
        await node.start()

        def failing(part: str) -> Callable[[], Awaitable[None]]:
            async def fail() -> None:
                raise OSError(f"{part} does not end")

            return fail

        for part in ("bridges", "links"):
            monkeypatch.setattr(getattr(node, part), "stop", failing(part))
        monkeypatch.setattr(node.communication._assembly.inputs, "close", failing("inputs"))
        with capture_logs() as logs, pytest.raises(OSError, match="bridges"):
            await node.stop()
        failed = [line["component"] for line in logs if line["log_level"] == "error"]
        assert failed == ["bridges", "links", "inputs", "communication"]
        assert running_tasks(node) == []
        assert asyncio.all_tasks() == before
        with pytest.raises(ChannelUnavailable, match="closed"):
            await node.append("raw.readers", [badge("1", 0)])

    asyncio.run(scenario())


def test_stopping_while_events_flow_loses_nothing_that_was_acknowledged(site: Path) -> None:
    acknowledged: list[str] = []

    async def publish(node: Node, part: int) -> None:
        number = 0
        while True:
            id = f"{part}-{number}"
            try:
                await node.append("raw.readers", [badge(id, node.clock.now_ms())])
            except ChannelUnavailable as error:
                assert error.code == "channel.closed"
                return
            acknowledged.append(id)
            number += 1

    async def scenario() -> None:
        node = new_node(site)
        await node.start()
        publishers = [asyncio.create_task(publish(node, part)) for part in range(4)]
        await until(lambda: _is(len(acknowledged) >= 100))
        async with asyncio.timeout(10):
            await node.stop()
            await asyncio.gather(*publishers)
        async with started(new_node(site)) as again:
            assert sorted(acknowledged) == sorted(await ids_in(again, "raw.readers"))
            await until(lambda: _all_meant(again, len(acknowledged)))
            assert sorted(await ids_in(again, "events")) == sorted(acknowledged)

    asyncio.run(scenario())


async def _all_meant(node: Node, count: int) -> bool:
    return node.channels.channel("events").last_position() >= count


def test_a_restart_goes_on_where_the_node_stood(site: Path) -> None:
    async def alarms(node: Node) -> list[str]:
        return await ids_in(node, "detections", DETECTED)

    async def scenario() -> None:
        clock = ManualClock(1_772_452_800_000)
        async with started(new_node(site, clock)) as node:
            await node.append("raw.readers", [badge("1", clock.now_ms())])
            await until(lambda: _all_meant(node, 1))
        async with started(new_node(site, clock)) as node:
            assert await alarms(node) == []
            await until(lambda: _passed(clock, node, 1))
            found = await alarms(node)
        async with started(new_node(site, clock)) as node:
            await clock.advance(5_000)
            await node.append("raw.readers", [badge("2", clock.now_ms())])
            await until(lambda: _passed(clock, node, 2))
            assert (await alarms(node))[:1] == found
            await node.ledger.refresh()
            await until(lambda: _messages(node, 2))
            assert len(await alarms(node)) == 2

    asyncio.run(scenario())


async def _passed(clock: ManualClock, node: Node, count: int) -> bool:
    await clock.advance(50)
    return len(await ids_in(node, "detections", DETECTED)) >= count


async def _messages(node: Node, count: int) -> bool:
    await node.ledger.refresh()
    return len(node.ledger.messages()) >= count


def test_what_was_received_before_a_long_break_is_not_late_after_it(site: Path) -> None:
    """The employee's reading was acknowledged but had no meaning yet when the node went down."""
    began = 1_772_452_800_000

    async def scenario() -> None:
        clock = ManualClock(began)
        async with started(new_node(site, clock)) as node:
            await node.append("raw.readers", [badge("guest", began)])
            await until(lambda: _all_meant(node, 1))
            await node.policy.commit()
        await _append_without_a_node(site, clock, badge("companion", began, COMPANION))
        clock.set_ms(began + 60_000)
        async with started(new_node(site, clock)) as node:
            await until(lambda: _nothing_is_pending(clock, node))
            assert await ids_in(node, "events") == ["guest", "companion"]
            assert await ids_in(node, "detections", LATE_TYPE) == []
            assert await ids_in(node, "detections", DETECTED) == []

    asyncio.run(scenario())


async def _append_without_a_node(site: Path, clock: Clock, event: Event) -> None:
    channels: LoggedChannels = open_embedded(site / ".rapport" / "log", clock)
    await channels.channel("raw.readers").append([event])
    await channels.close()


async def _nothing_is_pending(clock: ManualClock, node: Node) -> bool:
    await clock.advance(50)
    return (
        node.policy.counts.moved_by_clock > 0 and node.policy._stream.active.pending_until() is None
    )


@pytest.mark.slow
def test_a_node_whose_reader_keeps_failing_is_not_ready_until_it_is_well_again(site: Path) -> None:
    broken = True

    async def fails() -> None:
        if broken:
            raise RuntimeError("no such luck")
        await asyncio.Event().wait()

    async def ask(url: str) -> tuple[int, list[str]]:
        def get() -> tuple[int, bytes]:
            try:
                with urllib.request.urlopen(f"{url}/readyz", timeout=10) as answer:
                    return answer.status, answer.read()
            except HTTPError as refused:
                with refused:
                    return refused.code, refused.read()

        status, body = await asyncio.to_thread(get)
        return status, json.loads(body)["reasons"]

    async def scenario() -> None:
        nonlocal broken
        node = new_node(site)
        async with serving(node) as url:
            assert await ask(url) == (503, ["the readers have not been started"])
            async with started(node):
                node._tasks.start("stumbler", fails)
                await until(lambda: _is(bool(node.not_ready())))
                assert await ask(url) == (503, ["stumbler keeps failing; the log says why"])
                broken = False
                await until(lambda: _is(not node.not_ready()))
                assert await ask(url) == (200, [])

    asyncio.run(scenario())


@pytest.mark.parametrize("public_url", ["", "https://alarms.example.org/building"])
def test_links_in_messages_lead_to_the_public_address_or_to_the_endpoints(
    tmp_path: Path, public_url: str
) -> None:
    async def scenario() -> None:
        async with LocalMailServer() as mailbox:
            site = make_site(tmp_path / "site", mail_port=mailbox.port)
            node = new_node(site, public_url=public_url)
            async with serving(node) as url, started(node), asyncio.timeout(20):
                await node.append("raw.readers", [badge("1", node.clock.now_ms())])
                await mailbox.wait_for(2)
            assert url == public_url or not public_url
            for mail in mailbox.mails:
                link = answer_link_of(mail)
                assert link is not None
                assert link.startswith(f"{public_url or url}/answer/{mail['X-Rapport-Message']}/")

    asyncio.run(scenario())


def test_a_mail_server_that_hangs_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with LocalMailServer() as mailbox:
            mailbox.mood = "hangs"
            node = new_node(make_site(tmp_path / "site", mail_port=mailbox.port))
            await node.start()
            await node.append("raw.readers", [badge("1", node.clock.now_ms())])
            output = node.channels.channel("output.mail")
            assert await output.wait_after(1, timeout_ms=20_000)
            began_ns = node.clock.steady_ns()
            await node.stop()
            assert node.clock.steady_ns() - began_ns < 3_000_000_000
            mailbox.mood = "takes"
            again = new_node(tmp_path / "site")
            async with started(again), asyncio.timeout(20):
                await mailbox.wait_for(2)

    asyncio.run(scenario())


def test_who_waits_at_a_endpoint_when_it_closes_is_answered_at_once(site: Path) -> None:
    def ask(url: str) -> Any:
        with urllib.request.urlopen(f"{url}/channels/mine/events?wait=60s", timeout=70) as answer:
            return json.loads(answer.read())

    async def scenario() -> None:
        node = new_node(site)
        async with started(node):
            async with serving(node) as url:
                waiting = asyncio.create_task(asyncio.to_thread(ask, url))
                mine = node.channels.channel("mine")
                await until(lambda: _is(bool(mine.notifier._waiters)))
                began_ns = node.clock.steady_ns()
            assert node.clock.steady_ns() - began_ns < 3_000_000_000
            assert await waiting == {"channel": "mine", "events": [], "next": 0}

    asyncio.run(scenario())
