"""Policies of a running node when its files, tables or interpretations change: all or nothing, at
one place. [PO-9, ME-6, ME-9]
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from rapport.core.detection import DETECTED, Detection
from rapport.core.errors import ChannelUnavailable, RapportError
from rapport.core.event import Event, make_event
from rapport.kernel.clock import SystemClock
from rapport.kernel.settings import NodeSettings
from rapport.mediation.interpretations.change_requests import request_from_json
from rapport.node.node import Node
from rapport.node.wiring import make_node
from rapport.policy.plan import Plan
from rapport.site.site import load_site
from support import running

pytestmark = pytest.mark.slow

WATCH = """concepts
  person A (status='guest')
  room R (security='restricted')
conditions
  A is inside R
actions
  raise alarm
"""
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
Story = Callable[[Node], Awaitable[None]]


@pytest.fixture
def site(building_site: Path) -> Path:
    """The secure building without its own policy, with a short lateness."""
    (building_site / "secure-building.dpl").unlink()
    change(building_site, "site.toml", 'lateness = "5s"', 'lateness = "200ms"')
    return building_site


def change(site: Path, name: str, old: str, new: str) -> None:
    text = (site / name).read_text()
    assert old in text
    (site / name).write_text(text.replace(old, new))


def play(site: Path, story: Story) -> None:
    running.play(site, story, refusing_policies=False)


def states(node: Node) -> dict[str, str]:
    return {policy.name: policy.state for policy in node.policies.life.policies()}


def seen(id: str, person: str) -> Event:
    return make_event(
        source="readers",
        id=id,
        type="person.position",
        time=SystemClock().now_ms(),
        data={"key": person, "value": [5, 4]},
    )


async def until_found(node: Node, id: str) -> list[str]:
    """The persons that were detected, when the reading with this id is among the causes."""
    while True:
        kept = await node.channels.channel("detections").read_after(0, limit=1_000)
        found = [Detection.from_event(one.event) for one in kept if one.event.type == DETECTED]
        if any(id == cause for one in found for _, cause in one.causes):
            return [one.bindings["A"] for one in found]
        await SystemClock().sleep(20)


def test_a_reload_takes_tables_and_policies_over_together(site: Path) -> None:
    async def story(node: Node) -> None:
        with (site / "persons.csv").open("a") as file:
            file.write("p99,New Guest,guest,E200-99\n")
        (site / "watch.dpl").write_text(WATCH)
        [done] = await node.policies.reload()
        assert (done.name, done.what) == ("watch", "registered")
        await node.channels.channel("events").append([seen("e1", "p99")])
        assert await until_found(node, "e1") == ["p99"]
        # A column that a text asks for is found in tables of the reload, too.
        rows = (site / "persons.csv").read_text().splitlines()
        desks = ["desk", *(f"d{n}" for n in range(1, len(rows)))]
        lines = [f"{row},{desk}\n" for row, desk in zip(rows, desks, strict=True)]
        (site / "persons.csv").write_text("".join(lines))
        (site / "watch.dpl").write_text(WATCH + '    say "look at {A.desk}"\n')
        [done] = await node.policies.reload()
        assert (done.what, done.problems) == ("replaced", ())
        await node.channels.channel("events").append([seen("e2", "p99")])
        await until_found(node, "e2")
        log = node.channels.channel("log")
        while not any(
            f"look at {desks[-1]}".encode() in one.event.data for one in await log.read_after(0)
        ):
            await SystemClock().sleep(20)

    play(site, story)


def test_a_refused_reload_changes_nothing_and_the_next_one_takes_all(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (site / "watch.dpl").write_text(WATCH)

    async def story(node: Node) -> None:
        before = (node.site.tables.revision, node.policy.ontology, states(node))

        async def refused() -> RapportError:
            with pytest.raises(RapportError) as caught:
                await node.policies.reload()
            now = (node.site.tables.revision, node.policy.ontology, states(node))
            assert now == before
            await node.channels.channel("events").append([seen("x", "p99")])
            return caught.value

        with (site / "persons.csv").open("a") as file:
            file.write("p99,New Guest,guest,E200-99\n")
        (site / "other.dpl").write_text("nonsense")
        assert (await refused()).problems_found()
        (site / "other.dpl").write_text(WATCH)
        change(site, "persons.csv", "p99,New Guest,guest", "p99,New Guest,guest,too,many")
        assert (await refused()).problems_found()
        change(site, "persons.csv", "p99,New Guest,guest,too,many", "p99,New Guest,guest")

        channel = type(node.channels.channel("policies"))
        append = channel.append

        async def full(self: object, events: list[Event]) -> object:
            if self.name == "policies":  # type: ignore[attr-defined]
                raise ChannelUnavailable("the disk is full")
            return await append(self, events)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(channel, "append", full)
            assert "disk" in (await refused()).message
        done = await node.policies.reload()
        assert [(one.name, one.what) for one in done] == [("other", "registered")]
        await node.channels.channel("events").append([seen("e1", "p99"), seen("e2", "p01")])
        assert set(await until_found(node, "e2")) == {"p01", "p99"}

    play(site, story)


def test_an_attribute_that_goes_breaks_who_reads_it_and_the_others_run_on(site: Path) -> None:
    (site / "watch.dpl").write_text(WATCH)
    (site / "anybody.dpl").write_text(WATCH.replace(" (status='guest')", ""))

    async def story(node: Node) -> None:
        change(site, "site.toml", 'status = "text"\n', "")
        change(site, "site.toml", 'columns = { status = "status" }\n', "")
        done = {one.name: one.what for one in await node.policies.reload()}
        assert done["watch"] == "broken"
        assert states(node) == {"watch": "broken", "anybody": "running"}
        await node.channels.channel("events").append([seen("e1", "p05")])
        assert await until_found(node, "e1") == ["p05"]

    play(site, story)


def test_a_detection_of_a_replaced_version_is_acted_on_as_that_version_said(site: Path) -> None:
    (site / "watch.dpl").write_text(WATCH + '    say "old {A.name}"\n')
    newer = WATCH.replace("person A", "person Z").replace("A is", "Z is")
    newer = newer.replace("raise alarm", "call for help") + '    to ana\n    say "new {Z.name}"\n'

    async def replacing() -> None:
        node = make_node(load_site(site), NodeSettings(port=0), SystemClock())
        await node.meanings.begin()
        await node.policies.begin()
        version = node.policies.life.policy("watch").version
        found = Detection(
            policy="watch",
            time=SystemClock().now_ms(),
            bindings={"A": "p01", "R": "lab"},
            causes=(),
            version=version,
        )
        await node.channels.channel("detections").append([found.to_event(source="here")])
        await node.policies.life.replace("watch", newer)
        await node.stop()

    async def standing(node: Node) -> None:
        while not (rows := await told(node)):
            await SystemClock().sleep(20)
        assert rows == ["old Grace Hopper"]

    asyncio.run(replacing())
    play(site, standing)


async def told(node: Node) -> list[str]:
    await node.ledger.refresh()
    return [message.text for message in node.ledger.messages()]


# --- interpretations ---


def hottest(node: Node) -> float:
    """From which temperature on, in root, the policy in force says that it is hot."""
    [plan] = [one for one in plans(node) if one.policy == "hot"]
    return float(plan.terms[0].compared.right.value)  # type: ignore[union-attr]


def plans(node: Node) -> list[Plan]:
    found = [
        node.policies.life.compiled(name, version)
        for name, version in node.policy.policies().items()
    ]
    return [one.plan for one in found if one is not None]


async def other_unit(node: Node, old: str, new: str) -> None:
    """Changes how the interpretation counts."""
    updating = node.meanings.updating
    declared = await updating.inspect(
        lambda standing: standing.in_force.typed.registered["us"].interpretation
    )
    text = msgspec.json.encode(declared).decode().replace(old, new)
    body = {"changes": [{"type": "declare", "interpretation": json.loads(text)}]}
    await updating.change(lambda _: request_from_json(json.dumps(body).encode()))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await SystemClock().sleep(20)


def test_policies_in_an_interpretations_terms_follow_its_changes(site: Path) -> None:
    with (site / "site.toml").open("a") as file:
        file.write(STATIONS)
    (site / "hot.dpl").write_text(HOT)
    (site / "watch.dpl").write_text(WATCH)

    async def changing(node: Node) -> None:
        first = node.policy.policies()
        assert hottest(node) == pytest.approx(30.0)
        await other_unit(node, "degF", "K")
        await until(lambda: node.policy.policies()["hot"] != first["hot"])
        assert hottest(node) == pytest.approx(86 - 273.15)
        await node.meanings.updating.change(
            lambda _: request_from_json(b'{"type": "remove", "name": "us"}')
        )
        await until(lambda: states(node)["hot"] == "broken")
        shown = node.policies.life.policy("hot")
        assert shown.problems[0].code == "policy.unknown_interpretation"
        assert node.policy.policies() == {"watch": first["watch"]}
        history = node.policies.life.history("hot")
        assert [one.what for one in history] == ["registered", "rebuilt", "broken"]

    async def standing(node: Node) -> None:
        assert states(node) == {"hot": "broken", "watch": "running"}

    play(site, changing)
    play(site, standing)
