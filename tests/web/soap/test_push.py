"""Push over HTTP: a SOAP sink is found by its WSDL and called; nodes that are killed lose
nothing. [CH-2, CH-12]
"""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rapport.cli.main import run
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.node import Node
from rapport.node.wiring import make_node
from rapport.scenarios.secure_building.building_play import prepare_site
from rapport.scenarios.webhook_sink import WebhookSink
from rapport.site.site import load_site
from rapport.web.app import serving
from rapport.web.soap import wsdl
from support.processes.node import NodeProcess

pytestmark = pytest.mark.slow

PATIENCE = 30.0
ROUNDS = 4


def site_that_pushes(directory: Path) -> Path:
    site = prepare_site(
        directory, mail_port=9, phone_url="http://127.0.0.1:9/x", answer_within="60s"
    )
    file = site / "site.toml"
    file.write_text(f'[channels]\npush_to = ["http://127.0.0.1:*"]\n\n{file.read_text()}')
    return site


async def until(fact: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not fact():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def play(directory: Path, scenario: Callable[[Node, str], Any]) -> None:
    async def whole() -> None:
        site = load_site(site_that_pushes(directory / "site"))
        node = make_node(site, NodeSettings(port=0), SystemClock())
        try:
            async with serving(node) as url:
                await node.start()
                await scenario(node, url)
        finally:
            await node.stop()

    asyncio.run(whole())


@pytest.mark.parametrize("version", ["", "12"])
def test_a_stock_client_subscribes_a_sink_by_its_wsdl(
    tmp_path: Path, stock: Any, messages: Any, version: str
) -> None:
    async def scenario(node: Node, url: str) -> None:
        def subscribe() -> Any:
            lab = stock(url, "lab", version)
            lab.publish(*[{"type": "t", "source": "s", "id": str(n)} for n in range(1, 8)])
            return lab.request(
                subscriberWSDL=f"{url}/soap/channels/copy?wsdl", maxNumberOfMessagesToPush=3
            )

        def cancel(token: str) -> Any:
            return stock(url, "lab").request(query=token, suggestedLeaseDurationInMinutes=0)

        batch = await asyncio.to_thread(subscribe)
        assert (messages(batch), batch.nextToken, batch.leaseDurationInMinutes) == ([], None, 10)
        copy = node.channels.channel("copy")
        await until(lambda: copy.last_position() == 7)
        stored = await copy.read_after(0)
        assert [(one.event.source, one.event.id) for one in stored] == [
            ("s", str(n)) for n in range(1, 8)
        ]
        await until(lambda: node.pushing.pushes()[0].push.batches == 3)
        await asyncio.to_thread(cancel, batch.currentToken)
        assert node.pushing.pushes() == []

    play(tmp_path, scenario)


def test_the_wsdl_itself_may_be_given_and_its_address_must_be_allowed(
    tmp_path: Path, stock: Any
) -> None:
    async def scenario(node: Node, url: str) -> None:
        def steps() -> None:
            lab = stock(url, "lab")
            lab.publish({"type": "t", "source": "s", "id": "1"})
            lab.request(subscriberWSDL=wsdl(f"{url}/soap/channels/copy").decode())
            with pytest.raises(Exception, match="does not let its node push"):
                lab.request(subscriberWSDL=wsdl("http://169.254.169.254/x").decode())

        await asyncio.to_thread(steps)
        await until(lambda: node.channels.channel("copy").last_position() == 1)
        assert len(node.pushing.pushes()) == 1

    play(tmp_path, scenario)


def test_a_fault_of_the_sink_is_tried_again_and_told(tmp_path: Path, stock: Any) -> None:
    async def scenario(node: Node, url: str) -> None:
        def subscribe() -> None:
            lab = stock(url, "lab")
            lab.publish({"type": "t", "source": "s", "id": "1"})
            # Only the node itself appends to `events`: its sink answers with a fault.
            lab.request(subscriberWSDL=f"{url}/soap/channels/events?wsdl")

        await asyncio.to_thread(subscribe)
        await until(lambda: node.pushing.pushes()[0].failures > 0)
        assert "HTTP 403" in node.pushing.pushes()[0].trouble

    play(tmp_path, scenario)


class Receiver:
    """A webhook on a thread of its own, so that the test may block."""

    def __init__(self) -> None:
        self.sink = WebhookSink()
        self._loop = asyncio.new_event_loop()

    @contextmanager
    def open(self) -> Iterator[None]:
        thread = threading.Thread(target=self._loop.run_forever)
        thread.start()
        self.call(self.sink.come_up())
        try:
            yield
        finally:
            self.call(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            self._loop.close()

    async def _close(self) -> None:
        """Returns when the connections that were cut are closed, too."""
        await self.sink.go_down()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0.05)

    def call(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def batches(self) -> list[tuple[str, list[str]]]:
        bodies = [json.loads(one.body) for one in list(self.sink.posted)]
        return [(body["current_token"], [one["id"] for one in body["events"]]) for body in bodies]


def post(node: NodeProcess, path: str, body: Any) -> Any:
    assert node.doors is not None
    connection = http.client.HTTPConnection(*node.doors, timeout=10)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200
        return json.loads(answer.read())
    finally:
        connection.close()


def test_a_node_killed_again_and_again_pushes_every_event(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site, receiver = site_that_pushes(tmp_path / "site"), Receiver()
    with receiver.open(), NodeProcess(site) as node:
        node.start()
        begun = post(
            node,
            "/channels/lab/requests",
            {"query": {}, "push_address": receiver.sink.url, "max_push": 4},
        )
        assert (begun["events"], begun["lease_minutes"]) == ([], 10)
        sent: list[str] = []
        for round in range(ROUNDS):
            ids = [f"{round}-{number}" for number in range(10)]
            post(
                node,
                "/channels/lab/events",
                [{"id": one, "source": "s", "type": "t"} for one in ids],
            )
            sent += ids
            receiver.sink.status = 503 if round == 1 else 204
            threading.Event().wait(0.03 * round)  # killed at different moments of the delivery
            node.kill()
            node.start()
        receiver.sink.status = 204
        by_token: dict[str, list[str]] = {}
        deadline = SystemClock().steady_ns() + int(PATIENCE * 1e9)
        while [one for ids in by_token.values() for one in ids] != sent:
            assert SystemClock().steady_ns() < deadline, "".join(node.told[-12:])
            threading.Event().wait(0.05)
            by_token = {}
            for token, ids in receiver.batches():
                assert by_token.setdefault(token, ids) == ids
        _list_and_cancel(site, node, capsys)


def _list_and_cancel(site: Path, node: NodeProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert node.doors is not None
    where = ["--site", str(site), "--url", f"http://{node.doors[0]}:{node.doors[1]}"]
    capsys.readouterr()
    assert run(["push", "list", "--json", *where]) == 0
    (push,) = json.loads(capsys.readouterr().out)
    assert (push["channel"], push["failures"], push["trouble"]) == ("lab", 0, "")
    assert run(["push", "cancel", push["session"], *where]) == 0
    assert run(["push", "cancel", push["session"], *where]) == 2
    capsys.readouterr()
    assert run(["push", "list", "--json", *where]) == 0
    assert json.loads(capsys.readouterr().out) == []
