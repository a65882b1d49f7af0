"""A start does not check every change ever made, and comes to the same as if it did.

[ME-6, ME-12]
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rapport.channel.backends.local import open_memory
from rapport.channel.log.channels import LoggedChannels
from rapport.kernel.clock import ManualClock
from rapport.mediation.config import SiteInterpretations, interpretation_digest
from rapport.mediation.conversion.conversions import Formula, converts
from rapport.mediation.interpretations import change_state
from rapport.mediation.interpretations.change_requests import (
    AnyChange,
    ChangeRequest,
    DeclareFields,
)
from rapport.mediation.interpretations.change_state import (
    CHECKPOINT_EVERY,
    CHECKPOINT_KEY,
    CHECKPOINT_TABLE,
    InterpretationState,
)
from rapport.mediation.interpretations.model import Interpretation, Rule
from rapport.mediation.interpretations.repository import Repository
from rapport.mediation.interpretations.type_changes import Augment, Declare, Remove
from rapport.mediation.interpretations.updater import InterpretationUpdater
from rapport.mediation.reader import MediationReader
from rapport.mediation.types import Attribute, ComplexType, PrimitiveType


def us(factor: float, name: str = "us") -> Interpretation:
    return Interpretation(
        name=name,
        types=(PrimitiveType("f", "number"), ComplexType("Heat", (Attribute("t", "f"),))),
        rules=(Rule("f", "one", "in"),),
        conversions=(converts("one", "f", "f", Formula(multiply=factor)),),
    )


def files(*typed: Interpretation) -> SiteInterpretations:
    return SiteInterpretations(
        typed={each.name: each for each in typed},
        said={each.name: interpretation_digest(each) for each in typed},
    )


class Node:
    """What a node has of mediation, on channels and records that outlive it."""

    def __init__(self, channels: LoggedChannels, *, checked: bool = False) -> None:
        clock, self.repository = ManualClock(1_000), Repository()
        self.channels = channels
        reader = MediationReader(channels, [], self.repository, clock)
        records = None if checked else channels.records
        self.updating = InterpretationUpdater(
            channels, self.repository, reader, clock, node="a", records=records
        )

    async def change(self, *changes: AnyChange) -> Any:
        return await self.updating.change(lambda _: ChangeRequest(changes=changes))

    def results(self) -> Any:
        in_force = self.repository.in_force
        return (
            dict(in_force.stamps),
            dict(in_force.formats),
            dict(in_force.refused),
            [(one.id, outcome) for one, outcome in self.updating.history()],
        )


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many changes were checked."""
    counts = [0]
    checked = InterpretationState.apply

    def counting(self: InterpretationState, changed: Any) -> Any:
        counts[0] += 1
        return checked(self, changed)

    monkeypatch.setattr(InterpretationState, "apply", counting)
    return counts


async def changed_often(channels: LoggedChannels, times: int) -> Node:
    node = Node(channels)
    await node.updating.start(files(us(1.0), us(1.0, "other")))
    await node.change(Augment("root", types=(ComplexType("Ping", ()),)))
    await node.change(
        DeclareFields("badges", {"identity": {"field": "t"}, "value": {"field": "v"}})
    )
    for number in range(times):
        await node.change(Declare(us(2.0 + number)))
    await node.change(Remove("other"))
    await node.updating.step()
    return node


@pytest.mark.parametrize("times", [CHECKPOINT_EVERY, 6 * CHECKPOINT_EVERY])
def test_a_start_checks_few_changes_however_many_there_were(times: int, tried: list[int]) -> None:
    async def scenario() -> None:
        channels = open_memory(ManualClock())
        node = await changed_often(channels, times)
        tried[0] = 0
        again = Node(channels)
        await again.updating.start(files(us(1.0), us(1.0, "other")))
        assert tried[0] <= CHECKPOINT_EVERY
        assert again.results() == node.results()
        assert len(again.updating.history()) == times + 3
        whole = Node(channels, checked=True)
        await whole.updating.start(files(us(1.0), us(1.0, "other")))
        assert whole.results() == again.results()
        assert (await again.change(Declare(us(1.5)))).changed

    asyncio.run(scenario())


@pytest.mark.parametrize("what", ["files", "program", "broken", "an earlier change"])
def test_a_checkpoint_of_something_else_is_not_believed(
    what: str, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        channels = open_memory(ManualClock())
        await changed_often(channels, CHECKPOINT_EVERY)
        result = files(us(1.0), us(1.0, "other"))
        if what == "files":
            result = files(us(7.0), us(1.0, "other"))
        elif what == "program":
            monkeypatch.setattr(change_state, "__version__", "0.0.0")
        elif what == "broken":
            channels.records.put(CHECKPOINT_TABLE, CHECKPOINT_KEY, b"{")
        else:
            other = Node(open_memory(ManualClock()))
            await other.updating.start(files())
            await other.change(Declare(us(9.0, "elsewhere")))
            stored = await other.channels.channel("interpretations").read_after(0)
            await channels.channel("interpretations").append([one.event for one in stored])
        tried[0] = 0
        again, whole = Node(channels), Node(channels, checked=True)
        await again.updating.start(result)
        assert tried[0] >= 2 if what == "files" else tried[0] > CHECKPOINT_EVERY
        await whole.updating.start(result)
        assert again.results() == whole.results()

    asyncio.run(scenario())
