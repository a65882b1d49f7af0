"""Leased takes: the pure machine, and whole channels whose workers die, answer late and restart.
[CH-2]
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rapport.channel.backends.local import open_embedded, open_memory
from rapport.channel.dead_letters import DEAD_LETTERS, LetterFailure
from rapport.channel.requests.leases import (
    Answers,
    MessageLease,
    MessageLeases,
    SettlementResult,
    delivery_id,
    split_id,
)
from rapport.channel.requests.request import Batch, Request
from rapport.core.errors import InvalidInput, RapportError
from rapport.core.event import Event
from rapport.kernel.clock import ManualClock
from support.examples import examples

MAX_TRIES = 3


def event(number: int) -> Event:
    return Event("s", str(number), "t", "", number, b'{"n":%d}' % (number % 3))


# --- the machine ----------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.integers(1, 8), st.integers(0, 50), st.sampled_from(["put", "drop"])),
        max_size=40,
    ),
    st.integers(0, 60),
)
def test_what_is_due_is_what_a_look_at_all_leases_says(steps: Any, now_ms: int) -> None:
    leases, model = MessageLeases(), dict[int, int]()
    for position, until_ms, step in steps:
        if step == "put":
            leases.put(position, MessageLease(until_ms, "a", 1, 5))
            model[position] = until_ms
        else:
            leases.drop(position)
            model.pop(position, None)
        assert leases.next_due_ms() == min(model.values(), default=None)
    assert leases.due(now_ms) == sorted(at for at, until in model.items() if until <= now_ms)
    assert len(leases) == len(model)


def test_an_answer_counts_for_the_last_lease_only() -> None:
    leases = MessageLeases()
    for name in ("old", "new"):
        for position, lease in leases.granted([7], name, until_ms=10, max_tries=5).items():
            leases.put(position, lease)
    old, new = delivery_id(7, "old"), delivery_id(7, "new")
    decided = leases.decide(Answers(ack=(old,), nak=(new,), delay_ms=5, error="x"), {}, 20)
    assert (decided.acked, decided.stale) == ((), (old,))
    assert decided.returned == {7: MessageLease(25, "", 2, 5, "x")}
    both = leases.decide(Answers(ack=(new, new), nak=(new,)), {}, 20)
    assert (both.acked, both.returned) == ((7,), {})
    leases.drop(7)
    assert leases.decide(Answers(ack=(new,), nak=(old,)), {7: True}, 20).stale == (old,)


def test_a_renewal_counts_for_the_last_lease_and_never_shortens_it() -> None:
    leases = MessageLeases()
    for position in (1, 2, 3, 4):
        leases.put(position, MessageLease(100, "a", 2, 5))
    ids = [delivery_id(position, "a") for position in (1, 2, 3, 4)]
    decided = leases.decide(
        Answers(renew=(*ids[:3], "4.old"), lease_ms=50, ack=ids[1:2], nak=ids[2:3]), {}, 80
    )
    assert decided.renewed == {1: MessageLease(130, "a", 2, 5)}
    assert (decided.acked, [*decided.returned], decided.stale) == ((2,), [3], ("4.old",))
    assert leases.decide(Answers(renew=ids[:1], lease_ms=5), {}, 80).renewed == {1: leases.get(1)}
    late = leases.decide(Answers(renew=ids[:1], lease_ms=50), {}, 200)
    assert late.renewed[1].until_ms == 250  # nobody else has had it meanwhile


@given(st.text(max_size=30))
def test_no_text_but_an_id_is_taken_for_one(text: str) -> None:
    try:
        position, lease = split_id(text)
    except InvalidInput as error:
        assert error.code == "request.bad_delivery"
    else:
        assert position >= 0
        assert lease


# --- channels -------------------------------------------------------------------------------------


class Working(RuleBasedStateMachine):
    """Workers take, die, answer late or twice, and the node is opened again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = Path(tempfile.mkdtemp())
        self.clock = ManualClock(1_000_000)
        self.channels = self.opened()
        self.appended = 0
        self.tries: dict[int, int] = {}
        self.held: dict[str, tuple[int, int]] = {}
        """Deliveries that workers have: position, and when the lease ends."""
        self.latest: dict[int, str] = {}
        self.free_at: dict[int, int] = {}
        self.done: set[int] = set()

    def opened(self) -> Any:
        async def opening() -> Any:
            return open_embedded(self.directory, self.clock, segment_bytes=5_000)

        return self.runner.run(opening())

    def teardown(self) -> None:
        self.runner.run(self.channels.close())
        self.runner.close()
        shutil.rmtree(self.directory)

    def free(self) -> list[int]:
        """What the model says is anybody's: what came back, then what nobody had."""
        back = sorted(at for at, free_ms in self.free_at.items() if free_ms <= self.clock.now_ms())
        return back + [at for at in range(1, self.appended + 1) if at not in self.tries]

    def finish(self, position: int) -> None:
        self.done.add(position)
        del self.free_at[position]

    @rule(count=st.integers(1, 4))
    def append(self, count: int) -> None:
        events = [event(self.appended + number + 1) for number in range(count)]
        self.runner.run(self.channels.channel("c").append(events))
        self.appended += count

    @rule(count=st.integers(1, 4), lease_ms=st.sampled_from([1_000, 5_000]))
    def take(self, count: int, lease_ms: int) -> None:
        asked = Request(
            query={}, take=True, lease_ms=lease_ms, max_messages=count, max_tries=MAX_TRIES
        )
        batch: Batch = self.runner.run(self.channels.source.request("c", asked, identity="me"))
        for position in self.free():
            if self.tries.get(position, 0) >= MAX_TRIES:
                self.finish(position)  # a look for work buries it
        assert [stored.position for stored in batch.events] == self.free()[:count]
        for stored, delivery in zip(batch.events, batch.deliveries, strict=True):
            position = stored.position
            self.tries[position] = self.tries.get(position, 0) + 1
            assert delivery.tries == self.tries[position]
            until_ms = self.clock.now_ms() + lease_ms
            self.held[delivery.id] = (position, until_ms)
            self.latest[position], self.free_at[position] = delivery.id, until_ms

    @precondition(lambda self: self.held)
    @rule(data=st.data(), is_ack=st.booleans(), delay_ms=st.sampled_from([0, 2_000]))
    def answer(self, data: Any, is_ack: bool, delay_ms: int) -> None:
        id = data.draw(st.sampled_from(sorted(self.held)))
        position, _until = self.held[id]
        answers = Answers(ack=(id,)) if is_ack else Answers(nak=(id,), delay_ms=delay_ms, error="e")
        settled: SettlementResult = self.runner.run(self.channels.source.settle("c", answers))
        if position in self.done:
            assert settled == (
                SettlementResult(acked=1) if is_ack else SettlementResult(stale=(id,))
            )
        elif self.latest[position] != id:
            assert settled == SettlementResult(stale=(id,))
        elif is_ack:
            assert settled == SettlementResult(acked=1)
            self.finish(position)
        else:
            exhausted = self.tries[position] >= MAX_TRIES
            assert settled == SettlementResult(returned=1, buried=int(exhausted))
            self.latest[position] = ""
            if exhausted:
                self.finish(position)
            else:
                self.free_at[position] = self.clock.now_ms() + delay_ms

    @precondition(lambda self: self.held)
    @rule(data=st.data(), lease_ms=st.sampled_from([500, 4_000]))
    def renew(self, data: Any, lease_ms: int) -> None:
        id = data.draw(st.sampled_from(sorted(self.held)))
        position, _until = self.held[id]
        answers = Answers(renew=(id,), lease_ms=lease_ms)
        settled: SettlementResult = self.runner.run(self.channels.source.settle("c", answers))
        if position in self.done or self.latest[position] != id:
            assert settled == SettlementResult(stale=(id,))
        else:
            assert settled == SettlementResult(renewed=1)
            until_ms = max(self.free_at[position], self.clock.now_ms() + lease_ms)
            self.free_at[position] = until_ms

    @rule(seconds=st.sampled_from([1, 3, 6]))
    def wait(self, seconds: int) -> None:
        self.runner.run(self.clock.advance(seconds * 1_000))

    @rule()
    def restart(self) -> None:
        self.runner.run(self.channels.close())
        self.channels = self.opened()

    @invariant()
    def readers_see_what_is_not_done(self) -> None:
        batch = self.runner.run(
            self.channels.source.request("c", Request(query={}, max_messages=1_000), identity="r")
        )
        seen = {stored.position for stored in batch.events}
        assert seen == set(range(1, self.appended + 1)) - self.done


