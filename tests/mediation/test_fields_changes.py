"""The fields form declared, said anew and removed while a node runs: checked, on record, in force.

[ME-6, ME-7, ME-12]
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rapport.channel.backends.local import open_memory
from rapport.channel.channel import Channels
from rapport.core.errors import InvalidInput
from rapport.core.event import make_event
from rapport.kernel.clock import ManualClock
from rapport.mediation.concepts import ConceptAttribute
from rapport.mediation.config import SiteInterpretations, interpretation_digest
from rapport.mediation.interpretations.change_log import read_version
from rapport.mediation.interpretations.change_requests import (
    AnyChange,
    ChangeRefused,
    ChangeRequest,
    DeclareFields,
    read_fields_declaration,
    request_from_file,
    request_from_json,
)
from rapport.mediation.interpretations.change_state import ChangeResult
from rapport.mediation.interpretations.model import Interpretation
from rapport.mediation.interpretations.repository import ActiveInterpretations, Repository
from rapport.mediation.interpretations.type_changes import Augment, Declare, Remove
from rapport.mediation.interpretations.updater import InterpretationUpdater
from rapport.mediation.reader import MediationReader
from rapport.mediation.source_bindings import SourceBinding

CONCEPTS = {"station": {"temperature": ConceptAttribute("number", "degC")}}
BINDING = SourceBinding(
    source="weather",
    concept="station",
    attribute="temperature",
    units=("degC",),
    interpretation="badges",
)


def result(unit: str = "degF", **more: Any) -> dict[str, Any]:
    return {"identity": {"field": "tag"}, "value": {"field": "heat", "unit": unit}} | more


def badges(unit: str = "degF", **more: Any) -> DeclareFields:
    return DeclareFields("badges", result(unit, **more))


def files(*fields: DeclareFields, typed: tuple[Interpretation, ...] = ()) -> SiteInterpretations:
    read = {each.name: read_fields_declaration(each)[0] for each in fields}
    found = {name: one for name, one in read.items() if one is not None}
    digests = {name: interpretation_digest(one.meaning()) for name, one in found.items()}
    return SiteInterpretations(
        fields=found,
        typed={each.name: each for each in typed},
        concepts=CONCEPTS,
        said=digests | {each.name: interpretation_digest(each) for each in typed},
        tables={"people": ("person",)},
    )


class Node:
    """What a node has of mediation, on channels that outlive it."""

    def __init__(self, channels: Channels, *bindings: SourceBinding) -> None:
        clock = ManualClock(1_000)
        self.channels, self.repository = channels, Repository()
        self.reader = MediationReader(channels, bindings, self.repository, clock)
        self.updating = InterpretationUpdater(
            channels, self.repository, self.reader, clock, node="a"
        )

    async def change(self, *changes: AnyChange) -> ChangeResult:
        return await self.updating.change(lambda _: ChangeRequest(changes=changes), by="me")

    def unit(self) -> str | None:
        found = self.repository.in_force.fields.get("badges")
        return found.values[0].unit if found is not None else None

    async def reads(self, heat: float) -> float:
        raw = self.channels.channel("raw.weather")
        events = self.channels.channel("events")
        made = make_event(
            source="weather",
            id=f"e{raw.last_position()}",
            type="t",
            time=1_000,
            data={"tag": "s1", "heat": heat},
        )
        await raw.append([made])
        await self.reader.lane("weather").step(timeout_ms=0)
        (stored,) = await events.read_after(events.last_position() - 1)
        return float(stored.event.payload()["value"][0])


def test_a_declaration_is_in_force_between_two_events_and_after_a_restart() -> None:
    async def scenario() -> None:
        channels = open_memory(ManualClock())
        node = Node(channels, BINDING)
        await node.updating.start(files(badges("degC")))
        assert await node.reads(77.0) == 77.0
        done = await node.change(badges("degF"))
        assert (done.changed, list(done.versions)) == (True, ["badges"])
        assert await node.reads(77.0) == pytest.approx(25.0)
        again = Node(channels, BINDING)
        await again.updating.start(files(badges("degC")))
        assert again.unit() == "degF"
        assert again.repository.in_force.stamps == node.repository.in_force.stamps
        kept = await read_version(channels, done.versions["badges"])
        assert kept.version.form == "fields"

    asyncio.run(scenario())


def test_a_declaration_without_difference_is_no_change_and_a_removed_one_is_gone() -> None:
    async def scenario() -> None:
        channels = open_memory(ManualClock())
        node = Node(channels)
        await node.updating.start(files(badges("degC")))
        assert not (await node.change(badges("degC"))).changed
        assert (await node.change(Remove("badges"))).versions == {"badges": ""}
        assert node.unit() is None
        again = Node(channels)
        await again.updating.start(files(badges("degC")))
        assert again.unit() is None

    asyncio.run(scenario())


def test_a_file_that_was_changed_later_wins() -> None:
    async def scenario() -> None:
        channels = open_memory(ManualClock())
        node = Node(channels)
        await node.updating.start(files(badges("degC")))
        await node.change(badges("degF"))
        await node.updating.load_files(files(badges("K")), {}, node.reader.lookups)
        assert node.unit() == "K"
        ((_, outcome),) = node.updating.history()
        assert outcome.state == "lost"
        await node.updating.load_files(files(badges("degF")), {}, node.reader.lookups)
        ((_, outcome),) = node.updating.history()
        assert (outcome.state, outcome.problems) == ("lost", ())

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (DeclareFields("badges", {}), "interpretation.missing_key"),
        (badges("Kelwin"), "unit.unknown"),
        (badges(more=1), "interpretation.unknown_key"),
        (DeclareFields("../x", result()), "interpretation.bad_name"),
        (DeclareFields("root", result()), "interpretation.other_form"),
        (DeclareFields("us", result()), "interpretation.other_form"),
        (badges(units={}), "interpretation.other_form"),
        (Declare(Interpretation(name="plain", parent="root")), "interpretation.other_form"),
        (Augment("plain"), "interpretation.other_form"),
        (
            badges(convert=[{"call": "os:remove", "take": ["value"], "give": ["value"]}]),
            "change.unknown_function",
        ),
        (
            badges(identity={"field": "tag", "lookup": {"table": "peple", "column": "person"}}),
            "interpretation.unknown_table",
        ),
        (badges(about={"x": [[[[[[]]]]]]}), "interpretation.bad_value"),
        (Remove("plain"), "interpretation.in_use"),
    ],
)
def test_a_change_with_a_fault_changes_nothing(change: AnyChange, code: str) -> None:
    async def scenario() -> None:
        exported = SourceBinding(
            source="w", concept="station", attribute="temperature", interpretation="plain"
        )
        node = Node(open_memory(ManualClock()), exported)
        us = Interpretation(name="us", parent="root")
        plain = DeclareFields("plain", result())
        await node.updating.start(files(plain, typed=(us,)))
        before = node.repository.in_force
        with pytest.raises(ChangeRefused) as caught:
            await node.change(change)
        assert caught.value.problems[0].code == code
        assert node.repository.in_force is before

    asyncio.run(scenario())


def test_a_declaration_that_no_longer_fits_its_source_is_a_warning() -> None:
    async def scenario() -> None:
        node = Node(open_memory(ManualClock()), BINDING)
        await node.updating.start(files(badges("degC")))
        done = await node.change(badges("m"))
        assert [each.severity for each in done.problems] == ["warning"]
        assert "badges" in done.problems[0].message

    asyncio.run(scenario())


def test_files_and_json_say_the_same() -> None:
    toml = """
