"""One reading in the interpretation of its producer, the canonical model and a desk's own units, at
every endpoint of a real node.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import pytest
from websockets.asyncio.client import connect

from rapport.cli.main import run as command
from rapport.client import AsyncListener, Listener, Mediator
from rapport.scenarios.webhook_sink import WebhookSink

pytestmark = pytest.mark.slow

SITE = """
[concepts.station.attributes]
temperature = "number"
[concepts.station.units]
temperature = "degC"
[sources.weather]
concept = "station"
attribute = "temperature"
interpretation = "lab"
type = "lab station"
[interpretations.us]
units = { "station.temperature" = "degF" }
[interpretations.lab]
units = { "station.temperature" = "K" }
"""
TOKENS = {"desk": "Kq7xW2mZ9pLr4TnV8cYd1BfG", "chief": "bH3sJ6vQ1zXw5RtN9kMe7UaP"}
RAW = {"key": "s1", "temperature": 298.15, "firmware": "7"}


@asynccontextmanager
async def weather(
    served_node: Callable[..., Any], more: str = "", **options: Any
) -> AsyncIterator[Any]:
    """A node that has received and mediated one reading."""
    async with served_node(site_text=SITE + more, **options) as api:
        await send(api, RAW)
        yield api


async def send(api: Any, *raws: Any, headers: dict[str, str] | None = None) -> None:
    events = api.node.channels.channel("events")
    before = events.last_position()
    assert (await api.call("POST", "/sources/weather", list(raws), headers)).status == 200
    assert await events.wait_after(before + len(raws) - 1, timeout_ms=10_000)


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 40))


def payloads(events: list[Any]) -> list[Any]:
    return [one["data"] for one in events]


US = {"key": "s1", "temperature": pytest.approx(77.0)}


def test_everybody_reads_the_page_in_their_own_terms(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with weather(served_node) as api:
            path = "/channels/events/events"
            (root,) = (await api.call("GET", path)).json()["events"]
            assert root["data"]["value"] == pytest.approx([25.0])
            page = (await api.call("GET", f"{path}?interpretation=us")).json()
            (us,) = page["events"]
            assert page["next"] == 1
            assert us["position"] == 1
            assert us["type"] == "us station"
            assert us["interpretation"].startswith("us@")
            assert {name: us["data"][name] for name in US} == US
            (lab,) = (await api.call("GET", f"{path}?interpretation=lab")).json()["events"]
            assert lab["data"] == RAW
            (late,) = (
                await api.call("GET", "/channels/raw.weather/events?interpretation=us")
            ).json()["events"]
            assert late["data"] == us["data"]
            assert (await api.call("GET", f"{path}?interpretation=root")).json()["events"] == [root]

    run(scenario)


def test_an_unknown_interpretation_is_refused_with_the_nearest_name(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with weather(served_node) as api:
            for path, body in (
                ("/channels/events/events?interpretation=uss&wait=30s", None),
                ("/channels/events/stream?interpretation=uss", None),
                ("/channels/events/requests", {"query": {}, "interpretation": "uss"}),
            ):
                answer = await api.call("POST" if body else "GET", path, body)
                assert 400 <= answer.status < 500, answer
                assert answer.json()["title"] == "interpretation.unknown"
                assert "us" in answer.json()["hint"]

    run(scenario)


def test_requests_and_their_tokens_stay_in_the_same_words(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with weather(served_node) as api:
            await send(api, *({"key": f"s{n}", "temperature": 300 + n} for n in range(5)))
            path = "/channels/events/requests"
            asked = {
                "query": "data.temperature > 81",
                "interpretation": "us",
                "max_messages": 2,
            }
            found, batch = [], (await api.call("POST", path, asked)).json()
            again = (await api.call("POST", path, {"token": batch["current_token"]})).json()
            assert again["events"] == batch["events"]
            while True:
                found += payloads(batch["events"])
                if not batch["next_token"]:
                    break
                batch = (await api.call("POST", path, {"token": batch["next_token"]})).json()
            assert [one["key"] for one in found] == ["s1", "s2", "s3", "s4"]
            assert found[0]["temperature"] == pytest.approx(82.13)
            counts = api.node.outgoing.statistics.counts["us"]
            assert counts.transformed == 4

    run(scenario)


def test_a_condition_in_own_terms_needs_a_channel_of_root(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with weather(served_node) as api:
            asked: dict[str, Any] = {"query": "data.temperature > 81", "interpretation": "us"}
            answer = await api.call("POST", "/channels/raw.weather/requests", asked)
            assert (answer.status, answer.json()["title"]) == (422, "feature.unsupported")
            asked["query"] = {}
            (one,) = (await api.call("POST", "/channels/raw.weather/requests", asked)).json()[
                "events"
            ]
            assert one["type"] == "us station"
            bad = {"query": {"script": "x"}, "kind": "script", "interpretation": "us"}
            answer = await api.call("POST", "/channels/events/requests", bad)
            assert (answer.status, answer.json()["title"]) == (400, "request.bad_field")

    run(scenario)


def _first_blocks(url: str, count: int) -> list[dict[str, str]]:
    blocks: list[dict[str, str]] = []
    with urllib.request.urlopen(url, timeout=20) as answer:
        block: dict[str, str] = {}
        for line in answer:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                block[name] = value
            elif "data" in block or "id" in block:
                blocks.append(block)
                block = {}
                if len(blocks) == count:
                    return blocks
            else:
                block = {}
    return blocks


def test_streams_are_in_own_terms_history_and_live(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with weather(served_node) as api:
            query = quote("data.temperature > 76")
            url = f"{api.url}/channels/events/stream?interpretation=us&query={query}"
            reading = asyncio.create_task(asyncio.to_thread(_first_blocks, url, 2))
            lab = f"{api.url}/channels/events/stream?interpretation=lab"
            as_sent = asyncio.create_task(asyncio.to_thread(_first_blocks, lab, 3))
            await send(api, {"key": "cold", "temperature": 1}, {"key": "hot", "temperature": 400})
            old, live = await reading
            assert (old["id"], live["id"]) == ("1", "3")
            assert json.loads(live["data"])["data"]["key"] == "hot"
            assert [json.loads(one["data"])["data"]["key"] for one in await as_sent] == [
                "s1",
                "cold",
                "hot",
            ]
            assert json.loads((await as_sent)[0]["data"])["data"] == RAW

    run(scenario)


def test_a_socket_carries_subscriptions_in_several_interpretations(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with weather(served_node) as api:
            address = api.url.replace("http://", "ws://") + "/channels/events/socket"
            async with connect(address, compression=None) as socket:
                for words in ("us", "lab", "root", ""):
                    asked = {"id": f"in {words}", "interpretation": words}
                    await socket.send(json.dumps({"subscribe": asked}))
                found: dict[str, Any] = {}
                while len(found) < 4:
                    frame = json.loads(await asyncio.wait_for(socket.recv(), 10))
                    if "batch" in frame:
                        found[frame["id"]] = frame
                (us,) = payloads(found["in us"]["batch"])
                assert {name: us[name] for name in US} == US
                assert payloads(found["in lab"]["batch"]) == [RAW]
                assert found["in root"]["batch"] == found["in "]["batch"]
                await socket.send(json.dumps({"subscribe": {"id": "x", "interpretation": "uss"}}))
                error = json.loads(await asyncio.wait_for(socket.recv(), 10))["error"]
                assert error["title"] == "interpretation.unknown"
                assert "us" in error["hint"]
                token = found["in us"]["current_token"]
                await socket.send(json.dumps({"subscribe": {"id": "again", "token": token}}))
                frames = [json.loads(await asyncio.wait_for(socket.recv(), 10)) for _ in range(2)]
                assert payloads(frames[1]["batch"]) == [us]

    run(scenario)


def test_thirty_readers_of_one_interpretation_cost_one_transformation(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with weather(served_node) as api:
            path = "/channels/events/events?interpretation=us"
            for _ in range(30):
                assert (await api.call("GET", path)).status == 200
            counts = api.node.outgoing.statistics.counts["us"]
            assert (counts.transformed, counts.from_cache) == (1, 29)
            text = (await api.call("GET", "/metrics")).body.decode()
            sample = 'rapport_outgoing_events_total{interpretation="us",what="transformed"} 1.0'
            assert sample in text

    run(scenario)


def test_originals_are_for_those_who_may_read_them(served_node: Callable[..., Any]) -> None:
    access = """
