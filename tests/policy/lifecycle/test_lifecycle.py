"""Policies changed while events flow: what runs since which place, across crashes. [PO-9, PO-10]"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from rapport.core.detection import SKIPPED, Detection, SkippedAction
from rapport.core.errors import (
    Conflict,
    DuplicateName,
    InvalidInput,
    PolicyError,
    StaleVersion,
    UnknownName,
)
from rapport.policy.compiler.compile import CompiledPolicy, compile_policy
from rapport.policy.lifecycle.registry import CHANGED, CHANNEL, PolicyChange

World = Any
Play = Callable[[Callable[[World], Any]], None]
NOW = 100_000
NEVER = 10_000_000
"""Commits nothing, so a restart reads everything again."""


def test_files_are_taken_in_once_and_a_restart_gives_the_same_set(play: Play) -> None:
    async def story(world: World) -> None:
        await world.start("or", "within")
        assert [(done.name, done.what) for done in world.done] == [
            ("or", "registered"),
            ("within", "registered"),
        ]
        await world.send(world.position(NOW, "a", "2"))
        await world.until(NOW + 1)
        await world.start("or", "within")
        assert world.done == []
        assert world.states() == {"or": "running", "within": "running"}
        assert set(world.engine.policies()) == {"or", "within"}
        await world.until(NOW + 10)
        assert await world.found() == [("or", NOW)]

    play(story)


def test_a_file_is_the_later_word_and_an_unchanged_one_is_not(play: Play) -> None:
    async def story(world: World) -> None:
        await world.start("or")
        await world.life.replace("or", world.texts["within"], by="ana")
        await world.life.register("extra", world.texts["or"], by="ana")
        await world.start("or")
        assert world.done == []
        assert world.life.policy("or").text == world.texts["within"]
        assert world.life.policy("or").by == "ana"
        await world.start(texts={"or": world.texts["mixed"]})
        assert [(done.name, done.what) for done in world.done] == [("or", "replaced")]
        assert world.life.policy("or").text == world.texts["mixed"]
        await world.start()
        assert world.states() == {"extra": "running"}

    play(story)


def test_a_policy_deleted_at_run_time_stays_deleted_though_its_file_is_there(play: Play) -> None:
    async def story(world: World) -> None:
        await world.start("or", "within")
        await world.life.delete("or", by="ana")
        await world.start("or", "within")
        assert world.states() == {"within": "running"}
        history = world.life.history("or")
        assert [(one.what, one.by) for one in history] == [
            ("registered", "files of the site"),
            ("deleted", "ana"),
        ]

    play(story)


def test_a_change_holds_from_its_place_on_and_begins_anew(play: Play) -> None:
    async def story(world: World) -> None:
        await world.start("or")
        await world.send(world.position(NOW, "a", "2"))
        done = await world.life.register("other", world.texts["or"], by="ana")
        assert (done.changed, done.after) == (True, 1)
        await world.life.pause("or")
        await world.send(world.position(NOW + 10, "b", "2"))
        done = await world.life.resume("or")
        assert done.after == 2
        await world.send(world.position(NOW + 20, "c", "2"))
        await world.until(NOW + 100)
        found = await world.found()
        # In event time a change holds from the watermark at its place on: what waits is still seen.
        assert [time for policy, time in found if policy == "other"] == [NOW, NOW + 10, NOW + 20]
        assert [time for policy, time in found if policy == "or"] == [NOW + 10, NOW + 20]
        assert (await world.life.pause("or")).changed
        assert not (await world.life.pause("or")).changed

    play(story)


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_after_a_crash_every_change_is_met_in_its_place(play: Play, batch: int) -> None:
    async def story(world: World) -> None:
        options = {"commit_every_ms": NEVER, "batch": batch}
        await world.start("or", **options)
        for number in range(20):
            await world.send(world.position(NOW + number * 10, f"e{number}", "2"))
            await world.until(NOW + number * 10 + 5)
            if number == 3:
                await world.life.replace("or", world.texts["and-not"])
            if number == 7:
                await world.life.register("extra", world.texts["or"])
            if number == 9:
                await world.life.pause("extra")
            if number == 12:
                await world.life.resume("extra")
            if number == 15:
                await world.life.delete("or")
        await world.until(NOW + 60_000)
        before = await world.channels.channel("detections").read_after(0, limit=1000)
        assert len({event.event.id for event in before}) == len(before)
        for _ in range(2):
            await world.start("or", **{**options, "batch": 3})
            await world.drain()
            await world.drain()
            after = await world.channels.channel("detections").read_after(0, limit=1000)
            assert after == before
        assert world.states() == {"extra": "running"}

    play(story)


def test_killed_between_registering_and_the_first_event_it_sees_that_event(play: Play) -> None:
    async def story(world: World) -> None:
        await world.start(commit_every_ms=NEVER)
        await world.life.register("or", world.texts["or"])
        await world.start(commit_every_ms=NEVER)
        await world.send(world.position(NOW, "a", "2"))
        await world.until(NOW + 1)
        assert await world.found() == [("or", NOW)]

    play(story)


def test_a_record_that_fails_changes_nothing(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        await world.start("or")
        channel = world.channels.channel(CHANNEL)

        async def broken(events: object) -> None:
            raise OSError("disk")

        with monkeypatch.context() as patch:
            patch.setattr(type(channel), "append", lambda self, events: broken(events))
            with pytest.raises(OSError, match="disk"):
                await world.life.delete("or")
        assert world.states() == {"or": "running"}
        await world.send(world.position(NOW, "a", "2"))
        await world.until(NOW + 1)
        assert await world.found() == [("or", NOW)]

    play(story)


def test_what_may_not_be_done_is_refused_with_its_reason(play: Play) -> None:
    async def story(world: World) -> None:
        await world.start("or", "within")
        text = world.texts["or"]
        with pytest.raises(DuplicateName) as exists:
            await world.life.register("or", text)
        assert exists.value.code == "policy.exists"
        with pytest.raises(UnknownName) as unknown:
            await world.life.delete("withni")
        assert unknown.value.nearest == ("within",)
        with pytest.raises(InvalidInput):
            await world.life.register("../or", text)
        with pytest.raises(StaleVersion):
            await world.life.replace("or", world.texts["mixed"], expects="other")
        with pytest.raises(PolicyError) as wrong:
            await world.life.replace("or", "concepts\n person A\nconditions\n A is insde R\n")
        assert wrong.value.problems
        with pytest.raises(Conflict) as none:
            await world.life.promote("or")
        assert none.value.code == "policy.no_shadow"
        with pytest.raises(Conflict):
            await world.life.shadow("or", text)
        await world.life.pause("or")
        with pytest.raises(Conflict):
            await world.life.shadow("or", world.texts["mixed"])
        assert not (await world.life.replace("or", text)).changed
        checked = await world.life.check("new", "nonsense")
        assert checked.version == ""
        assert all(problem.line for problem in checked.problems)
        assert len(await world.events(CHANGED, CHANNEL)) == 3

    play(story)


def test_versions_are_kept_with_author_time_and_difference(play: Play) -> None:
    async def story(world: World) -> None:
        await world.start("or")
        world.clock.set_ms(NOW + 5)
        await world.life.replace("or", world.texts["or"].replace("raise alarm", "ring"), by="ana")
        first, second = world.life.history("or")
        assert (second.by, second.time, second.what) == ("ana", NOW + 5, "replaced")
        assert first.version != second.version
        assert "-  raise alarm\n+  ring\n" in second.diff

    play(story)


def test_each_version_keeps_its_own_phrases_also_after_a_restart(play: Play) -> None:
    async def story(world: World) -> None:
        await world.start("or")
        text = world.texts["or"]
        await world.life.replace("or", text.replace("raise alarm", "ring"))
        await world.life.replace("or", text.replace("raise alarm", "call").replace("A", "Z"))
        await world.life.delete("or")
        first, second, third, _ = (one.version for one in world.life.history("or"))
        for _ in range(2):
            phrases = world.life.phrases
            assert phrases("or", first) == ("raise alarm",)
            assert phrases("or", second) == ("ring",)
            assert phrases("or", third) == phrases("or", "unheard of") == ("call",)
            assert phrases("nobody", first) == ()
            old, new = world.life.compiled("or", first), world.life.compiled("or", third)
            assert next(one.alias for one in old.tree.concepts) == "A"
            assert next(one.alias for one in new.tree.concepts) == "Z"
            await world.start("or")

    play(story)


def test_an_ontology_that_breaks_a_policy_marks_it_and_the_others_go_on(play: Play) -> None:
    async def story(world: World) -> None:
        await world.start("or", "within")
        whole = world.ontology
        relations = {k: v for k, v in whole.relationships.items() if k != "within"}
        world.ontology = msgspec.structs.replace(whole, relationships=relations)
        await world.start("or", "within")
        assert [(done.name, done.what) for done in world.done] == [("within", "broken")]
        shown = world.life.policy("within")
        assert (shown.state, shown.problems[0].code) == ("broken", "policy.unknown_relationship")
        await world.send(world.position(NOW, "a", "2"), world.position(NOW + 1, "b", "3"))
        await world.until(NOW + 10)
        assert await world.found() == [("or", NOW)]
        await world.start("or", "within")
        assert world.done == []
        world.ontology = whole
        await world.start("or", "within")
        assert [(done.name, done.what) for done in world.done] == [("within", "rebuilt")]
        assert world.states() == {"or": "running", "within": "running"}

    play(story)


def test_a_file_that_does_not_compile_is_broken_at_start_and_refused_by_a_reload(
    play: Play,
) -> None:
    async def story(world: World) -> None:
        await world.start(texts={"or": world.texts["or"], "bad": "nonsense"})
        assert world.states() == {"bad": "broken", "or": "running"}
        with pytest.raises(PolicyError):
            await world.life.take_files({"or": "nonsense"}, (), world.compile)
        assert world.states() == {"bad": "broken", "or": "running"}
        done = await world.life.take_files({"or": world.texts["within"]}, (), world.compile)
        assert [(one.name, one.what) for one in done] == [("or", "replaced"), ("bad", "deleted")]
        assert world.states() == {"or": "running"}

    play(story)


def test_an_empty_file_is_refused_by_a_reload_and_taken_in_once(play: Play) -> None:
    async def story(world: World) -> None:
        await world.start("or")
        with pytest.raises(PolicyError):
            await world.life.take_files({"or": ""}, (), world.compile)
        assert world.states() == {"or": "running"}
        for _start in range(2):
            await world.start(texts={"or": world.texts["or"], "empty": ""})
        assert world.states() == {"empty": "broken", "or": "running"}
        assert [change.what for change in world.life.history("empty")] == ["registered"]
        await world.start("or")
        assert world.states() == {"or": "running"}

    play(story)


async def _waits_for_turn(world: World, asked: Any, number: int) -> asyncio.Task[Any]:
    """What was asked for, once it is the one with that number that waits."""
    task = asyncio.create_task(asked)
    while len(world.engine.turn._waiters or ()) < number:  # noqa: ASYNC110
        await asyncio.sleep(0)
    return task


def test_a_policy_registered_while_the_ontology_changes_uses_the_new_one(play: Play) -> None:
    async def story(world: World) -> None:
        await world.start("within")

        def other_window(name: str, text: str) -> CompiledPolicy:
            return compile_policy(text, name=name, ontology=world.ontology, window_ms=777)

        async with world.engine.turn:
            change = await _waits_for_turn(world, world.life.take_ontology(other_window), 1)
            asked = await _waits_for_turn(world, world.life.register("or", world.texts["or"]), 2)
        await change
        done = await asked
        assert done.version == other_window("or", world.texts["or"]).plan.version()
        assert world.engine.policies() == world.life.versions()
        assert world.engine.policies()["or"] == done.version

    play(story)


def test_what_is_promoted_is_what_runs_in_the_shadow_then(play: Play) -> None:
    async def story(world: World) -> None:
        await world.start("or")
        first = await world.life.shadow("or", world.texts["within"])
        async with world.engine.turn:
            shadow = world.life.shadow("or", world.texts["chain"])
            other = await _waits_for_turn(world, shadow, 1)
            asked = await _waits_for_turn(world, world.life.promote("or"), 2)
        assert (await asked).version == (await other).version != first.version
        assert world.life.policy("or").text == world.texts["chain"]

    play(story)


STOPPING = "concepts\n  person A (status='guest')\n  room R (security='restricted')\n"
STOPPING += "conditions\n  A is inside R\nactions\n  raise alarm\n  delete policy or\n"


def test_what_a_detection_that_is_too_old_does_to_policies_is_recorded_and_not_carried_out(
    play: Play,
) -> None:
    async def story(world: World) -> None:
        texts = {"or": world.texts["or"], "stopper": STOPPING}
        await world.start(texts=texts, commit_every_ms=NEVER)
        readings = [world.position(NOW + 10 * n, f"e{n}", "2", 5) for n in range(2)]
        await world.channels.channel("events").append(readings)
        await world.until(NOW + 3 * 3_600_000)  # the node was away for so long
        assert world.states() == {"or": "running", "stopper": "running"}
        skipped = [SkippedAction.from_event(event) for event in await world.events(SKIPPED)]
        assert {one.phrase for one in skipped} == {"delete policy or"}
        assert {one.detection.time for one in skipped} == {NOW, NOW + 10}
        before = await world.channels.channel("detections").read_after(0, limit=1000)
        await world.start(texts=texts, commit_every_ms=NEVER)
        await world.until(NOW + 4 * 3_600_000)  # read again after a crash
        assert await world.channels.channel("detections").read_after(0, limit=1000) == before

    play(story)


@pytest.mark.parametrize("batch", [1, 4, 1000])
def test_a_detection_deletes_a_policy_at_its_own_time_however_events_are_cut(
    play: Play, batch: int
) -> None:
    async def story(world: World) -> None:
        options = {"commit_every_ms": NEVER, "lateness_ms": 50}
        await world.start(
            texts={"or": world.texts["or"], "stopper": STOPPING}, batch=batch, **options
        )
        # In the public room only `or` fires; from NOW + 50 on the restricted one stops it.
        readings = [
            world.position(NOW + 10 * n, f"e{n}", "2", 15 if n < 5 or n > 7 else 5)
            for n in range(12)
        ]
        await world.send(*readings)
        await world.until(NOW + 60_000)
        found = await world.found()
        assert [time for policy, time in found if policy == "or"] == [
            NOW + 10 * n for n in range(6)
        ]
        assert [time for policy, time in found if policy == "stopper"] == [
            NOW + 50,
            NOW + 60,
            NOW + 70,
        ]
        [change] = [
            event for event in await world.events(CHANGED, CHANNEL) if "cause" in event.headers
        ]
        changed: PolicyChange = change.payload_as(PolicyChange)
        assert (changed.what, changed.name, changed.by) == ("deleted", "or", "policy stopper")
        causing = [
            e for e in await world.events("rapport.policy.detected") if e.id == changed.cause
        ]
        assert Detection.from_event(causing[0]).policy == "stopper"
        before = await world.channels.channel("detections").read_after(0, limit=1000)
        for again in (1, 3, 1000):
            await world.start(
                texts={"or": world.texts["or"], "stopper": STOPPING}, batch=again, **options
            )
            await world.drain()
            await world.drain()
            assert await world.channels.channel("detections").read_after(0, limit=1000) == before
        assert world.states() == {"stopper": "running"}
        assert world.life.phrases("stopper", "") == ("raise alarm",)
        assert world.engine.counts_by_policy()["stopper"].errors == 0

    play(story)


@pytest.mark.parametrize("batch", [1, 1000])
@pytest.mark.parametrize("command", ["pause", "delete"])
def test_a_detection_that_found_nothing_to_stop_stops_nothing_after_a_crash(
    play: Play, command: str, batch: int
) -> None:
    stopping = STOPPING.replace("delete policy or", f"{command} policy or")
    texts = {"stopper": stopping}

    async def story(world: World) -> None:
        options = {"commit_every_ms": NEVER, "commit_every_events": NEVER, "batch": batch}
        await world.start(texts=texts, **options)
        await world.send(world.position(NOW, "a", "2"))  # there is no such policy yet
        await world.until(NOW + 10)
        await world.life.register("or", world.texts["or"])
        for number in range(3):  # the first one stops it, the others find it stopped
            await world.send(world.position(NOW + 20 + number, f"b{number}", "2"))
        await world.until(NOW + 30)
        if command == "pause":
            await world.life.resume("or")
        else:
            await world.life.register("or", world.texts["or"])
        done = [change.what for change in world.life.history("or")]
        assert len(done) == 3
        before = await world.found()
        await world.start(texts=texts, **options)  # killed: everything is read again
        await world.until(NOW + 40)
        assert world.states()["or"] == "running"
        assert "or" in world.engine.policies()
        assert [change.what for change in world.life.history("or")] == done
        assert await world.found() == before

    play(story)


def test_a_policy_may_delete_or_pause_itself_and_a_missing_one_is_an_error(play: Play) -> None:
    async def story(world: World) -> None:
        once = STOPPING.replace("delete policy or", "pause policy once")
        lost = STOPPING.replace("delete policy or", "delete policy nobody")
        await world.start(texts={"once": once, "lost": lost})
        await world.send(*(world.position(NOW + n, f"e{n}", "2") for n in range(5)))
        await world.until(NOW + 10)
        assert [policy for policy, _ in await world.found()].count("once") == 1
        assert world.states() == {"lost": "running", "once": "paused"}
        counts = world.engine.counts_by_policy()["lost"]
        assert (counts.errors, counts.detections, counts.read) == (5, 5, 5)
        assert counts.cost_ms >= 0
        checked = await world.life.check("new", lost)
        assert [problem.code for problem in checked.problems][-1] == "policy.unknown_policy"

    play(story)


def test_new_tables_reach_running_policies_from_the_next_batch_on(play: Play) -> None:
    async def story(world: World) -> None:
        await world.start("or")
        await world.send(world.position(NOW, "a", "77"))
        await world.until(NOW + 1)
        assert await world.found() == []
        commits = world.engine.counts.commits
        await world.engine.refresh_pull(world.with_guest("77"))
        assert world.engine.counts.commits == commits + 1
        await world.send(world.position(NOW + 2, "b", "77"))
        await world.until(NOW + 5)
        assert await world.found() == [("or", NOW + 2)]

    play(story)


def test_registering_a_policy_takes_less_than_fifty_milliseconds(play: Play) -> None:
    async def story(world: World) -> None:
        from rapport.kernel.clock import SystemClock

        await world.start("or")
        steady = SystemClock()
        took = []
        for number in range(20):
            began = steady.steady_ns()
            await world.life.register(f"p{number}", world.texts["mixed"])
            took.append((steady.steady_ns() - began) / 1e6)
        assert sorted(took)[10] < 50, took

    play(story)


def test_a_reload_waits_until_what_was_read_before_a_crash_was_met_again(play: Play) -> None:
    async def story(world: World) -> None:
        await world.start("or", commit_every_ms=10**9)
        await world.engine.commit()
        await world.send(world.position(NOW, "a", "2"), world.position(NOW + 1, "b", "3"))
        await world.start("or", commit_every_ms=10**9)
        renewed: list[int] = []

        async def renew() -> None:
            renewed.append(world.engine.behind())

        reload = asyncio.create_task(
            world.life.take_files(
                {"or": world.texts["within"]},
                (),
                world.compile,
                renew=renew,
            )
        )
        for _ in range(200):
            await asyncio.sleep(0)
        assert (reload.done(), renewed) == (False, [])
        await world.drain()
        while not reload.done():
            world.clock.set_ms(world.clock.now_ms() + 20)
            await asyncio.sleep(0.001)
        [done] = reload.result()
        assert (done.what, done.after, renewed) == ("replaced", 2, [0])

    play(story)