[interpretations.badges]
identity = { field = "tag" }
value = { field = "heat", unit = "degF" }
[interpretations.us]
units = { }
"""
    yaml = """
interpretations:
  badges:
    identity: { field: tag }
    value: { field: heat, unit: degF }
"""
    found = request_from_file("a.toml", toml.encode(), "toml", ActiveInterpretations())
    assert found.changes[-1] == badges()
    assert isinstance(found.changes[0], Declare)
    assert request_from_file("a.yaml", yaml.encode(), "yaml", ActiveInterpretations()).changes == (
        badges(),
    )
    body = b'{"type": "fields", "name": "badges", "said": %s}'
    table = b'{"identity": {"field": "tag"}, "value": {"field": "heat", "unit": "degF"}}'
    assert request_from_json(body % table).changes == (badges(),)
    with pytest.raises(InvalidInput):
        request_from_json(body % b"5")


def test_faults_of_a_file_are_reported_at_their_location() -> None:
    text = b'[interpretations.badges]\nidentity = { field = "tag" }\nvalue = 5\n'
    with pytest.raises(ChangeRefused) as caught:
        request_from_file("a.toml", text, "toml", ActiveInterpretations())
    assert (caught.value.problems[0].file, caught.value.problems[0].line) == ("a.toml", 3)
    with pytest.raises(ChangeRefused, match="no typed"):
        request_from_file("a.toml", text, "toml", ActiveInterpretations(), how="augment")