[access.desk]
token = "env:DESK_TOKEN"
subscribe = ["events"]
[access.chief]
token = "env:CHIEF_TOKEN"
publish = ["*"]
subscribe = ["*"]
"""

    async def scenario() -> None:
        async with served_node(site_text=SITE + access) as api:
            await send(api, RAW, headers={"Authorization": f"Bearer {TOKENS['chief']}"})
            seen = {}
            for who, token in TOKENS.items():
                answer = await api.call(
                    "GET",
                    "/channels/events/events?interpretation=lab",
                    headers={"Authorization": f"Bearer {token}"},
                )
                (seen[who],) = payloads(answer.json()["events"])
            assert seen["chief"] == RAW
            assert "firmware" not in seen["desk"]
            assert seen["desk"]["temperature"] == pytest.approx(298.15)

    with pytest.MonkeyPatch.context() as patch:
        for who, token in TOKENS.items():
            patch.setenv(f"{who.upper()}_TOKEN", token)
        run(scenario)


def test_listeners_hear_in_their_own_terms(served_node: Callable[..., Any], tmp_path: Any) -> None:
    async def scenario() -> None:
        async with weather(served_node) as api:

            def listen(directory: str) -> list[Any]:
                with Listener(
                    api.url,
                    "events",
                    "data.temperature > 76",
                    interpretation="us",
                    directory=tmp_path / directory,
                ) as listener:
                    return [one.event.payload() for one in listener.pull(1, timeout=10)]

            (us,) = await asyncio.to_thread(listen, "a")
            assert {name: us[name] for name in US} == US
            assert await asyncio.to_thread(_nothing_new, api.url, tmp_path / "a") == []
            async with AsyncListener(api.url, "events", interpretation="lab") as listener:
                (lab,) = await listener.pull(1, timeout=10)
                assert lab.event.payload() == RAW

    run(scenario)


def _nothing_new(url: str, directory: Any) -> list[Any]:
    with Listener(
        url, "events", "data.temperature > 76", interpretation="us", directory=directory
    ) as listener:
        return listener.pull(1, timeout=0.3)


def test_a_mediator_at_the_clients_edge_gives_what_the_node_gives(
    served_node: Callable[..., Any],
) -> None:
    async def scenario() -> None:
        async with weather(served_node) as api:
            node = api.node
            stored = await node.channels.channel("events").read_after(0)
            mediator = Mediator((await api.call("GET", "/interpretations/spoken")).body, "us")
            (by_node,) = await node.outgoing.view("events", stored, "us")
            assert mediator.from_root(stored[0].event) == [by_node.event]
            assert mediator.stamp == by_node.event.headers["interpretation"]
            ((kind, value),) = mediator.to_root("us station", {"key": "s9", "temperature": 77})
            assert (kind, value["key"]) == ("station", "s9")
            assert value["temperature"] == pytest.approx(25.0)

    run(scenario)


def test_what_is_pushed_is_in_the_subscribers_words(served_node: Callable[..., Any]) -> None:
    async def scenario() -> None:
        push_to = '[channels]\npush_to = ["http://127.0.0.1:*"]\n'
        async with WebhookSink() as sink, weather(served_node, push_to) as api:
            asked = {"query": {}, "interpretation": "us", "push_address": sink.url}
            answer = await api.call("POST", "/channels/events/requests", asked)
            assert answer.status == 200
            await asyncio.wait_for(sink.wait_for(1), 20)
            (us,) = payloads(json.loads(sink.posted[0].body)["events"])
            assert {name: us[name] for name in US} == US

    run(scenario)


def test_the_terminal_reads_and_listens_in_any_words(
    served_node: Callable[..., Any], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    async def scenario() -> None:
        async with weather(served_node) as api:
            site = ["--site", str(api.node.site.directory)]
            heard = ["listen", "events", "--as", "us", "--url", api.url, "--count", "1", "--json"]
            assert await asyncio.to_thread(command, heard) == 0
            assert json.loads(capsysbinary.readouterr().out)["type"] == "us station"
            read = ["read", "events", "--json", *site]
            for words, expected in (("us", 77.0), ("lab", 298.15)):
                assert await asyncio.to_thread(command, [*read, "--as", words]) == 0
                said = json.loads(capsysbinary.readouterr().out)
                assert said["data"]["temperature"] == pytest.approx(expected)
            late = ["read", "raw.weather", "--as", "us", "--json", *site]
            assert await asyncio.to_thread(command, late) == 0
            assert json.loads(capsysbinary.readouterr().out)["type"] == "us station"
            assert await asyncio.to_thread(command, [*read, "--as", "uss"]) != 0
            assert b"'us'" in capsysbinary.readouterr().err

    run(scenario)
