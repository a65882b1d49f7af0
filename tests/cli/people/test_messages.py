"""The commands around messages: beside a log without a node, and at a running node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rapport.channel.backends.local import open_embedded
from rapport.cli.local_site import data_directory
from rapport.cli.main import run
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import ManualClock, SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.node.wiring import make_node
from rapport.scenarios.secure_building.building_play import prepare_site
from rapport.site.site import load_site
from rapport.web.app import serving

NOON = 1_772_452_800_000
ANA, BEN = Identifier("peer", "ana"), Identifier("peer", "ben")


def written(number: int, **fields: Any) -> Any:
    fields = {"type": "TASK", "subtype": "REQUEST", "sender": ANA, "receiver": BEN} | fields
    message = Message(id=f"m{number}", **fields)
    return message.to_event(source="test", time=NOON + number, fate="queued")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    made = prepare_site(
        tmp_path / "site", mail_port=9, phone_url="http://127.0.0.1:9/x", answer_within="60s"
    )
    with (made / "site.toml").open("a") as file:
        file.write('\n[messages.TASK]\ntext = "Something to do."\n')
    return made


@pytest.fixture
def logged(site: Path) -> Path:
    """A site whose node ran once and is gone."""

    async def fill() -> None:
        channels = open_embedded(data_directory(site) / "log", ManualClock(NOON))
        events = [written(number, content=f"Check pump {number}") for number in range(5)]
        await channels.channel("log").append([*events, written(5, type="NOTE", sender=BEN)])
        await channels.close()

    asyncio.run(fill())
    return site


def test_messages_are_found_without_a_node(
    logged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(*options: str) -> list[str]:
        assert run(["messages", "--site", str(logged), "--json", *options]) == 0
        return [one["id"] for one in json.loads(capsys.readouterr().out)]

    assert found() == ["m5", "m4", "m3", "m2", "m1", "m0"]
    assert found("--oldest", "--limit", "2") == ["m0", "m1"]
    assert found("--type", "NOTE") == ["m5"]
    assert found("--sender", "ana", "--contains", "PUMP 3") == ["m3"]
    assert found("--id", "m2") == ["m2"]
    assert found("--since", "2026-03-02T12:00:00Z", "--fate", "open", "--limit", "1") == ["m5"]
    assert found("--since", "1 h") == []


def test_messages_are_shown_as_a_table(logged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["messages", "--site", str(logged), "--type", "NOTE"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split("\t")[:3] == ["time", "type", "subtype"]
    assert row.split("\t")[:6] == [
        *("2026-03-02T12:00:00.005Z", "NOTE", "REQUEST", "peer:ben", "peer:ben", "open")
    ]


@pytest.mark.parametrize(
    "options", [["--limit", "0"], ["--sender", "a:b"], ["--since", "soon"], ["--fate", "x"]]
)
def test_wrong_criteria_are_wrong_use(
    logged: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["messages", "--site", str(logged), *options]) == 2
    assert capsys.readouterr().out == ""


@asynccontextmanager
async def running(site: Path) -> AsyncIterator[Any]:
    node = make_node(load_site(site), NodeSettings(port=0), SystemClock())
    try:
        async with serving(node) as url:
            await node.start()
            yield lambda *words: asyncio.to_thread(run, [*words, "--site", str(site), "--url", url])
    finally:
        await node.stop()


@pytest.mark.slow
def test_rules_information_and_messages_at_a_running_node(
    logged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said() -> Any:
        return json.loads(capsys.readouterr().out)

    async def scenario() -> None:
        async with running(logged) as rapport:
            assert await rapport("routing", "add", "peer:ben", "--type", "TASK") == 0
            rule = capsys.readouterr().out.strip()
            assert await rapport("routing", "list", "--json") == 0
            assert [one["id"] for one in said()] == [rule]
            assert await rapport("routing", "list") == 0
            assert capsys.readouterr().out.splitlines()[1].split("\t")[1:3] == ["TASK", "any"]
            assert await rapport("routing", "add", "peer:ben") == 2
            assert "routing.matches_everything" in capsys.readouterr().err
            assert await rapport("routing", "remove", rule) == 0
            assert said()["to"] == ["peer:ben"]
            assert await rapport("routing", "remove", rule) == 2
            capsys.readouterr()

            assert await rapport("info", "show", "TASK", "REQUEST") == 0
            assert capsys.readouterr().out == "TASK\nSomething to do.\n"
            new = tmp_path / "task.json"
            new.write_text('{"text": "Check a machine.", "schema": {"type": "string"}}')
            assert await rapport("info", "set", str(new), "TASK", "REQUEST") == 0
            assert said()["origin"] == "added"
            assert await rapport("info", "list", "--json") == 0
            assert ("TASK", "REQUEST") in [(one["type"], one["subtype"]) for one in said()]
            assert await rapport("info", "remove", "TASK", "REQUEST") == 0
            capsys.readouterr()
            assert await rapport("info", "show", "TSAK") == 2
            assert "did you mean 'TASK'?" in capsys.readouterr().err

            assert await rapport("messages", "--json", "--sender", "ana", "--limit", "2") == 0
            assert [one["id"] for one in said()] == ["m4", "m3"]

    asyncio.run(scenario())
