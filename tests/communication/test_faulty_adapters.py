"""Adapters that break, hang, swallow, lie or cannot be made: each message still has a true end, and
nobody else waits for it.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rapport.communication.adapters.base import Confirmed, Failed, Sent, adapter
from rapport.communication.adapters.dispatch import Dispatch, DispatchSettings
from rapport.communication.adapters.isolation import LONGEST_REASON
from rapport.communication.adapters.outputs import Outputs
from rapport.communication.peers import Collective, Peer
from rapport.core.errors import InvalidInput
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import SystemClock
from support.examples import examples


class Faulty:
    """Sends as it is told to for `ana`; everybody else is served."""

    name = "mail"

    def __init__(self, behave):
        self.behave, self.calls = behave, []

    async def send(self, delivery):
        self.calls.append(delivery)
        return await self.behave(delivery) if delivery.peer == "ana" else Sent()

    async def close(self):
        return


class Plain:
    """Not even a coroutine."""

    name = "mail"

    def __init__(self, behave):
        self.behave = behave

    def send(self, delivery):
        return self.behave(delivery)

    async def close(self):
        return


class Many(Plain):
    """The same for many at once."""

    keeps_order = True

    def send_many(self, deliveries):
        return self.behave(deliveries)


def by_mail(room, medium):
    """Everybody is reached by mail alone, which is tried twice."""
    room.direct = True
    room.adapters["mail"] = medium
    for name in ("ana", "ben", "lea"):
        room.peers[name] = Peer(name=name, addresses=(f"mail:{name}@example.org",))
    room.retry = msgspec.structs.replace(room.retry, attempts=2)


async def send(room, id, receiver, sender="component:app"):
    message = Message(
        type="TASK",
        subtype="REQUEST",
        sender=Identifier.parse(sender),
        id=id,
        receiver=Identifier.parse(receiver),
        content="look",
    )
    event = message.to_event(source="test", time=room.clock.now_ms())
    event = msgspec.structs.replace(event, headers={"proof": "application"})
    await room.channels.channel("input").append([event])


async def results(room):
    return {row.message: row.result for row in (await room.ledger()).messages()}


async def reasons(room):
    return [row.reason for row in (await room.ledger()).rows(state="failed")]


def judge_both(new_room, medium, ana="failed"):
    """One message to who is badly served, one to who is not; returns the reasons of failures."""

    async def scenario():
        room = new_room()
        by_mail(room, medium)
        await room.start()
        await send(room, "bad", "peer:ana")
        await send(room, "good", "peer:ben")
        async with asyncio.timeout(20):
            await room.pass_time(10_000)
        found = await results(room)
        assert found["bad"] == ana
        if isinstance(medium, Faulty):
            assert found["good"] == "done"
        assert not room.channels.channel("dead_letters").last_position()
        # What a restart finds can be read.
        await room.restart()
        await room.settle()
        return await reasons(room)

    return asyncio.run(scenario())


async def leaves(_delivery):
    raise SystemExit(3)


async def raises(_delivery):
    raise RuntimeError("password=hunter2")


@pytest.mark.parametrize("behave", [leaves, raises])
def test_an_adapter_that_raises_anything_fails_its_delivery_and_says_no_secrets(new_room, behave):
    told = judge_both(new_room, Faulty(behave))
    assert told
    assert "hunter2" not in str(told)


@pytest.mark.parametrize(
    "answer",
    [
        True,
        "handed",
        b"\0",
        {"state": "handed"},
        Sent,
        Failed(None, retry=False),
        Failed("no", retry="perhaps"),
        Failed(ValueError("x"), retry=True),
        Failed("\ud800 half a character", retry=False),
        Failed("x" * 3_000_000, retry=False),
    ],
    ids=repr,
)
def test_an_adapter_that_answers_nonsense_has_failed(new_room, answer):
    async def behave(_delivery):
        return answer

    (told, *_) = judge_both(new_room, Faulty(behave))
    assert len(told) <= LONGEST_REASON
    if not isinstance(answer, Failed):
        wanted = "Sent, Confirmed, Failed or None"
        kind = type(answer).__name__
        assert told == f"the adapter 'mail' returned {kind} instead of {wanted}"


@pytest.mark.parametrize("kind", [Faulty, Many])
def test_an_adapter_that_returns_nothing_has_sent_it(new_room, kind):
    async def behave(_given):
        return None

    judge_both(new_room, kind(behave), ana="done")


@pytest.mark.parametrize(
    "outcome",
    [Sent(None), Sent(17), Confirmed(b"\xff"), Sent("\udfff"), Sent("a\r\nb\0" * 1_000_000)],
    ids=lambda outcome: repr(outcome)[:40],
)
def test_a_strange_reference_does_not_make_a_failure_of_what_was_taken(new_room, outcome):
    async def behave(_delivery):
        return outcome

    judge_both(new_room, Faulty(behave), ana="done")


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.text(max_size=50), st.binary(max_size=5), st.none(), st.integers()))
def test_no_reference_or_reason_whatever_can_stop_a_restart(new_room, given):
    async def behave(_delivery):
        return Sent(given)

    judge_both(new_room, Faulty(behave), ana="done")


def breaks(_deliveries):
    raise RuntimeError("before anything was awaited")


@pytest.mark.parametrize("kind", [Plain, Many])
@pytest.mark.parametrize(
    "behave", [breaks, lambda _given: None, lambda _given: Sent(), lambda _given: 7]
)
def test_a_send_that_is_no_coroutine_fails_like_any_other_fault(new_room, kind, behave):
    judge_both(new_room, kind(behave))


@pytest.mark.parametrize("answer", [7, "xy", {"a": 1}, Sent(), (None, None, None, None)])
def test_a_batch_that_is_answered_with_nonsense_has_failed(new_room, answer):
    async def behave(_deliveries):
        return answer

    judge_both(new_room, Many(behave))


def test_an_adapter_without_a_send_fails_what_it_is_given(new_room):
    class Nothing:
        name = "mail"

    judge_both(new_room, Nothing())


# --- hanging ---


class Stubborn:
    """Hangs and will not be cancelled until it is let go."""

    name = "mail"

    def __init__(self):
        self.let_go = asyncio.Event()

    async def send(self, delivery):
        if delivery.peer != "ana":
            return Sent()
        while not self.let_go.is_set():
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                continue
        return Sent()

    async def close(self):
        return


@pytest.mark.slow
def test_an_adapter_that_will_not_be_cancelled_is_left_behind_and_the_node_goes_on(new_room):
    async def scenario():
        room, medium = new_room(), Stubborn()
        room.clock = SystemClock()
        by_mail(room, medium)
        await room.start()
        settings = DispatchSettings(deadline_ms=50, workers=1)
        dispatch = room.dispatches[-1] = Dispatch(
            medium,
            room.channels,
            room.channels.records,
            room.clock,
            settings=settings,
            report=room.engine.apply_outcomes,
        )
        await dispatch.open()
        await send(room, "bad", "peer:ana")
        await send(room, "good", "peer:ben")
        async with asyncio.timeout(20):
            await room.settle()
        assert (await results(room))["good"] == "done"
        assert "no answer within" in (await reasons(room))[0]
        medium.let_go.set()
        await asyncio.sleep(0)

    asyncio.run(scenario())


def test_what_comes_after_the_deadline_counts_no_more_and_is_tried_again(new_room):
    slow = asyncio.Event()

    async def behave(delivery):
        if delivery.attempt == 1:
            await slow.wait()
        return Sent()

    async def scenario():
        room = new_room()
        medium = Faulty(behave)
        by_mail(room, medium)
        await room.start()
        await send(room, "late", "peer:ana")
        await room.engine.settle()
        sending = asyncio.create_task(room.dispatches[-1].settle())
        async with asyncio.timeout(20):
            while not medium.calls:  # noqa: ASYNC110 (marks are written in a thread of their own)
                await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        room.clock.set_ms(room.clock.now_ms() + 16_000)
        await sending
        slow.set()
        await room.pass_time(5_000)
        states = [state for state, peer, _ in await room.states() if peer]
        assert states == ["failed", "queued", "handed"]
        assert (await results(room))["late"] == "done"
        assert len({one.key for one in medium.calls}) == 1

    asyncio.run(scenario())


def test_an_outcome_that_is_reported_twice_is_one_line(new_room):
    async def scenario():
        room = new_room()
        by_mail(room, Faulty(raises))
        await room.start()
        twice = room.engine.apply_outcomes

        async def report(outcomes):
            await twice(outcomes)
            await twice(list(reversed(outcomes)))

        dispatch = room.dispatches[-1] = Dispatch(
            room.adapters["mail"],
            room.channels,
            room.channels.records,
            room.clock,
            report=report,
        )
        await dispatch.open()
        await send(room, "plain", "peer:ben")
        await send(room, "fails", "peer:ana")
        await send(room, "many", "collective:guards")
        await room.pass_time(10_000)
        lines = await room.states()
        assert len([line for line in lines if line[:2] == ("handed", "ben")]) == 2
        closing = [line for line in lines if line[0] == "closed" and not line[1]]
        assert len(closing) == 2, "the plain one is closed by its own line"
        assert await results(room) == {"plain": "done", "fails": "failed", "many": "done"}

    asyncio.run(scenario())


# --- making and closing ---


@adapter("broken")
class Broken:
    """Cannot be made."""

    def __init__(self):
        raise OSError("no such device")


@adapter("bound", stateful=True)
class BrokenForSome:
    """Cannot be made for one address."""

    def __init__(self, address):
        if address == "bound:ana":
            raise OSError("no such device")

    async def send(self, _delivery):
        return Sent()

    async def close(self):
        raise RuntimeError("will not close")


def outputs_of(room):
    return Outputs(
        room.channels,
        room.channels.records,
        room.clock,
        report=room.engine.apply_outcomes,
        is_decided=room.engine.is_decided,
    )


def test_a_stateless_adapter_that_cannot_be_made_is_an_error_of_registering(room):
    async def scenario():
        await room.start()
        outputs = outputs_of(room)
        with pytest.raises(InvalidInput) as raised:
            await outputs.register(Broken)
        assert raised.value.code == "adapter.not_made"
        assert not outputs.names

    asyncio.run(scenario())


def test_a_stateful_adapter_that_cannot_be_made_is_a_failed_address_and_the_next_one_is_tried(room):
    async def scenario():
        room.direct = True
        room.peers["ana"] = Peer(name="ana", addresses=("bound:ana", "inbox:"))
        room.peers["ben"] = Peer(name="ben", addresses=("bound:ben",))
        room.adapters["bound"] = Faulty(raises)  # so that the engine knows the name
        await room.start()
        outputs = outputs_of(room)
        await outputs.register(BrokenForSome)
        room.dispatches = [room.dispatches[0]]
        await send(room, "a", "peer:ana")
        await send(room, "b", "peer:ben")
        async with asyncio.timeout(20):
            while await results(room) != {"a": "done", "b": "done"}:
                await room.settle()
                await asyncio.sleep(0)
        states = {(s, p, a) for s, p, a in await room.states() if p}
        assert {("failed", "ana", "bound"), ("handed", "ana", "inbox")} <= states
        await outputs.close()

    asyncio.run(scenario())


def test_an_adapter_that_will_not_close_is_removed_all_the_same(room):
    class WillNotClose(Faulty):
        async def close(self):
            raise RuntimeError("will not close")

    async def scenario():
        await room.start()
        outputs = outputs_of(room)
        await outputs.use(WillNotClose(raises))
        async with asyncio.timeout(20):
            assert await outputs.remove("mail")
        assert "mail" not in outputs.names
        others = [WillNotClose(raises), WillNotClose(raises)]
        others[1].name = "post"
        for other in others:
            await outputs.use(other)
        await outputs.close()

    asyncio.run(scenario())


# --- receivers ---


@pytest.mark.parametrize(
    ("receiver", "reason"),
    [
        ("peer:addressless", "peer.no_address"),
        ("peer:anna", "peer.unknown"),
        ("collective:gards", "nobody is in it"),
        ("collective:empty", "nobody is in it"),
    ],
)
def test_an_unreachable_receiver_is_reported_to_the_sender_at_once_and_leaves_nothing(
    room, receiver, reason
):
    async def scenario():
        room.peers["addressless"] = Peer(name="addressless", addresses=())
        room.collectives["empty"] = Collective(name="empty", members=())
        await room.start()
        await send(room, "m", receiver, sender="peer:lea")
        await room.settle()
        assert (await results(room))["m"] == "failed"
        told = [entry.event for entry in await room.channels.channel("control").read_after(0)]
        comerrors = [event for event in told if event.type.endswith("comerror")]
        assert len(comerrors) == 1
        said = comerrors[0].payload()["reason"]
        assert receiver in said
        assert receiver.startswith("collective") or reason in said
        log = await room.channels.channel("log").read_after(0)
        assert reason in str([e.event.payload() for e in log if e.event.subject == "m"])
        assert not [key for key, _ in room.channels.records.find("communication", prefix="case/")]

    asyncio.run(scenario())
