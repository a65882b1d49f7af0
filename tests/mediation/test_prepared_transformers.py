"""A change of interpretations finds ready what consumers need: nothing is made on the loop when the
next event comes. [ME-6, ME-9]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from rapport.channel.backends.local import open_memory
from rapport.core.errors import UnknownName
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import ManualClock
from rapport.mediation.concepts import ConceptAttribute, unit_type
from rapport.mediation.config import SiteInterpretations, interpretation_digest
from rapport.mediation.conversion.conversions import UnitChange, converts
from rapport.mediation.interpretations.change_requests import ChangeRequest
from rapport.mediation.interpretations.model import (
    Interpretation,
    RenameAttribute,
    Rule,
    TypeMapping,
)
from rapport.mediation.interpretations.repository import Repository
from rapport.mediation.interpretations.type_changes import Change, Declare, Remove
from rapport.mediation.interpretations.updater import InterpretationUpdater
from rapport.mediation.outgoing.service import OutgoingMediation
from rapport.mediation.reader import MediationReader
from rapport.mediation.types import Attribute, ComplexType

CONCEPTS = {"station": {"temperature": ConceptAttribute("number", "degC")}}
ROOT = Interpretation(
    name="root", parent="", types=(ComplexType("Alarm", (Attribute("level", "degC"),)),)
)


def desk(unit: str) -> Interpretation:
    results = ComplexType(
        "Told",
        (
            Attribute("station", "text"),
            Attribute("time", "Time", optional=True),
            Attribute("temperature", unit, optional=True),
        ),
    )
    warning = ComplexType("Warning", (Attribute("level", unit),))
    return Interpretation(
        name="desk",
        types=(unit_type(unit), results, warning),
        mappings=(
            TypeMapping("station", "Told", "out", (RenameAttribute("key", "station"),)),
            TypeMapping("Alarm", "Warning", "out"),
        ),
        rules=(Rule("degC", "turn", "out"),),
        conversions=(converts("turn", "degC", unit, UnitChange("degC", unit)),),
    )


def events() -> list[StoredEvent]:
    """A reading, and enough alarms to be said together."""
    result = [("station.temperature", b'{"key":"s1","value":[25.0]}')]
    result += [("Alarm", b'{"level":%d}' % level) for level in range(20)]
    return [
        StoredEvent(place, 9, Event("feed", f"e{place}", each, "", 5, data))
        for place, (each, data) in enumerate(result, start=1)
    ]


class Node:
    """What a node has between interpretations and consumers."""

    def __init__(self) -> None:
        channels, clock = open_memory(ManualClock()), ManualClock(1_000)
        repository = Repository()
        reader = MediationReader(channels, [], repository, clock)
        self.outgoing = OutgoingMediation(repository, channels, clock=clock)
        self.updating = InterpretationUpdater(channels, repository, reader, clock, node="a")
        self.updating.prepares.append(lambda in_force, _: self.outgoing.prepare(in_force, None))

    async def begin(self) -> None:
        typed = {one.name: one for one in (ROOT, desk("degF"))}
        result = {name: interpretation_digest(one) for name, one in typed.items()}
        await self.updating.start(SiteInterpretations(typed=typed, concepts=CONCEPTS, said=result))

    async def change(self, *changes: Change) -> None:
        await self.updating.change(lambda _: ChangeRequest(changes=changes), by="me")

    async def results(self) -> list[Any]:
        found = await self.outgoing.view("events", events(), "desk")
        return [msgspec.json.decode(one.event.data) for one in found]


def nothing_is_made() -> ExitStack:
    """Raises where a transformer, or a function from bytes to bytes, is made."""
    stack = ExitStack()
    for maker in (
        "outgoing.consumer_transformer.make_transformer",
        "codegen.json_fast_path.compile_reading_path",
        "codegen.json_fast_path.compile_event_path",
        "codegen.json_fast_path.compile_batch_path",
    ):
        stack.enter_context(patch(f"rapport.mediation.{maker}", side_effect=AssertionError(maker)))
    return stack


def run(scenario: Callable[[Node], Any]) -> None:
    async def begun() -> None:
        node = Node()
        await node.begin()
        await scenario(node)

    asyncio.run(begun())


def test_after_a_change_nothing_is_compiled_on_the_loop_for_types_in_use() -> None:
    async def scenario(node: Node) -> None:
        assert (await node.results())[:2] == [
            {"station": "s1", "time": 5, "temperature": 77.0},
            {"level": 32.0},
        ]
        await node.change(Declare(desk("K")))
        with nothing_is_made():
            after = await node.results()
        assert after[:2] == [{"station": "s1", "time": 5, "temperature": 298.15}, {"level": 273.15}]
        assert len(after) == 21

    run(scenario)


def test_transformers_without_readers_are_not_built() -> None:
    async def scenario(node: Node) -> None:
        with nothing_is_made():
            await node.change(Declare(desk("K")))
        assert (await node.results())[0] == {"station": "s1", "time": 5, "temperature": 298.15}

    run(scenario)


def test_readers_of_a_removed_interpretation_get_an_error() -> None:
    async def scenario(node: Node) -> None:
        await node.results()
        await node.change(Remove("desk"))
        with pytest.raises(UnknownName, match="desk"):
            await node.results()

    run(scenario)
