"""A reload that is refused, or fails half-way, leaves the whole site as it was: interpretations,
tables, people and policies. [UX-2, PO-9, ME-6]
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rapport.core.errors import ChannelUnavailable, RapportError
from rapport.kernel.clock import SystemClock
from rapport.mediation.interpretations.change_requests import request_from_json
from rapport.node.node import Node
from support import running

pytestmark = pytest.mark.slow

STATIONS = """
[concepts.station.attributes]
temperature = "number"
[concepts.station.units]
temperature = "degC"
[sources.weather]
concept = "station"
attribute = "temperature"
key = "key"
value = ["temperature"]
[interpretations.us]
units = { "station.temperature" = "degF" }
[interpretations.uk]
units = { "station.temperature"="degF" }
[policies.interpretations]
hot = "us"
"""
HOT = """concepts
  station S
conditions
  temperature of S above 86
actions
  call for help
    to ana
    say "{S} is hot"
"""


@pytest.fixture
def site(building_site: Path) -> Path:
    """The secure building with stations, and a policy in their terms."""
    with (building_site / "site.toml").open("a") as file:
        file.write(STATIONS)
    (building_site / "hot.dpl").write_text(HOT)
    return building_site


def change(site: Path, name: str, old: str, new: str) -> None:
    text = (site / name).read_text()
    assert old in text
    (site / name).write_text(text.replace(old, new))


def change_all(site: Path) -> None:
    """An interpretation, a table, a person and a policy."""
    change(site, "site.toml", '"station.temperature"="degF"', '"station.temperature"="degC"')
    change(site, "persons.csv", "Grace Hopper,guest", "Grace Hopper,employee")
    change(site, "hot.dpl", "above 86", "above 90")
    with (site / "site.toml").open("a") as file:
        file.write('[peers.zoe]\naddresses = ["inbox:"]\n')


async def declare(node: Node, name: str, old: str, new: str) -> None:
    """Changes an interpretation by command."""
    updating = node.meanings.updating
    declared = await updating.inspect(
        lambda standing: standing.in_force.typed.registered[name].interpretation
    )
    text = msgspec.json.encode(declared).decode()
    assert old in text
    body = {"changes": [{"type": "declare", "interpretation": json.loads(text.replace(old, new))}]}
    await updating.change(lambda _: request_from_json(json.dumps(body).encode()))


async def everything(node: Node) -> dict[str, Any]:
    """What a reload could have changed."""
    stamps = await node.meanings.updating.inspect(lambda standing: dict(standing.in_force.stamps))
    tables = node.site.tables
    return {
        "stamps": stamps,
        "policies": node.policies.life.versions(),
        "rows": {name: tables.rows(name, heads) for name, heads in tables.columns().items()},
        "instances": list(tables.instances("person").columns["status"]),
        "looked up": node.mediation.lookups.lookup("persons", "p01", "status"),
        "peers": [one.name for one in node.directory.peers()],
        "bindings": dict(node.meanings.bindings),
    }


@contextmanager
def failing_at_the_end(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Policies cannot be taken over any more, as when the disk is full just then."""

    async def fail(*_given: object, **_named: object) -> None:
        raise ChannelUnavailable("no space is left")

    with monkeypatch.context() as patch:
        patch.setattr(node.policies.life, "take_files", fail)
        yield


def play(site: Path, story: Callable[[Node], Awaitable[None]]) -> None:
    running.play(site, story, refusing_policies=False)


def test_a_reload_that_fails_at_the_end_leaves_everything_as_it_was(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[dict[str, Any]] = []

    async def story(node: Node) -> None:
        # What was changed by command is overtaken by the file only if that is taken over.
        await declare(node, "uk", "degF", "K")
        before = await everything(node)
        change_all(site)
        with failing_at_the_end(node, monkeypatch), pytest.raises(ChannelUnavailable):
            await node.reload()
        assert await everything(node) == before
        change(site, "site.toml", '"station.temperature"="degC"', '"station.temperature"="degF"')
        change(site, "persons.csv", "Grace Hopper,employee", "Grace Hopper,guest")
        change(site, "hot.dpl", "above 90", "above 86")
        change(site, "site.toml", '[peers.zoe]\naddresses = ["inbox:"]\n', "")
        kept.append(before)

    async def again(node: Node) -> None:
        assert (await everything(node))["stamps"] == kept[0]["stamps"]
        change_all(site)
        done = await node.reload()
        assert done.interpretations == ["uk"]
        assert done.people == ["peer zoe added"]
        assert [one.name for one in done.policies] == ["hot"]
        after = await everything(node)
        assert all(after[name] != kept[0][name] for name in ("stamps", "policies", "rows"))
        assert after["looked up"] == "employee"

    play(site, story)
    play(site, again)


def test_what_a_command_changed_refuses_a_reload_before_anything_is_taken(site: Path) -> None:
    async def story(node: Node) -> None:
        await node.meanings.updating.change(
            lambda _: request_from_json(b'{"type": "remove", "name": "us"}')
        )
        while "hot" in node.policies.life.versions():
            await SystemClock().sleep(20)
        before = await everything(node)
        read = node.channels.channel("interpretations").last_position()
        change_all(site)
        with pytest.raises(RapportError) as caught:
            await node.reload()
        codes = [problem.code for problem in caught.value.problems_found()]
        assert codes == ["policy.unknown_interpretation"]
        assert await everything(node) == before
        assert node.channels.channel("interpretations").last_position() == read

    play(site, story)


FOLDER = """
[adapters.folder.folders]
alarms = "."
[peers.zoe]
addresses = ["folder:alarms"]
"""


def test_a_reload_with_a_new_adapter_that_failed_can_be_tried_again(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(node: Node) -> None:
        with (site / "site.toml").open("a") as file:
            file.write(FOLDER)
        with failing_at_the_end(node, monkeypatch), pytest.raises(ChannelUnavailable):
            await node.reload()
        done = await node.reload()
        assert done.people == ["peer zoe added"]

    play(site, story)


def test_what_was_taken_over_is_the_site_also_when_others_cannot_be_told(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(node: Node) -> None:
        async def fail() -> None:
            raise ChannelUnavailable("no space is left")

        with (site / "site.toml").open("a") as file:
            file.write(FOLDER)
        with monkeypatch.context() as patch:
            patch.setattr(node._parts.communication, "announce_reload", fail)
            with pytest.raises(ChannelUnavailable):
                await node.reload()
        assert "zoe" in [one.name for one in node.directory.peers()]
        assert "zoe" in node.site.file.values["peers"]
        await node.reload()

    play(site, story)