class TestWorking(Working.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=examples(15), stateful_step_count=25, deadline=None)


def play(scenario: Any, clock: ManualClock | None = None) -> None:
    async def run() -> None:
        channels = open_memory(clock or ManualClock(1_000_000))
        try:
            await scenario(channels)
        finally:
            await channels.close()

    asyncio.run(run())


def test_a_worker_that_waits_gets_a_message_when_the_lease_of_another_ends() -> None:
    clock = ManualClock(1_000_000)

    async def scenario(channels: Any) -> None:
        await channels.channel("c").append([event(1)])
        asked = Request(query={}, take=True, lease_ms=3_000, wait_ms=30_000)
        await channels.source.request("c", asked, identity="dies")
        waiting = asyncio.create_task(channels.source.request("c", asked, identity="lives"))
        for _ in range(6):
            assert not waiting.done()
            await clock.advance(500)
            for _turn in range(5):
                await asyncio.sleep(0)
        batch = await waiting
        assert [one.tries for one in batch.deliveries] == [2]

    play(scenario, clock)


def test_a_worker_whose_query_wants_few_messages_passes_the_others_once() -> None:
    async def scenario(channels: Any) -> None:
        await channels.channel("c").append([event(number) for number in range(1, 100)])
        asked = Request(query="data.n = 1", take=True, lease_ms=1_000, max_messages=10)
        found: list[int] = []
        while batch := (await channels.source.request("c", asked, identity="me")).deliveries:
            await channels.source.settle("c", Answers(ack=tuple(one.id for one in batch)))
            found += [split_id(one.id)[0] for one in batch]
        assert found == [number for number in range(1, 100) if number % 3 == 1]
        left = await channels.source.request("c", Request(query={}, take=True), identity="me")
        assert len(left.events) == 99 - len(found)

    play(scenario)


