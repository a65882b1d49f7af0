"""Gaps of a channel's log as every way of reading names them: HTTP, streams, sockets, the listener
and the command line. [CH-12, CH-14]
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
import zeep
from lxml import etree
from websockets.asyncio.client import ClientConnection, connect

from rapport.channel.agents.listener import Listener
from rapport.channel.requests.request import Batch
from rapport.channel.xmessages.envelope import read_call
from rapport.cli.main import run
from rapport.core.event import Event, Gap
from rapport.node.push import write_push
from rapport.web.soap import soap_schema

pytestmark = pytest.mark.slow

EVENTS = 30
LOST = {"first": 12, "last": 12, "reason": "damaged"}
TAIL = {"first": EVENTS, "last": EVENTS, "reason": "damaged"}
READABLE = [n for n in range(1, EVENTS + 1) if n not in (12, EVENTS)]


def flip(log: Path, number: int) -> None:
    mark = b'{"n":%d}' % number
    (path,) = (one for one in log.glob("*.log") if mark in one.read_bytes())
    path.write_bytes(path.read_bytes().replace(mark, mark[:-1] + b"!"))


@asynccontextmanager
async def damaged(served_node: Callable[..., Any], tmp_path: Path) -> AsyncIterator[Any]:
    """A node whose channel `mine` has an unreadable event in the middle and at its end."""
    async with served_node() as api:
        channel = api.node.channels.channel("mine")
        for n in range(1, EVENTS + 1):
            kind = "even" if n % 2 == 0 else "odd"
            await channel.append([Event("s", f"e{n}", kind, "", n, b'{"n":%d}' % n)])
    (log,) = (tmp_path / "site").rglob("logs/mine")
    for number in (12, EVENTS):
        flip(log, number)
    async with served_node() as api:
        yield api


def test_pages_and_batches_carry_gaps_and_only_where_there_are_any(
    served_node: Callable[..., Any], tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with damaged(served_node, tmp_path) as api:
            path = "/channels/mine/events?limit=10&after="
            pages = [(await api.call("GET", path + "0")).json()]
            while pages[-1]["next"] < EVENTS:
                pages.append((await api.call("GET", f"{path}{pages[-1]['next']}")).json())
            given = [event["position"] for page in pages for event in page["events"]]
            assert given == READABLE
            assert [page.get("gaps") for page in pages] == [None, [LOST], None, [TAIL]]

            body = {"query": "type = 'even'", "max_messages": 3}
            batch = (await api.call("POST", "/channels/mine/requests", body)).json()
            batches = [batch]
            while batch["next_token"]:
                body = {"token": batch["next_token"]}
                batch = (await api.call("POST", "/channels/mine/requests", body)).json()
                batches.append(batch)
            assert [gap for one in batches for gap in one.get("gaps", ())] == [LOST, TAIL]
            assert "gaps" not in batches[0]

    asyncio.run(scenario())


@pytest.mark.parametrize("version", ["", "12"])
def test_a_soap_batch_names_gaps_in_a_header_that_stock_clients_pass_over(
    served_node: Callable[..., Any], tmp_path: Path, version: str
) -> None:
    def page_through(url: str) -> tuple[list[int], list[list[Any]]]:
        session, history = requests.Session(), zeep.plugins.HistoryPlugin(maxlen=1)
        session.trust_env = False
        transport = zeep.Transport(session=session)
        address = f"{url}/soap/channels/mine?wsdl"
        client = zeep.Client(address, transport=transport, plugins=[history])
        source = client.bind("XMessageChannel", f"XMessageSource{version}")
        request: dict[str, Any] = {"maxNumberOfMessagesToReturn": 10}
        positions, headers = [], []
        while request.get("query", request) is not None:
            batch = source.requestMessages(request=request)
            positions += [one["XEvent"].position for one in batch.messages._value_1]
            headers.append(history.last_received["envelope"].xpath("*[local-name()='Header']/*"))
            request = {"query": batch.nextToken}
        return positions, headers

    async def scenario() -> None:
        async with damaged(served_node, tmp_path) as api:
            positions, headers = await asyncio.to_thread(page_through, api.url)
            assert positions == READABLE
            assert [len(blocks) for blocks in headers] == [0, 1, 1]
            for (block,) in headers[1:]:
                etree.XMLSchema(etree.fromstring(soap_schema())).assertValid(block)
            named = [dict(gap.attrib) for blocks in headers for block in blocks for gap in block]
            assert named == [
                {**gap, "first": str(gap["first"]), "last": str(gap["last"])}
                for gap in (LOST, TAIL)
            ]

    asyncio.run(scenario())


def test_a_pushed_soap_batch_names_gaps() -> None:
    batch = Batch(events=(), current_token="t", gaps=(Gap(12, 14, "missing"),))
    body, _headers = write_push("soap", "mine", batch)
    assert b'<env:Header><x:gaps><x:gap first="12" last="14" reason="missing"/></x:gaps>' in body
    assert read_call(body).operation == "handleMessages"


async def first_blocks(api: Any, path: str, until: str) -> list[str]:
    host, port = api.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    try:
        text = (await asyncio.wait_for(reader.readuntil(until.encode()), 10)).decode()
        return text.split("\n\n")
    finally:
        writer.close()
        await writer.wait_closed()


def test_a_stream_has_an_event_of_its_own_for_a_gap_where_it_stands(
    served_node: Callable[..., Any], tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with damaged(served_node, tmp_path) as api:
            end = f'"first":{EVENTS},"last":{EVENTS},"reason":"damaged"}}\n\n'
            found = await first_blocks(api, "/channels/mine/stream", end)
            ids = [int(b.split("id: ")[1].split("\n")[0]) for b in found if "id: " in b]
            assert ids == [*range(1, EVENTS + 1)]
            gaps = [block for block in found if "event: gap" in block]
            assert [json.loads(block.split("data: ")[1]) for block in gaps] == [LOST, TAIL]
            assert "id: 12\n" in gaps[0]

    asyncio.run(scenario())


def test_a_socket_has_a_frame_of_its_own_for_a_gap_that_costs_no_credit(
    served_node: Callable[..., Any], tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with damaged(served_node, tmp_path) as api:
            address = api.url.replace("http://", "ws://") + "/channels/mine/socket"
            async with connect(address, compression=None) as socket:
                await socket.send(
                    json.dumps({"subscribe": {"id": "a", "credit": 3, "max_batch": 10}})
                )
                frames = [await heard(socket) for _ in range(6)]
                assert [frame["gap"] for frame in frames if "gap" in frame] == [LOST, TAIL]
                assert frames.index({"id": "a", "gap": LOST}) == 2  # before the batch around it
                batches = [frame["batch"] for frame in frames if "batch" in frame]
                assert [event["position"] for batch in batches for event in batch] == READABLE

                asked = {"id": "b", "credit": 1, "after": EVENTS - 1}
                await socket.send(json.dumps({"subscribe": asked}))
                await heard(socket)
                assert await heard(socket) == {"id": "b", "gap": TAIL}
                channel = api.node.channels.channel("mine")
                await channel.append([Event("s", "new", "odd", "", 1, b"1")])
                (event,) = (await heard(socket))["batch"]
                assert event["id"] == "new"

    asyncio.run(scenario())


async def heard(socket: ClientConnection) -> Any:
    return json.loads(await asyncio.wait_for(socket.recv(), 10))


def test_a_listener_names_each_gap_once(served_node: Callable[..., Any], tmp_path: Path) -> None:
    async def scenario() -> None:
        async with damaged(served_node, tmp_path) as api:

            def listen() -> tuple[list[int], list[Gap], int]:
                place = tmp_path / "place"
                with Listener(api.url, "mine", directory=place, on_gap=told.append) as listener:
                    given: list[int] = []
                    while len(given) < len(READABLE):
                        given += [one.position for one in listener.pull(7, timeout=10)]
                    listener.pull(1, timeout=0.2)
                    return given, listener.gaps(), listener.status().unreadable

            told: list[Gap] = []
            given, gaps, unreadable = await asyncio.to_thread(listen)
            assert told == gaps
            assert given == READABLE
            assert gaps == [Gap(12, 12, "damaged"), Gap(EVENTS, EVENTS, "damaged")]
            assert unreadable == 2

    asyncio.run(scenario())


def test_the_command_line_names_gaps_on_stderr_and_prints_events_alone(
    served_node: Callable[..., Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        async with damaged(served_node, tmp_path) as api:
            count = str(len(READABLE))
            command = ["listen", "mine", "--url", api.url, "--count", count, "--json"]
            assert await asyncio.to_thread(run, command) == 0

    asyncio.run(scenario())
    told = capfd.readouterr()
    assert [json.loads(line)["position"] for line in told.out.splitlines()] == READABLE
    assert json.dumps({"gap": LOST}, separators=(",", ":")) in told.err

    site = str(tmp_path / "site")
    run(["read", "mine", "--site", site, "--json"])
    told = capfd.readouterr()
    assert [json.loads(line)["position"] for line in told.out.splitlines()] == READABLE
    assert [json.loads(line)["gap"] for line in told.err.splitlines()] == [LOST, TAIL]

    run(["read", "mine", "--site", site, "--limit", "5"])
    assert "cannot be read" not in capfd.readouterr().err
    run(["read", "mine", "--site", site, "--after", "10", "--limit", "5"])
    told = capfd.readouterr()
    assert "positions 12 to 12 cannot be read: damaged" in told.err.splitlines()
