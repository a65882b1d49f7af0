"""Interpretations changed while events flow: on record, in force in one step, never a mixture.

[ME-6, ME-7, ME-12]
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import msgspec
import pytest

from rapport.channel.backends.local import open_embedded, open_memory
from rapport.channel.channel import Channels
from rapport.channel.federation import LinkReceiver
from rapport.channel.log.channels import LoggedChannels
from rapport.core.errors import StaleVersion, StoreUnavailable, UnknownName
from rapport.core.event import Event
from rapport.kernel.clock import ManualClock
from rapport.mediation import interpretation_checks
from rapport.mediation.concepts import ConceptAttribute
from rapport.mediation.config import SiteInterpretations, interpretation_digest
from rapport.mediation.conversion.conversions import Formula, converts
from rapport.mediation.conversion.lookups import NoTables
from rapport.mediation.interpretations.change_log import CHANNEL, read_version
from rapport.mediation.interpretations.change_requests import ChangeRefused, ChangeRequest
from rapport.mediation.interpretations.change_state import ChangeResult
from rapport.mediation.interpretations.model import (
    FormatChoice,
    Interpretation,
    RenameAttribute,
    Rule,
    TypeMapping,
)
from rapport.mediation.interpretations.repository import Repository
from rapport.mediation.interpretations.type_changes import Augment, Change, Declare, Remove
from rapport.mediation.interpretations.updater import InterpretationUpdater
from rapport.mediation.reader import MediationReader
from rapport.mediation.source_bindings import SourceBinding
from rapport.mediation.types import Attribute, ComplexType, PrimitiveType

CONCEPTS = {
    "station": {
        "temperature": ConceptAttribute("number", "degC"),
        "humidity": ConceptAttribute("number", "%"),
    }
}
BINDING = SourceBinding(
    source="weather",
    concept="station",
    attribute="temperature",
    further=("humidity",),
    interpretation="us",
)


def us(factor: float, name: str = "us", parent: str = "root") -> Interpretation:
    """Two attributes, multiplied by the same number: values tell the version they went through."""
    return Interpretation(
        name=name,
        parent=parent,
        types=(
            PrimitiveType(f"{name}t", "number"),
            PrimitiveType(f"{name}h", "number"),
            ComplexType(
                f"{name}Weather",
                (
                    Attribute("station", "text"),
                    Attribute("temperature", f"{name}t"),
                    Attribute("humidity", f"{name}h"),
                ),
            ),
        ),
        mappings=(
            TypeMapping(
                f"{name}Weather", "station", "in", shape=(RenameAttribute("station", "key"),)
            ),
        ),
        rules=(Rule(f"{name}t", "one", "in"), Rule(f"{name}h", "other", "in")),
        conversions=(
            converts("one", f"{name}t", "degC", Formula(multiply=factor)),
            converts("other", f"{name}h", "%", Formula(multiply=factor)),
        ),
    )


def files(*typed: Interpretation) -> SiteInterpretations:
    return SiteInterpretations(
        typed={each.name: each for each in typed},
        concepts=CONCEPTS,
        said={each.name: interpretation_digest(each) for each in typed},
    )


class Node:
    """What a node has of mediation, on channels that outlive it."""

    def __init__(self, channels: Channels, *bindings: SourceBinding, name: str = "a") -> None:
        clock = ManualClock(1_000)
        self.channels = channels
        self.repository = Repository()
        self.reader = MediationReader(channels, bindings, self.repository, clock)
        self.updating = InterpretationUpdater(
            channels, self.repository, self.reader, clock, node=name
        )

    async def change(self, *changes: Change, **more: Any) -> ChangeResult:
        return await self.updating.change(lambda _: ChangeRequest(changes=changes, **more), by="me")

    def factor(self, name: str = "us") -> float | None:
        typed = self.repository.in_force.typed
        if name not in typed:
            return None
        how = typed.named(name).conversions[0].how
        assert isinstance(how, Formula)
        return how.multiply


def test_a_change_is_in_force_and_on_record_when_it_is_answered():
    async def scenario() -> None:
        channels = open_memory(ManualClock())
        node = Node(channels)
        await node.updating.start(files(us(1.0)))
        done = await node.change(Declare(us(2.0)))
        assert (done.changed, list(done.versions)) == (True, ["us"])
        assert node.factor() == 2.0
        again = Node(channels)
        await again.updating.start(files(us(1.0)))
        assert again.factor() == 2.0
        assert again.repository.in_force.stamps == node.repository.in_force.stamps
        ((change, outcome),) = again.updating.history()
        assert (change.id, change.changed.by, outcome.state) == (done.id, "me", "in force")

    asyncio.run(scenario())


def test_a_change_that_fails_its_checks_leaves_everything_as_it_was():
    async def scenario() -> None:
        channels = open_memory(ManualClock())
        node = Node(channels, BINDING)
        await node.updating.start(files(us(1.0)))
        before, last = node.repository.in_force, channels.channel(CHANNEL).last_position()
        refused: list[tuple[Change, str, int]] = [
            (Declare(us(1.0, "x", "nobody")), "interpretation.unknown_parent", 422),
            (Augment("us", rules=(Rule("Nothing", "one"),)), "pattern.invalid", 422),
            (Augment("them"), "interpretation.unknown", 422),
            (Remove("them"), "interpretation.unknown", 422),
            (Remove("us"), "interpretation.in_use", 409),
            (Declare(us(1.0, "us", "us")), "interpretation.parent_cycle", 422),
        ]
        for change, code, status in refused:
            with pytest.raises(ChangeRefused) as caught:
                await node.change(change)
            assert (caught.value.problems[0].code, caught.value.status) == (code, status), change
        assert node.repository.in_force is before
        assert channels.channel(CHANNEL).last_position() == last

    asyncio.run(scenario())


def test_a_change_without_difference_and_a_repeated_one_have_no_effect():
    async def scenario() -> None:
        channels = open_memory(ManualClock())
        node = Node(channels)
        await node.updating.start(files(us(1.0)))
        assert not (await node.change(Declare(us(1.0)))).changed
        added = Augment("us", types=(ComplexType("Ping", ()),))
        first = await node.change(added)
        last = channels.channel(CHANNEL).last_position()
        second = await node.change(added)
        assert (second.changed, second.id) == (False, first.id)
        assert channels.channel(CHANNEL).last_position() == last

    asyncio.run(scenario())


def test_numbers_that_json_writes_otherwise_are_the_same_after_a_restart():
    async def scenario() -> None:
        channels = open_memory(ManualClock())
        node = Node(channels)
        await node.updating.start(files())
        await node.change(Declare(us(2)))
        again = Node(channels)
        await again.updating.start(files())
        assert again.factor() == 2.0
        assert again.repository.in_force.stamps == node.repository.in_force.stamps

    asyncio.run(scenario())


def test_trying_out_changes_nothing():
    async def scenario() -> None:
        node = Node(open_memory(ManualClock()))
        await node.updating.start(files(us(1.0)))
        before = node.repository.in_force
        done = await node.updating.try_out(lambda _: ChangeRequest(changes=(Declare(us(2.0)),)))
        assert (done.changed, list(done.versions)) == (True, ["us"])
        assert node.repository.in_force is before
        assert node.updating.history() == []

    asyncio.run(scenario())


def test_a_change_may_expect_a_version():
    async def scenario() -> None:
        node = Node(open_memory(ManualClock()))
        await node.updating.start(files(us(1.0)))
        seen = node.repository.in_force.stamps["us"]
        await node.change(Declare(us(2.0)), expects={"us": seen})
        with pytest.raises(StaleVersion):
            await node.change(Declare(us(3.0)), expects={"us": seen})
        with pytest.raises(StaleVersion):
            await node.change(Declare(us(3.0)), expects={"us": ""})
        assert node.factor() == 2.0

    asyncio.run(scenario())


def test_every_version_that_was_in_force_is_found_by_its_stamp():
    async def scenario() -> None:
        node = Node(open_memory(ManualClock()))
        await node.updating.start(files(us(1.0)))
        stamps = [node.repository.in_force.stamps["us"]]
        for factor in (2.0, 3.0):
            await node.change(Declare(us(factor)), formats={"us": FormatChoice("msgpack")})
            stamps.append(node.repository.in_force.stamps["us"])
        await node.change(Remove("us"))
        for factor, stamp in zip((1.0, 2.0, 3.0), stamps, strict=True):
            found = await read_version(node.channels, stamp)
            result = msgspec.json.decode(found.version.said, type=Interpretation)
            assert result == us(factor)

    asyncio.run(scenario())


def test_reloaded_files_win_over_changes_and_bind_new_sources():
    async def scenario() -> None:
        channels = open_memory(ManualClock())
        node = Node(channels)
        await node.updating.start(files(us(1.0)))
        await node.change(Declare(us(2.0)))
        changed = await node.updating.load_files(
            files(us(3.0)), {BINDING.source: BINDING}, NoTables()
        )
        assert (list(changed), node.factor()) == (["us"], 3.0)
        ((_, outcome),) = node.updating.history()
        assert outcome.state == "lost"
        assert node.reader.transformer("weather").stamp == node.repository.in_force.stamps["us"]
        assert (await node.change(Declare(us(2.0)))).changed
        assert node.factor() == 2.0

    asyncio.run(scenario())


def test_a_file_that_cannot_be_read_takes_no_change_away():
    async def scenario() -> None:
        channels = open_memory(ManualClock())
        node = Node(channels)
        await node.updating.start(files(us(1.0)))
        await node.change(Declare(us(2.0)))
        broken = msgspec.structs.replace(files(), unread={"us": ()})
        await Node(channels).updating.start(broken)
        after = Node(channels)
        await after.updating.start(files(us(1.0)))
        assert after.factor() == 2.0

    asyncio.run(scenario())


def test_a_change_that_keeps_something_from_a_source_is_made_with_a_warning():
    async def scenario() -> None:
        node = Node(open_memory(ManualClock()), BINDING)
        await node.updating.start(files(us(1.0)))
        poor = us(1.0)
        weather = ComplexType("Poor", poor.types[2].attributes[:2])  # type: ignore[union-attr]
        poor = msgspec.structs.replace(
            poor,
            types=(*poor.types[:2], weather),
            mappings=(msgspec.structs.replace(poor.mappings[0], source="Poor"),),
        )
        done = await node.change(Declare(poor))
        warned = {each.code: each for each in done.problems if each.severity == "warning"}
        assert set(warned) == {"mapping.missing", "rule.unused"}
        assert "humidity of station" in warned["mapping.missing"].message
        with pytest.raises(ChangeRefused) as caught:
            await node.change(Declare(us(1.0)), formats={"us": FormatChoice("csw")})
        assert caught.value.problems[0].code.startswith("format")

    asyncio.run(scenario())


def test_a_lane_whose_interpretation_stays_keeps_its_transformer():
    async def scenario() -> None:
        node = Node(open_memory(ManualClock()), BINDING)
        await node.updating.start(files(us(1.0)))
        before = node.reader.transformer("weather")
        await node.change(Declare(us(7.0, "fr")))
        assert node.reader.transformer("weather") is before
        await node.change(Declare(us(2.0)))
        assert node.reader.transformer("weather") is not before

    asyncio.run(scenario())


# --- dying between steps ---


class Dies(Exception):
    """The process is gone."""


class DyingChannel:
    """A channel whose process dies before or after the n-th append is on disk."""

    def __init__(self, channel: Any, countdown: list[int], after: bool) -> None:
        self._channel, self._countdown, self._after = channel, countdown, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    async def append(self, events: Any) -> Any:
        self._countdown[0] -= 1
        if self._countdown[0] == 0 and not self._after:
            raise Dies
        appended = await self._channel.append(events)
        if self._countdown[0] == 0:
            raise Dies
        return appended


class DyingChannels:
    def __init__(self, channels: LoggedChannels, append: int, after: bool) -> None:
        self._channels, self._countdown, self._after = channels, [append], after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channels, name)

    def channel(self, name: str) -> Any:
        return DyingChannel(self._channels.channel(name), self._countdown, self._after)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("append", range(1, 5))
def test_a_crash_between_any_two_steps_leaves_the_old_or_the_new_state(tmp_path, append, after):
    """On a real log: opened anew, it gives what was in force before the step or after it, whole."""
    steps: list[tuple[Change, ...]] = [
        (Declare(us(2.0)),),
        (Declare(us(3.0)), Declare(us(30.0, "fr"))),
        (Declare(us(4.0)), Declare(us(40.0, "fr"))),
    ]
    states = [(1.0, None), (2.0, None), (3.0, 30.0), (4.0, 40.0)]

    async def scenario() -> None:
        log = open_embedded(tmp_path, ManualClock())
        node = Node(DyingChannels(log, append, after))  # type: ignore[arg-type]
        made = 0
        try:
            await node.updating.start(files(us(1.0)))
            for step in steps:
                await node.change(*step)
                made += 1
        except Dies:
            pass
        await log.close()
        reopened = open_embedded(tmp_path, ManualClock())
        try:
            again = Node(reopened)
            await again.updating.start(files(us(1.0)))
            found = (again.factor(), again.factor("fr"))
            assert found in (states[made], states[min(made + 1, 3)])
            if after and append > 1:
                assert found == states[append - 1]
        finally:
            await reopened.close()

    asyncio.run(scenario())


# --- several nodes ---


def test_a_change_at_one_node_is_in_force_at_the_other_and_concurrent_ones_come_out_the_same():
    async def scenario() -> None:
        nodes = {name: Node(open_memory(ManualClock()), name=name) for name in ("a", "b")}
        a, b = nodes["a"], nodes["b"]
        await a.updating.start(files(us(1.0)))
        await b.updating.start(files())
        await a.change(Declare(us(5.0, "fr")))
        await hand_over(a, b)
        assert (b.factor("fr"), b.factor("us")) == (5.0, None)
        # Both change it while they are apart; then they meet.
        await a.change(Declare(us(6.0, "fr")))
        await b.change(Declare(us(7.0, "fr")))
        await b.change(Declare(us(8.0, "it")))
        await hand_over(a, b)
        await hand_over(b, a)
        assert a.factor("fr") == b.factor("fr")
        assert (a.factor("it"), b.factor("it")) == (8.0, 8.0)
        assert a.factor("us") == 1.0
        again = Node(a.channels, name="a")
        await again.updating.start(files(us(1.0)))
        assert again.repository.in_force.stamps == a.repository.in_force.stamps
        # What one node recorded explains readings that reach the other.
        assert (
            await read_version(b.channels, a.repository.in_force.stamps["us"])
        ).version.name == "us"

    asyncio.run(scenario())


async def hand_over(giver: Node, taker: Node) -> None:
    """As a link does it, in the order of the giver's log."""

    async def append(name: str, events: Any) -> Any:
        return await taker.channels.channel(name).append(events)

    async def bury(*_: Any) -> None:
        raise AssertionError("refused")

    receiver = LinkReceiver(taker.updating._kept.node, taker.channels, append, bury)  # type: ignore[arg-type]
    stored = await giver.channels.channel(CHANNEL).read_after(0)
    await receiver.take_in(CHANNEL, giver.updating._kept.node, [one.event for one in stored])
    await taker.updating.step()


