"""Situations in the engine: each begins and ends once, whatever restarts in between."""

from __future__ import annotations

import asyncio

import pytest

from rapport.channel.backends.local import open_memory
from rapport.core.detection import DETECTED, ENDED, Detection, NamedValue
from rapport.core.event import make_event
from rapport.kernel.clock import ManualClock
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.named_values import needed_values
from rapport.site.site import load_site
from tests.policy.engine.situation_site import FREEZER, SITUATIONS

SITE = load_site(SITUATIONS)
START = 1_000_000
SECOND = 1_000


def compiled(text=FREEZER):
    return compile_policy(text, name="freezer", ontology=SITE.ontology, window_ms=5_000)


def needed(_policy, _version):
    return needed_values({"temperature of F", "why"}, compiled(), SITE.ontology)


class Freezers:
    """An engine over channels that outlive it."""

    def __init__(self):
        self.clock = ManualClock(START)
        self.channels = open_memory(self.clock)
        self.plan = compiled().plan
        self.number = 0
        self.start()

    def start(self):
        """A fresh process: nothing but what was committed is known."""
        plans = [self.plan] if self.plan is not None else []
        self.engine = PolicyEngine(
            self.channels,
            self.clock,
            name="site",
            ontology=SITE.ontology,
            pull=SITE.tables,
            plans=plans,
            lateness_ms=0,
            commit_every_ms=0,
        )
        self.engine.use_texts(needed)

    async def settle(self):
        assert not self.engine.failed()
        while await self.engine.step(timeout_ms=0):
            pass
        self.clock.set_ms(self.clock.now_ms() + 500)
        await self.engine.step(timeout_ms=0)

    async def read(self, *values, station="s1"):
        """One reading a second."""
        for value in values:
            self.clock.set_ms(self.clock.now_ms() + SECOND)
            self.number += 1
            event = make_event(
                source="temperature",
                id=f"r{self.number}",
                type="station.temperature",
                subject=f"station/{station}",
                time=self.clock.now_ms(),
                data={"key": station, "value": [value]},
            )
            await self.channels.channel("events").append([event])
            await self.settle()

    async def found(self):
        stored = await self.channels.channel("detections").read_after(0, limit=10_000)
        return [
            Detection.from_event(one.event) for one in stored if one.event.type in (DETECTED, ENDED)
        ]

    async def turns(self):
        """`+` for beginnings, `-` for ends, of each station."""
        return [
            ("-" if one.began is not None else "+") + one.bindings["F"]
            for one in await self.found()
        ]


@pytest.fixture
def freezers():
    return Freezers()


def play(scenario):
    asyncio.run(scenario)


def test_a_situation_begins_and_ends_with_the_values_as_they_were(freezers):
    async def scenario():
        await freezers.read(-20.0, -14.0, -13.0, -16.0, -18.0, -20.0)
        began, ended = await freezers.found()
        assert ended.began == began.time
        assert began.values == {"temperature of F": NamedValue(-14.0, "degC")}
        assert began.holds.startswith("temperature of F above -15 °C (")
        assert ended.values == {"temperature of F": NamedValue(-18.0, "degC")}
        assert freezers.engine.situations("freezer") == []

    play(scenario())


def test_after_a_restart_an_open_situation_ends_once_with_its_own_beginning(freezers):
    async def scenario():
        await freezers.read(-14.0)
        [began] = await freezers.found()
        freezers.start()
        await freezers.settle()
        await freezers.read(-13.0)
        freezers.start()
        await freezers.read(-20.0)
        freezers.start()
        await freezers.settle()
        assert await freezers.turns() == ["+s1", "-s1"]
        assert (await freezers.found())[-1].began == began.time

    play(scenario())


def test_a_replaced_version_goes_on_with_what_is_open_and_ends_it(freezers):
    async def scenario():
        await freezers.read(-14.0)
        [began] = await freezers.found()
        other = FREEZER.replace("above -15 degC", "above -16 degC")
        freezers.plan = compiled(other).plan
        freezers.engine.deploy(freezers.plan)
        await freezers.read(-13.0, -12.0)
        assert await freezers.turns() == ["+s1"]
        await freezers.read(-20.0)
        assert await freezers.turns() == ["+s1", "-s1"]
        ended = (await freezers.found())[-1]
        assert (ended.began, ended.version) == (began.time, freezers.plan.version())

    play(scenario())


def test_a_replaced_version_by_which_it_does_not_hold_ends_it(freezers):
    async def scenario():
        await freezers.read(-14.0)
        freezers.plan = compiled(FREEZER.replace("-15 degC", "5 degC").replace("-17", "0")).plan
        freezers.engine.deploy(freezers.plan)
        assert await freezers.turns() == ["+s1"]
        await freezers.read(-13.0)
        assert await freezers.turns() == ["+s1", "-s1"]

    play(scenario())


def test_a_version_about_other_things_ends_what_is_open_with_the_reason(freezers):
    async def scenario():
        await freezers.read(-14.0)
        other = FREEZER.replace("station F", "station G").replace(" of F", " of G")
        freezers.plan = compiled(other).plan
        freezers.engine.deploy(freezers.plan)
        await freezers.read(-14.0)
        [began, ended, _again] = await freezers.found()
        assert ended.began == began.time
        assert ended.reason == "the policy was replaced by one about other things"

    play(scenario())


def test_a_withdrawn_policy_ends_what_is_open_once(freezers):
    async def scenario():
        await freezers.read(-14.0)
        await freezers.read(-14.0, station="s2")
        freezers.engine.withdraw("freezer")
        freezers.plan = None
        await freezers.read(-14.0)
        freezers.start()
        await freezers.read(-14.0)
        assert await freezers.turns() == ["+s1", "+s2", "-s1", "-s2"]
        assert {one.reason for one in (await freezers.found())[2:]} == {"the policy was stopped"}

    play(scenario())


def test_what_is_open_and_unknown_is_shown_with_the_missing_values(freezers):
    async def scenario():
        freezers.plan = compiled(
            FREEZER.replace("-15 degC OR no", "-15 degC AND NOT (no").replace("30 min", "30 min)")
        ).plan
        freezers.start()
        await freezers.read(-14.0)
        await freezers.read(-30.0, station="s2")
        async with freezers.engine.turn:
            states = freezers.engine.situation_states("freezer")
        assert (states.open, states.pending) == (1, 0)
        [one] = [each for each in states.states if each.state == "open"]
        assert (one.bindings, one.truth) == ({"F": "s1"}, "true")
        atom = one.atoms[0]
        assert (atom.text, atom.truth, atom.distance, atom.unit) == (
            "temperature of F > -15",
            "true",
            1.0,
            "K",
        )
        assert atom.values == {"temperature of F": NamedValue(-14.0, "degC")}
        unknown = [each for each in states.states if each.state == "unknown"]
        assert states.unknown == len(unknown)
        assert {each.atoms[0].missing for each in unknown} <= {("temperature of F",)}
        freezers.clock.set_ms(freezers.clock.now_ms() + 30_000)
        await freezers.read(1.0, station="s3")
        async with freezers.engine.turn:
            states = freezers.engine.situation_states("freezer")
        [one] = [each for each in states.states if each.bindings == {"F": "s1"}]
        assert (one.state, one.truth, one.atoms[0].missing) == (
            "open",
            "unknown",
            ("temperature of F",),
        )

    play(scenario())
