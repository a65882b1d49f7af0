"""Rules that outlive the process, and those that the site file says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rapport.channel.backends.local import open_embedded, open_memory
from rapport.communication.routing import CHANGED, RoutingRecords, RoutingRule, routing_from_site
from rapport.core.errors import Conflict, InvalidInput
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import ManualClock
from rapport.kernel.toml import TomlFile

ANA, BEN, LEA = (Identifier("peer", name) for name in ("ana", "ben", "lea"))
TASK = Message(type="TASK", subtype="REQUEST", sender=ANA)
RULE = RoutingRule(type="TASK", to=(BEN,))


async def told(channels: Any) -> list[tuple[str, str, str]]:
    events = [stored.event for stored in await channels.channel("log").read_after(0)]
    return [
        (event.payload()["change"], event.subject, event.payload()["by"])
        for event in events
        if event.type == CHANGED
    ]


def test_rules_are_there_after_a_restart_and_every_change_is_reported_once(
    tmp_path: Path, clock: ManualClock
) -> None:
    async def scenario() -> None:
        channels = open_embedded(tmp_path, clock)
        records = RoutingRecords(channels, channels.records, clock)
        await records.open()
        kept = await records.add(RULE, by="admin")
        gone = await records.add(RoutingRule(sender=ANA, to=(LEA,)), by="admin")
        assert records.recipients(TASK) == (BEN, LEA)
        assert await records.remove(gone, by="ana") == RoutingRule(id=gone, sender=ANA, to=(LEA,))
        assert await records.remove(gone) is None
        assert await records.add(RULE) == kept
        await channels.close()

        channels = open_embedded(tmp_path, clock)
        again = RoutingRecords(channels, channels.records, clock)
        await again.open()
        assert again.recipients(TASK) == (BEN,)
        assert await told(channels) == [
            ("added", kept, "admin"),
            ("added", gone, "admin"),
            ("removed", gone, "ana"),
        ]
        await channels.close()

    asyncio.run(scenario())


def test_a_change_that_a_crash_kept_from_being_reported_is_reported_on_opening(
    clock: ManualClock,
) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        records = RoutingRecords(channels, channels.records, clock)

        async def dies(_event: object) -> None:
            raise ConnectionError("killed")

        records._store._append = dies  # type: ignore[method-assign]
        with pytest.raises(ConnectionError):
            await records.add(RULE)
        assert await told(channels) == []
        again = RoutingRecords(channels, channels.records, clock)
        await again.open()
        assert again.recipients(TASK) == (BEN,)
        assert [change for change, _rule, _by in await told(channels)] == ["added"]

    asyncio.run(scenario())


def test_what_one_engine_changes_another_with_the_same_records_sees(clock: ManualClock) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        one, other = (RoutingRecords(channels, channels.records, clock) for _ in range(2))
        await one.open()
        await other.open()
        assert other.refresh() is False
        rule = await one.add(RULE)
        assert other.refresh() is True
        assert other.recipients(TASK) == (BEN,)
        assert other.refresh() is False
        await other.remove(rule)
        assert one.refresh() is True
        assert one.recipients(TASK) == ()

    asyncio.run(scenario())


def test_an_engine_looks_by_itself_for_what_another_changed(clock: ManualClock) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        one, other = (RoutingRecords(channels, channels.records, clock) for _ in range(2))
        await one.add(RULE)
        assert other.recipients(TASK) == ()
        await clock.advance(1_000)
        assert other.recipients(TASK) == (BEN,)

    asyncio.run(scenario())


def test_changes_of_two_engines_at_once_are_all_seen_by_both(clock: ManualClock) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        one, other = (RoutingRecords(channels, channels.records, clock) for _ in range(2))
        people = [Identifier("peer", f"p{number}") for number in range(20)]
        await asyncio.gather(
            *(
                engine.add(RoutingRule(type="TASK", to=(person,)))
                for number, person in enumerate(people)
                for engine in ((one, other)[number % 2],)
            )
        )
        one.refresh()
        other.refresh()
        assert set(one.recipients(TASK)) == set(other.recipients(TASK)) == set(people)

    asyncio.run(scenario())


def test_counts_of_engines_that_are_gone_are_let_go(clock: ManualClock) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        for number in range(70):
            engine = RoutingRecords(channels, channels.records, clock)
            await engine.open()
            await engine.add(RoutingRule(type=f"T{number}", to=(BEN,)))
        assert len(engine.rules()) == 70
        found = channels.records.find("communication.routing", prefix="count/")
        assert len(found) < 66

    asyncio.run(scenario())


def test_a_rule_that_is_refused_changes_nothing(clock: ManualClock) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        records = RoutingRecords(channels, channels.records, clock)
        with pytest.raises(InvalidInput):
            await records.add(RoutingRule(type="TASK"))
        assert records.rules() == []
        assert await told(channels) == []

    asyncio.run(scenario())


def test_a_rule_of_the_site_file_is_in_force_and_cannot_be_taken_out_here(
    clock: ManualClock,
) -> None:
    async def scenario() -> None:
        channels = open_memory(clock)
        of_site = [RoutingRule(id="watch", type="TASK", to=(LEA,))]
        records = RoutingRecords(channels, channels.records, clock, of_site=of_site)
        await records.open()
        assert records.recipients(TASK) == (LEA,)
        with pytest.raises(Conflict) as caught:
            await records.remove("watch")
        assert caught.value.code == "routing.of_site"

    asyncio.run(scenario())


def problems_of(text: str) -> list[tuple[str, int, str]]:
    file = TomlFile.parse(text.encode(), name="site.toml")
    _rules, problems = routing_from_site(file, peers=["ana", "ben"], collectives=["guards"])
    return [(problem.code, problem.line, problem.severity) for problem in problems]


def test_the_site_file_says_rules() -> None:
    text = """
[[routing]]
id = "watch"
type = "TASK"
receiver = "collective:guards"
to = "peer:ana"

[[routing]]
sender = "peer:ben"
to = ["peer:ana", "component:archive"]
"""
    file = TomlFile.parse(text.encode(), name="site.toml")
    rules, problems = routing_from_site(file, peers=["ana", "ben"], collectives=["guards"])
    assert problems == []
    assert rules[0] == RoutingRule(
        id="watch", type="TASK", receiver=Identifier("collective", "guards"), to=(ANA,)
    )
    assert rules[1].to == (ANA, Identifier("component", "archive"))


def test_faults_of_rules_stand_at_their_own_line() -> None:
    text = """[[routing]]
type = "TASK"
to = ["peer:ana"]

[[routing]]
to = ["peer:ana"]

[[routing]]
type = "TASK"

[[routing]]
typ = "TASK"
to = ["ana", ""]

[[routing]]
type = "TASK"
to = ["peer:anna"]

[[routing]]
type = "TASK"
to = ["peer:ana"]
"""
    assert problems_of(text) == [
        ("routing.matches_everything", 5, "error"),
        ("routing.no_recipient", 8, "error"),
        ("site.unknown_key", 12, "error"),
        ("message.bad_identifier", 13, "error"),
        ("message.bad_identifier", 13, "error"),
        ("routing.unknown_name", 17, "warning"),
        ("routing.id_taken", 19, "error"),
    ]


@pytest.mark.parametrize("text", ['routing = "x"', "routing = [1]", "[routing]\na = 1"])
def test_routing_that_is_no_list_of_tables_is_one_fault(text: str) -> None:
    assert [code for code, _line, _severity in problems_of(text)] == ["site.not_a_table"]