def test_a_change_of_another_node_is_activated():
    async def scenario() -> None:
        a, b = Node(open_memory(ManualClock())), Node(open_memory(ManualClock()), name="b")
        await a.updating.start(files())
        await b.updating.start(files())
        following = asyncio.create_task(b.updating.run())
        await a.change(Declare(us(5.0, "fr")))
        stored = await a.channels.channel(CHANNEL).read_after(0)
        await b.channels.channel(CHANNEL).append([one.event for one in stored])
        for _ in range(10_000):
            if b.factor("fr") is not None:
                break
            await asyncio.sleep(0.001)
        assert b.factor("fr") == 5.0
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    asyncio.run(scenario())


# --- under load ---


@pytest.mark.slow
def test_two_hundred_changes_under_load_lose_double_and_mix_nothing(monkeypatch):
    """Every event is wholly old or wholly new, in the order of the changes; no check runs on the
    event loop.
    """
    checked_by: Counter[bool] = Counter()
    check = interpretation_checks.CheckedInterpretation.__init__

    def counted(self: Any, *given: Any) -> None:
        checked_by[threading.current_thread() is threading.main_thread()] += 1
        check(self, *given)

    async def scenario() -> None:
        channels = open_memory(ManualClock())
        node = Node(channels, BINDING)
        await node.updating.start(files(us(1.0)))
        node.reader.transformer("weather")
        monkeypatch.setattr(interpretation_checks.CheckedInterpretation, "__init__", counted)
        changing = sending = True
        sent = 0

        async def send() -> None:
            nonlocal sent, sending
            while sending:
                sending = changing  # what comes after the last change is sent, too
                events = [_event(sent + number) for number in range(20)]
                await channels.channel("raw.weather").append(events)
                sent += len(events)
                await asyncio.sleep(0.001)

        async def mediate() -> None:
            lane = node.reader.lane("weather")
            while sending or lane.counts.read < sent:
                await lane.step(timeout_ms=0)
                await asyncio.sleep(0)

        async def change() -> None:
            nonlocal changing
            for number in range(2, 202):
                await node.change(Declare(us(float(number))))
            changing = False

        async with asyncio.timeout(120):
            await asyncio.gather(send(), mediate(), change())
        readings = [
            one.event for one in await channels.channel("events").read_after(0, limit=10**6)
        ]
        _judge(readings, sent)
        assert checked_by[False] >= 200
        assert checked_by[True] == 0
        assert channels.channel("quarantine").last_position() == 0

    asyncio.run(scenario())