def test_a_renewal_without_a_time_is_refused() -> None:
    async def scenario(channels: Any) -> None:
        with pytest.raises(RapportError) as refused:
            await channels.source.settle("c", Answers(renew=("1.a",)))
        assert refused.value.code == "request.bad_field"

    play(scenario)


@pytest.mark.parametrize(
    "wishes",
    [
        {"take": False},
        {"from_start": False},
        {"query": None, "token": "x"},
        {"push_address": "http://127.0.0.1:1/"},
        {"max_tries": 0},
        {"lease_ms": -1},
    ],
)
def test_a_leased_take_that_contradicts_itself_is_refused(wishes: dict[str, Any]) -> None:
    async def scenario(channels: Any) -> None:
        asked = Request(**{"query": {}, "take": True, "lease_ms": 1_000, **wishes})
        with pytest.raises(RapportError) as refused:
            await channels.source.request("c", asked, identity="me")
        assert refused.value.code == "request.bad_field"

    play(scenario)


def test_leases_of_messages_that_are_no_longer_kept_are_forgotten() -> None:
    clock = ManualClock(1_000_000)

    async def scenario(channels: Any) -> None:
        await channels.channel("c").append([event(1), event(2)])
        asked = Request(query={}, take=True, lease_ms=1_000)
        first = await channels.source.request("c", asked, identity="me")
        await channels.source.taker.forget_before("c", 2)
        await clock.advance(2_000)
        again = await channels.source.request("c", asked, identity="me")
        assert [stored.position for stored in again.events] == [2]
        stale = await channels.source.settle("c", Answers(nak=(first.deliveries[0].id,)))
        assert stale.stale

    play(scenario, clock)


def test_the_dead_letter_of_a_message_is_written_once_though_the_node_dies_before_it_is_noted(
    tmp_path: Path,
) -> None:
    clock = ManualClock(1_000_000)

    async def scenario() -> None:
        channels = open_embedded(tmp_path / "log", clock)
        await channels.channel("c").append([event(1)])
        asked = Request(query={}, take=True, lease_ms=1_000, max_tries=1)
        await channels.source.request("c", asked, identity="me")
        await clock.advance(2_000)
        lease = channels.source.taker.lease

        async def dies(*_given: Any) -> bool:
            raise RuntimeError("killed")

        channels.source.taker.lease = dies
        with pytest.raises(RuntimeError):
            await channels.source.request("c", asked, identity="me")
        channels.source.taker.lease = lease
        assert (await channels.source.request("c", asked, identity="me")).events == ()
        letters = await channels.channel(DEAD_LETTERS).read_after(0)
        assert [one.event.payload_as(LetterFailure).attempts for one in letters] == [1]
        await channels.close()

    asyncio.run(scenario())
