"""A situation in the shadow: what it would have told is recorded and compared by overlap, and
nobody is notified. [PO-9, SI-14]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.core.detection import DETECTED, ENDED, Detection
from rapport.policy.engine.open_situations import OpenSituation
from rapport.policy.engine.shadow_episodes import (
    SHADOW_DETECTED,
    SHADOW_ENDED,
    SHADOW_TYPE,
    ComparedVersions,
    EpisodeComparison,
    EpisodeState,
    FoundBy,
    ShadowDifference,
    ShadowTally,
)

World = Any
Play = Callable[[Callable[[World], Any]], None]
NOW = 100_000
INSIDE = """concepts
  person A (status='guest')
  room R (security='restricted')
situation
  A is inside R
actions
  raise alarm
"""
LATER = INSIDE.replace("A is inside R", "A is inside R for 5 s")
AT, AWAY = (5.0, 5.0), (50.0, 50.0)


async def turns(world: World, begin: str, end: str) -> list[tuple[str, int]]:
    """`+` and `-` with the seconds since NOW."""
    found = [
        (sign, Detection.from_event(event).time - NOW)
        for sign, kind in (("+", begin), ("-", end))
        for event in await world.events(kind)
    ]
    return sorted(found, key=lambda one: one[1])


async def differences(world: World) -> list[ShadowDifference]:
    return [event.payload_as(ShadowDifference) for event in await world.events(SHADOW_TYPE)]


async def start(world: World, text: str = INSIDE) -> None:
    await world.start(texts={"in": text}, commit_every_ms=0)


async def go(world: World, *steps: tuple[int, tuple[float, float]], restarted: bool) -> None:
    """A guest is there at some milliseconds."""
    for after, place in steps:
        if restarted:
            await start(world)
        await world.send(world.position(NOW + after, f"p{after}", "2", *place))
        await world.until(NOW + after + 1)


@pytest.mark.parametrize("restarted", [False, True])
def test_beginnings_and_ends_of_the_shadow_are_recorded_and_only_lone_episodes_differ(
    play: Play, restarted: bool
) -> None:
    async def story(world: World) -> None:
        await start(world)
        await go(world, (0, AWAY), restarted=False)
        await world.life.shadow("in", LATER, by="ana")
        long = [(20_000, AT), (23_000, AT), (26_000, AT), (30_000, AWAY)]
        await go(world, *long, (40_000, AT), (42_000, AWAY), (43_000, AWAY), restarted=restarted)
        assert await turns(world, DETECTED, ENDED) == [
            ("+", 20_000),
            ("-", 30_000),
            ("+", 40_000),
            ("-", 42_000),
        ]
        assert await turns(world, SHADOW_DETECTED, SHADOW_ENDED) == [("+", 25_000), ("-", 30_000)]
        [lone] = await differences(world)
        assert (lone.found_by, lone.time, lone.ended) == ("running", NOW + 40_000, NOW + 42_000)
        assert world.life.policy("in").tally == ShadowTally(1, 1, 0)
        states = await world.life.states("in")
        assert states.shadow.version == world.life.policy("in").shadow
        assert (states.open, states.shadow.open) == (0, 0)

    play(story)


def test_the_states_of_the_shadow_are_shown_beside_those_in_force(play: Play) -> None:
    async def story(world: World) -> None:
        await start(world, LATER)
        await go(world, (0, AWAY), restarted=False)
        await world.life.shadow("in", INSIDE)
        await go(world, (10_000, AT), restarted=False)
        states = await world.life.states("in")
        assert (states.open, states.shadow.open) == (0, 1)
        [one] = states.shadow.states
        assert (one.bindings, one.began) == ({"A": "2", "R": "r1"}, NOW + 10_000)
        await world.life.drop("in")
        assert (await world.life.states("in")).shadow is None

    play(story)


def test_the_shadow_goes_on_with_what_is_open_and_tells_its_own_end(play: Play) -> None:
    async def story(world: World) -> None:
        await start(world)
        await go(world, (0, AT), restarted=False)
        other = INSIDE.replace("actions", "cleared by\n  NOT A is inside R for 3 s\nactions")
        other = other.replace("NOT A is inside R for 3 s", "(NOT A is inside R) for 3 s")
        await world.life.shadow("in", other)
        await go(world, (1_000, AT), (2_000, AWAY), (4_000, AWAY), (6_000, AWAY), restarted=False)
        assert await turns(world, DETECTED, ENDED) == [("+", 0), ("-", 2_000)]
        assert await turns(world, SHADOW_DETECTED, SHADOW_ENDED) == [("-", 5_000)]
        await world.life.drop("in")
        assert await differences(world) == []
        assert [Detection.from_event(one).began for one in await world.events(SHADOW_ENDED)] == [
            NOW
        ]

    play(story)


@pytest.mark.parametrize("restarted", [False, True])
def test_what_only_the_promoted_shadow_has_open_begins_then(play: Play, restarted: bool) -> None:
    async def story(world: World) -> None:
        await start(world, LATER.replace("5 s", "60 s"))
        await go(world, (0, AWAY), restarted=False)
        await world.life.shadow("in", INSIDE)
        await go(world, (10_000, AT), (12_000, AT), restarted=False)
        assert await turns(world, DETECTED, ENDED) == []
        await world.life.promote("in")
        if restarted:
            await world.start(texts={"in": LATER.replace("5 s", "60 s")}, commit_every_ms=0)
        await world.until(NOW + 14_000)
        [(sign, began)] = await turns(world, DETECTED, ENDED)
        assert sign == "+"
        assert 12_000 <= began <= 14_000
        await world.send(world.position(NOW + 15_000, "out", "2", *AWAY))
        await world.until(NOW + 16_000)
        assert await turns(world, DETECTED, ENDED) == [("+", began), ("-", 15_000)]
        assert (await world.life.states("in")).shadow is None

    play(story)


def test_what_the_promoted_shadow_does_not_have_open_ends_once(play: Play) -> None:
    async def story(world: World) -> None:
        slow = INSIDE.replace("actions", "cleared by\n  (NOT A is inside R) for 60 s\nactions")
        await start(world, slow)
        await go(world, (0, AT), restarted=False)
        await world.life.shadow("in", INSIDE)
        await go(world, (1_000, AT), (5_000, AWAY), (6_000, AWAY), restarted=False)
        assert await turns(world, DETECTED, ENDED) == [("+", 0)]
        await world.life.promote("in")
        await world.until(NOW + 8_000)
        [_, (sign, ended)] = await turns(world, DETECTED, ENDED)
        assert sign == "-"
        assert 5_000 < ended <= 8_000
        await go(world, (9_000, AWAY), restarted=False)
        assert len(await turns(world, DETECTED, ENDED)) == 2

    play(story)


def test_a_shadow_of_other_kind_is_compared_with_instants(play: Play) -> None:
    async def story(world: World) -> None:
        await start(world, INSIDE.replace("situation", "conditions"))
        await go(world, (0, AWAY), restarted=False)
        await world.life.shadow("in", INSIDE)
        await go(world, (10_000, AT), (12_000, AT), (20_000, AWAY), (40_000, AWAY), restarted=False)
        assert await differences(world) == []
        assert world.life.policy("in").tally == ShadowTally(2, 0, 0)
        states = await world.life.states("in")
        assert "conditions" in states.problem
        assert states.shadow.open == 0

    play(story)


# --- the comparison ---


class Span(msgspec.Struct, frozen=True):
    by: FoundBy
    who: str
    began: int
    ended: int | None


def spans_of(seed: Sequence[tuple[bool, int, list[int]]]) -> list[Span]:
    """Episodes of two versions about three stations; those of one side and station do not touch."""
    found: list[Span] = []
    for number, (is_running, who, lengths) in enumerate(seed):
        by: FoundBy = "running" if is_running else "shadow"
        if any((one.by, one.who) == (by, f"s{who}") for one in found):
            continue
        time = 10 + number
        for begin, end in zip(lengths[::2], lengths[1::2], strict=False):
            found.append(Span(by, f"s{who}", time + begin, time + begin + end))
            time += begin + end
        if len(lengths) % 2:
            found.append(Span(by, f"s{who}", time + lengths[-1], None))
    return found


def comparison() -> EpisodeComparison:
    return EpisodeComparison(
        ComparedVersions("p", "1", "2"),
        0,
        memory_ms=0,
        grace_ms=0,
        lasting=["running", "shadow"],
        is_continued=True,
    )


SPANS = st.lists(
    st.tuples(st.booleans(), st.integers(1, 3), st.lists(st.integers(1, 20), max_size=9)),
    max_size=8,
)


@given(SPANS, st.lists(st.integers(0, 200), max_size=6))
@settings(deadline=None)
def test_however_it_is_cut_and_restored_lone_episodes_are_those_that_overlap_none(
    seed: list[tuple[bool, int, list[int]]], cuts: list[int]
) -> None:
    spans = spans_of(seed)

    def meets(one: Span) -> bool:
        return any(
            other.by != one.by
            and other.who == one.who
            and max(one.began, other.began)
            < min(1_000 if each.ended is None else each.ended for each in (one, other))
            for other in spans
        )

    events = sorted(
        [(one.began, 1, one) for one in spans]
        + [(one.ended, 0, one) for one in spans if one.ended is not None],
        key=lambda each: (each[0], each[1]),
    )
    compared, told = comparison(), []
    begin = 0
    for end in [*sorted(cuts), 10_000]:
        step: dict[FoundBy, list[Detection]] = {"running": [], "shadow": []}
        for time, is_begin, one in events:
            if begin <= time < end:
                began = None if is_begin else one.began
                step[one.by].append(
                    Detection(
                        policy="p", time=time, bindings={"S": one.who}, causes=(), began=began
                    )
                )
        told += compared.take(step["running"], step["shadow"], end)
        begin = max(begin, end)
        again = comparison()
        raw = msgspec.msgpack.encode(compared.state())
        again.restore(msgspec.msgpack.decode(raw, type=EpisodeState))
        again.tally, compared = compared.tally, again
        assert (compared.due() or 10_000) >= end
    told += compared.end()
    lone = sorted((one.by, one.who, one.began, one.ended) for one in spans if not meets(one))
    found = [(one.found_by, one.bindings["S"], one.time, one.ended) for one in told]
    assert sorted(found, key=str) == sorted(lone, key=str)
    both = sum(meets(one) for one in spans if one.by == "running")
    only = {by: sum(one[0] == by for one in lone) for by in ("running", "shadow")}
    assert compared.tally == ShadowTally(both, only["running"], only["shadow"])


def test_what_the_shadow_could_not_see_does_not_count() -> None:
    carried = [OpenSituation("p", "1", {"S": "s1"}, 5, "id")]
    compared = EpisodeComparison(
        ComparedVersions("p", "1", "2"),
        100,
        memory_ms=50,
        grace_ms=0,
        lasting=["running", "shadow"],
        carried=carried,
        is_continued=False,
    )

    def one(time: int, who: str, cause: int, began: int | None = None) -> Detection:
        causes = ((cause, "c"),)
        return Detection(policy="p", time=time, bindings={"S": who}, causes=causes, began=began)

    begun = [one(110, "s2", 90), one(120, "s3", 120), one(130, "s4", 130)]
    ends = [one(140, "s3", 140, 120), one(160, "s1", 160, 5), one(170, "s2", 170, 110)]
    ends.append(one(170, "s4", 170, 130))
    [found] = compared.take([*begun, *ends], [], 200)
    assert (found.bindings, found.time) == ({"S": "s4"}, 130)
