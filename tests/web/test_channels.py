"""The doors for looking after channels, and the paper's user who goes away from her desk. [CH-10,
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


async def ids_in(doors, channel: str) -> list[str]:
    found = await doors.node.channels.channel(channel).read_after(0, limit=10_000)
    return [one.event.id for one in found]


async def command(*arguments: str) -> tuple[int, str]:
    """A command in a thread of its own: it speaks with the node's doors."""

    def in_thread() -> tuple[int, str]:
        said = TextIOWrapper(BytesIO())
        with redirect_stdout(said):
            code = run(list(arguments))
        said.flush()
        return code, said.buffer.getvalue().decode()

    return await asyncio.to_thread(in_thread)


@pytest.mark.slow
def test_away_from_her_desk_she_has_events_forwarded_and_back_again_not(with_doors):
    """Section 6.3 of the paper: nothing is lost on either side, nothing comes twice."""

    async def scenario():
        async with with_doors() as doors:
            publishing = asyncio.Event()
            sent: list[str] = []

            async def component():
                number = 0
                while not publishing.is_set():
                    number += 1
                    kind = "job.ended" if number % 3 == 0 else "job.running"
                    answer = await doors.ask("POST", "/channels/job/events", status(number, kind))
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
            added = await doors.ask("POST", "/channels/job/interceptors", plugin)
            assert added.status == 201
            from_here = len(sent)
            while len(sent) < from_here + 20:
                await SystemClock().sleep(5)
            asked_at = len(sent)  # all of these are forwarded before it goes
            removed = await doors.ask("DELETE", "/channels/job/interceptors/phone")
            until_here = int((await ids_in(doors, "job"))[-1])
            assert removed.status == 200
            while len(sent) < until_here + 5:
                await SystemClock().sleep(5)
            publishing.set()
            await running
            assert await ids_in(doors, "job") == sent  # her desk: everything, once
            handheld = [int(id) for id in await ids_in(doors, "handheld")]
            assert handheld == list(range(handheld[0], handheld[-1] + 1, 3))
            assert handheld[0] <= from_here + 4
            assert asked_at - 2 <= handheld[-1] <= until_here
            assert (await doors.ask("GET", "/channels/*/interceptors")).json() == []

    asyncio.run(scenario())


def test_interceptors_are_looked_after_by_command(with_doors, tmp_path):
    async def scenario():
        async with with_doors() as doors:
            at = ("--site", str(tmp_path / "site"), "--url", doors.url)
            add = ("channel", "intercept", "add", "no-noise", "raw.*", "drop")
            code, _said = await command(*add, "where=type = 'noise'", *at)
            assert code == 0
            code, said = await command("channel", "intercept", "list", "--json", *at)
            assert code == 0
            assert '"no-noise"' in said
            code, _said = await command(*add, "where=type = 'noise'", *at)
            assert code != 0
            answer = await doors.ask("POST", "/channels/raw.x/events", status(1, "noise"))
            assert answer.json()["positions"] == [0]
            code, _said = await command("channel", "intercept", "remove", "no-noise", *at)
            assert code == 0
            assert doors.node.channels.interceptors.listed() == []
            bad = await doors.ask(
                "POST", "/channels/x/interceptors", {"name": "a", "kind": "cuont"}
            )
            assert (bad.status, "count" in bad.json()["hint"]) == (404, True)
            strange = await doors.ask("POST", "/channels/x/interceptors", b"[")
            assert strange.status == 400

    asyncio.run(scenario())


@pytest.mark.slow
def test_dead_letters_are_looked_after_by_door_and_command(with_doors, tmp_path):
    async def scenario():
        async with with_doors() as doors:
            channels, mended = doors.node.channels, asyncio.Event()
            handled: list[str] = []

            async def handle(batch):
                if not mended.is_set() and any(one.event.id == "2" for one in batch):
                    raise ValueError("not yet")
                handled.extend(one.event.id for one in batch)
                return None

            reader = asyncio.create_task(serve(channels, "job", "r", handle, doors.node.clock))
            await doors.ask("POST", "/channels/job/events", [status(n) for n in (1, 2, 3)])
            while len(handled) < 2:
                await SystemClock().sleep(5)
            await asyncio.sleep(0.05)
            (letter,) = (await doors.ask("GET", "/dead-letters?channel=job")).json()
            assert (letter["event_position"], letter["code"]) == (2, "ValueError")
            shown = await doors.ask("GET", f"/dead-letters/{letter['id']}")
            assert shown.json()["event"]["id"] == "2"
            mended.set()
            at = ("--site", str(tmp_path / "site"), "--url", doors.url)
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
            assert (await doors.ask("GET", "/dead-letters?reader=gone")).json() == []
            unknown = await doors.ask("GET", "/dead-letters/xyz")
            assert unknown.status == 404

    asyncio.run(scenario())


def test_a_channel_shows_its_state_and_forgets_a_reader(with_doors, tmp_path):
    async def scenario():
        async with with_doors() as doors:
            await doors.node.channels.subscribe("job", "left")
            await doors.ask("POST", "/channels/job/events", status(1))
            found = (await doors.ask("GET", "/channels/job/state")).json()
            assert (found["first"], found["last"]) == (1, 1)
            assert found["readers"] == [
                {"reader": "left", "position": 0, "behind": 1, "skipped": 0}
            ]
            at = ("--site", str(tmp_path / "site"), "--url", doors.url)
            assert (await command("channel", "state", "job", *at))[0] == 0
            assert (await command("channel", "forget-reader", "job", "left", *at))[0] == 0
            assert (await doors.ask("GET", "/channels/job/state")).json()["readers"] == []
            assert (await doors.ask("DELETE", "/channels/job/readers/left")).status == 404
            assert (await doors.ask("GET", "/channels/nothing/state")).status == 404

    asyncio.run(scenario())
