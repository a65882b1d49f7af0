"""The endpoints of channels, and the paper's user who goes away from her desk. [CH-10,
CH-14]
"""

from __future__ import annotations

import asyncio
from contextlib import redirect_stdout
from io import BytesIO, TextIOWrapper

import pytest

from rapport.channel.consumers import serve
from rapport.channel.dead_letters import append_dead_letter
from rapport.cli.main import run
from rapport.kernel.clock import SystemClock


def status(number: int, kind: str = "job.running") -> dict:
    return {
        "specversion": "1.0", "id": str(number), "source": "component", "type": kind,
        "data": {"n": number},
    }  # fmt: skip


async def ids_in(api, channel: str) -> list[str]:
    found = await api.node.channels.channel(channel).read_after(0, limit=10_000)
    return [one.event.id for one in found]


async def command(*arguments: str) -> tuple[int, str]:
    """A command in a thread of its own: it speaks with the node's endpoints."""

    def in_thread() -> tuple[int, str]:
        said = TextIOWrapper(BytesIO())
        with redirect_stdout(said):
            code = run(list(arguments))
        said.flush()
        return code, said.buffer.getvalue().decode()

    return await asyncio.to_thread(in_thread)


@pytest.mark.slow
def test_away_from_her_desk_she_has_events_forwarded_and_back_again_not(served_node):
    """Section 6.3 of the paper: nothing is lost on either side, nothing comes twice."""

    async def scenario():
        async with served_node() as api:
            publishing = asyncio.Event()
            sent: list[str] = []

            async def component():
                number = 0
                while not publishing.is_set():
                    number += 1
                    kind = "job.ended" if number % 3 == 0 else "job.running"
                    answer = await api.call("POST", "/channels/job/events", status(number, kind))
                    assert answer.status == 200
                    sent.append(str(number))

            running = asyncio.create_task(component())
            while len(sent) < 5:
                await SystemClock().sleep(5)
            plugin = {
                "name": "phone",
                "kind": "forward",
                "settings": {"to": "handheld", "where": "type = 'job.ended'"},
            }
            added = await api.call("POST", "/channels/job/interceptors", plugin)
            assert added.status == 201
            from_here = len(sent)
            while len(sent) < from_here + 20:
                await SystemClock().sleep(5)
            asked_at = len(sent)  # all of these are forwarded before it goes
            removed = await api.call("DELETE", "/channels/job/interceptors/phone")
            until_here = int((await ids_in(api, "job"))[-1])
            assert removed.status == 200
            while len(sent) < until_here + 5:
                await SystemClock().sleep(5)
            publishing.set()
            await running
            assert await ids_in(api, "job") == sent  # her desk: everything, once
            handheld = [int(id) for id in await ids_in(api, "handheld")]
            assert handheld == list(range(handheld[0], handheld[-1] + 1, 3))
            assert handheld[0] <= from_here + 4
            assert asked_at - 2 <= handheld[-1] <= until_here
            assert (await api.call("GET", "/channels/*/interceptors")).json() == []

    asyncio.run(scenario())


def test_interceptors_are_looked_after_by_command(served_node, tmp_path):
    async def scenario():
        async with served_node() as api:
            at = ("--site", str(tmp_path / "site"), "--url", api.url)
            add = ("channel", "intercept", "add", "no-noise", "raw.*", "drop")
            code, _said = await command(*add, "where=type = 'noise'", *at)
            assert code == 0
            code, said = await command("channel", "intercept", "list", "--json", *at)
            assert code == 0
            assert '"no-noise"' in said
            code, _said = await command(*add, "where=type = 'noise'", *at)
            assert code != 0
            answer = await api.call("POST", "/channels/raw.x/events", status(1, "noise"))
            assert answer.json()["positions"] == [0]
            code, _said = await command("channel", "intercept", "remove", "no-noise", *at)
            assert code == 0
            assert api.node.channels.interceptors.listed() == []
            bad = await api.call("POST", "/channels/x/interceptors", {"name": "a", "kind": "cuont"})
            assert (bad.status, "count" in bad.json()["hint"]) == (404, True)
            strange = await api.call("POST", "/channels/x/interceptors", b"[")
            assert strange.status == 400

    asyncio.run(scenario())


@pytest.mark.slow
def test_dead_letters_are_looked_after_by_endpoint_and_command(served_node, tmp_path):
    async def scenario():
        async with served_node() as api:
            channels, mended = api.node.channels, asyncio.Event()
            handled: list[str] = []

            async def handle(batch):
                if not mended.is_set() and any(one.event.id == "2" for one in batch):
                    raise ValueError("not yet")
                handled.extend(one.event.id for one in batch)
                return None

            reader = asyncio.create_task(serve(channels, "job", "r", handle, api.node.clock))
            await api.call("POST", "/channels/job/events", [status(n) for n in (1, 2, 3)])
            while len(handled) < 2:
                await SystemClock().sleep(5)
            await asyncio.sleep(0.05)
            (letter,) = (await api.call("GET", "/dead-letters?channel=job")).json()
            assert (letter["event_position"], letter["code"]) == (2, "ValueError")
            shown = await api.call("GET", f"/dead-letters/{letter['id']}")
            assert shown.json()["event"]["id"] == "2"
            mended.set()
            at = ("--site", str(tmp_path / "site"), "--url", api.url)
            code, _said = await command("dead-letters", "replay", letter["id"], *at)
            assert code == 0
            while "2" not in handled:
                await SystemClock().sleep(5)
            assert sorted(handled) == ["1", "2", "3"]
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            (stored, *_) = await channels.channel("job").read_after(0)
            await append_dead_letter(channels, "job", "gone", stored, ValueError("no"), 3)
            code, said = await command("dead-letters", "list", "--reader", "gone", "--json", *at)
            assert (code, said.count('"id"')) == (0, 1)
            code, _said = await command("dead-letters", "forget", "--reader", "gone", *at)
            assert code == 0
            assert (await api.call("GET", "/dead-letters?reader=gone")).json() == []
            unknown = await api.call("GET", "/dead-letters/xyz")
            assert unknown.status == 404

    asyncio.run(scenario())


def test_a_channel_shows_its_state_and_forgets_a_reader(served_node, tmp_path):
    async def scenario():
        async with served_node() as api:
            await api.node.channels.subscribe("job", "left")
            await api.call("POST", "/channels/job/events", status(1))
            found = (await api.call("GET", "/channels/job/state")).json()
            assert (found["first"], found["last"]) == (1, 1)
            assert found["readers"] == [
                {"reader": "left", "position": 0, "behind": 1, "skipped": 0}
            ]
            at = ("--site", str(tmp_path / "site"), "--url", api.url)
            assert (await command("channel", "state", "job", *at))[0] == 0
            assert (await command("channel", "forget-reader", "job", "left", *at))[0] == 0
            assert (await api.call("GET", "/channels/job/state")).json()["readers"] == []
            assert (await api.call("DELETE", "/channels/job/readers/left")).status == 404
            assert (await api.call("GET", "/channels/nothing/state")).status == 404

    asyncio.run(scenario())
