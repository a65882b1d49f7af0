"""One walk through everything that can become of a message, in a process that may be killed at any
write: plain, retried, acknowledged, answered, escalated, repeated, held, timed out, failed.
[CO-8, CO-10]

What is kept is in the stores alone: a walk that was killed is made anew over them and goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from rapport.channel.log.channels import LoggedChannels
from rapport.communication.adapters.base import Delivery, Failed, Outcome, Sent
from rapport.communication.adapters.outputs import Outputs
from rapport.communication.delivery_runner import EngineParts
from rapport.communication.delivery_state import (
    DEFAULT_OPTIONS,
    DeliveryOptions,
    NextReceiver,
    RetryPolicy,
    with_options,
)
from rapport.communication.engine import CommunicationEngine
from rapport.communication.peers import Collective, Peer, SiteDirectory
from rapport.communication.privacy import parse_hours, quiet_rule
from rapport.core.event import Event
from rapport.core.message import Identifier, Message, MessagePolicy
from rapport.kernel.clock import ManualClock

BEGIN = 1_772_452_800_000  # 2026-03-02T12:00:00Z
MOMENTS = (0, 2, 3, 5, 8, 10, 12, 15, 20, 25, 30, 40, 60, 61, 90)
"""Seconds after the beginning at which everybody works."""
ANSWERS = {
    5: (("two", "ben"),),
    12: (("two", "ana"),),
    25: (("again", "ben"),),
    40: (("any", "lea"),),
}
"""By second: who answers what."""
RESULTS = {
    "plain": "done",
    "busy": "done",
    "acknowledged": "done",
    "all": "done",
    "any": "done",
    "two": "done",
    "again": "done",
    "night": "done",
    "silent": "timed_out",
    "short": "timed_out",
    "addressless": "failed",
    "stranger": "failed",
    "empty": "failed",
}
"""By message: how it ends, whatever happens on the way."""

Took = Callable[[Delivery], None]


class Medium:
    """Takes everything but the first try of what is busy; `took` keeps what came."""

    name = "post"

    def __init__(self, took: Took) -> None:
        self._took = took

    async def send(self, delivery: Delivery) -> Outcome:
        """Nothing that came may be forgotten: it is kept before it is answered."""
        self._took(delivery)
        if delivery.message == "busy" and delivery.attempt == 1:
            return Failed("busy", retry=True)
        return Sent("taken")

    async def close(self) -> None:
        """Nothing to let go of."""


def people() -> SiteDirectory:
    """Three who can be told, one who sleeps for a minute, one without an address."""
    peers = {name: Peer(name=name, addresses=(f"post:{name}",)) for name in ("ana", "ben", "lea")}
    sleeps = quiet_rule([parse_hours("11:00-12:01")])
    peers["nina"] = Peer(name="nina", addresses=("post:nina",), privacy=(sleeps,))
    peers["zoe"] = Peer(name="zoe", addresses=())
    everybody = ("ana", "ben", "lea")
    collectives = [
        Collective(name="all", members=everybody, delivery="to-all-members"),
        Collective(name="guards", members=("ana", "ben")),
        Collective(name="leads", members=("lea",)),
        Collective(name="empty", members=()),
    ]
    return SiteDirectory(peers, {each.name: each for each in collectives})


def messages() -> Iterator[Event]:
    """What an application sends at the beginning."""
    answer, leads = DeliveryOptions(done_when="answered"), NextReceiver("collective:leads")
    asks_leads = DeliveryOptions(answer_within=30_000, escalate=(leads,))
    yield _message("plain", "peer:ben")
    yield _message("busy", "peer:ana")
    yield _message("acknowledged", "peer:ben", policy="acknowledged", sender="peer:lea")
    yield _message("all", "collective:all")
    yield _message("any", "collective:guards", asks_leads)
    yield _message("two", "collective:all", DeliveryOptions(reach="at-least", least=2))
    yield _message("again", "peer:ben", DeliveryOptions(repeat_every=10_000, repeat_most=3))
    yield _message("night", "peer:nina")
    yield _message(
        "silent", "collective:leads", msgspec.structs.replace(answer, answer_within=15_000)
    )
    yield _message("short", "peer:nina", ttl=30_000)
    yield _message("addressless", "peer:zoe")
    yield _message("stranger", "peer:nobody")
    yield _message("empty", "collective:empty", sender="peer:lea")


def _message(
    id: str,
    receiver: str,
    wishes: DeliveryOptions = DEFAULT_OPTIONS,
    *,
    policy: MessagePolicy = "unreliable",
    sender: str = "component:app",
    ttl: int = 0,
) -> Event:
    message = Message(
        type="TASK",
        subtype="REQUEST",
        sender=Identifier.parse(sender),
        id=id,
        receiver=Identifier.parse(receiver),
        content="look",
        delivery_policy=policy,
        ttl=ttl,
    )
    event = message.to_event(source="application", time=BEGIN)
    event = msgspec.structs.replace(event, headers={"proof": "application"})
    return event if wishes == DEFAULT_OPTIONS else with_options(event, wishes)


def answers(second: int) -> Iterator[Event]:
    """What people answer then, always with the same ids."""
    for refers_to, peer in ANSWERS.get(second, ()):
        message = Message(
            type="TASK",
            subtype="REPLY",
            sender=Identifier("peer", peer),
            id=f"{refers_to}-{peer}",
            refers_to=refers_to,
            content="I go",
        )
        event = message.to_event(source="inbox", time=BEGIN + second * 1_000)
        yield msgspec.structs.replace(event, headers={"proof": "session"})


class Walk:
    """Engine, outputs and the medium over channels; made anew after each kill."""

    def __init__(self, channels: LoggedChannels, clock: ManualClock, took: Took) -> None:
        self._channels, self._clock = channels, clock
        self._engine = CommunicationEngine(
            channels,
            channels.records,
            clock,
            EngineParts(
                directory=people(),
                actions={},
                phrases={},
                adapters=(Medium.name,),
                retry=RetryPolicy(attempts=3, first_ms=2_000, longest_ms=4_000),
            ),
        )
        self._outputs = Outputs(
            channels,
            channels.records,
            clock,
            report=self._engine.apply_outcomes,
            is_decided=self._engine.is_decided,
        )
        self._outputs.hold(Medium(took))

    async def go(self, acknowledged: set[str], note: Callable[[str], None]) -> None:
        """From the clock's time to the end. What was sent is noted once it is durable; what is
        acknowledged is not sent again.
        """
        await self._engine.open()
        for dispatch in self._outputs.dispatches():
            await dispatch.open()
        await self._settle()
        for event in messages():
            if event.id not in acknowledged:
                await self._publish(event, note)
        for second in MOMENTS:
            self._clock.set_ms(max(self._clock.now_ms(), BEGIN + second * 1_000))
            for event in answers(second):
                await self._publish(event, note)
            await self._settle()

    async def _publish(self, event: Event, note: Callable[[str], None]) -> None:
        await self._channels.channel("input").append([event])
        note(event.id)
        await self._settle()

    async def _settle(self) -> None:
        busy = True
        while busy:
            busy = bool(await self._engine.settle())
            for dispatch in self._outputs.dispatches():
                busy = bool(await dispatch.settle()) or busy