def _event(number: int) -> Event:
    result = {"station": f"s{number}", "temperature": 1.0, "humidity": 1.0}
    return Event("weather", f"w{number}", "usWeather", "", 1_000, msgspec.json.encode(result))


def _judge(readings: list[Event], sent: int) -> None:
    """Each event gave two readings, once, by one version; versions came in order."""
    factors: dict[str, set[float]] = {}
    stamps: dict[str, set[str]] = {}
    for reading in readings:
        number = reading.payload()["key"]
        factors.setdefault(number, set()).add(reading.payload()["value"][0])
        stamps.setdefault(number, set()).add(reading.headers["interpretation"])
    assert len(readings) == 2 * sent
    assert len(factors) == sent
    assert all(len(each) == 1 for each in (*factors.values(), *stamps.values()))
    order = [next(iter(factors[f"s{number}"])) for number in range(sent)]
    assert order == sorted(order)
    assert len(set(order)) > 5
    assert max(order) == 201.0
    by_stamp = {next(iter(stamps[each])): next(iter(factors[each])) for each in factors}
    assert len(by_stamp) == len(set(order))


def test_a_version_that_nobody_recorded_is_unknown():
    async def scenario() -> None:
        with pytest.raises(UnknownName):
            await read_version(open_memory(ManualClock()), "us@123456789012")

    asyncio.run(scenario())


def test_files_that_could_not_be_put_on_record_bring_nothing_later() -> None:
    """Neither how sources speak nor their tables are taken over by the next change."""

    async def scenario() -> None:
        node = Node(open_memory(ManualClock()), BINDING)
        await node.updating.start(files(us(2.0)))
        channel = node.channels.channel(CHANNEL)
        append = channel.append

        async def full(_events: Any) -> Any:
            raise StoreUnavailable("the disk is full")

        channel.append = full  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable):
            await node.updating.load_files(files(us(3.0)), {}, NoTables())
        channel.append = append  # type: ignore[method-assign]
        lookups = node.reader.lookups
        await node.change(Declare(us(5.0, name="other")))
        assert node.reader.bindings == {"weather": BINDING}
        assert node.reader.lookups is lookups
        assert (node.factor(), node.factor("other")) == (2.0, 5.0)

    asyncio.run(scenario())
