"""The room that is measured: everything a node has between an application and its peers, on the
durable embedded log, with peers that answer at once. [CO-4, CO-5, CO-7]

One stateless output adapter shared by all peers and ten input adapters, joined by queues in memory,
as in section 3 of the source. Nothing else is left out: durable `send`, marks around every sending,
ledger, duplicate check and history index.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.communication.places import Places, one_place
from rapport.channel.backends.local import open_embedded
from rapport.communication.adapters.base import Delivery, Outcome, Sent
from rapport.communication.adapters.input_base import Intake
from rapport.communication.adapters.inputs import Inputs
from rapport.communication.adapters.outputs import Outputs
from rapport.communication.arrival_checks import ArrivalSettings
from rapport.communication.arrivals import Arrivals
from rapport.communication.delivery_runner import EngineParts
from rapport.communication.engine import CommunicationEngine
from rapport.communication.links import answer_secret, answer_token
from rapport.communication.message_plan import Route, no_routing
from rapport.communication.peers import (
    CachedDirectory,
    Collective,
    Peer,
    PeerDirectory,
    SiteDirectory,
)
from rapport.communication.sessions.logins import Authenticator
from rapport.communication.sessions.passwords import Passwords
from rapport.communication.sessions.sessions import Sessions
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import SystemClock
from rapport.kernel.tasks import Tasks

APPLICATION = Identifier("component", "application")
CLOCK = SystemClock()
INPUTS = 10
ADAPTER = "loop"
CONTENT = (
    "Please look at room 4711 on the second floor; the door has been open for ten minutes. " * 2
)

Answer = Callable[[Delivery], Message]
"""What a peer says to a delivery."""
Take = Callable[[Sequence[Delivery]], None]


def directory_of(count: int) -> SiteDirectory:
    """So many peers, each with one address, and the collective of all of them."""
    peers = {
        name: Peer(name=name, addresses=(f"{ADAPTER}:{name}",))
        for name in (peer_name(number) for number in range(count))
    }
    everybody = Collective(name="everybody", members=tuple(peers), delivery="to-all-members")
    return SiteDirectory(peers, {"everybody": everybody})


def peer_name(number: int) -> str:
    """The name of a peer, sorted as numbers are."""
    return f"p{number:06d}"


def by_medium(delivery: Delivery) -> Message:
    """An answer that the medium vouches for: the way of a gateway that knows its own people."""
    return Message(
        type="TASK",
        subtype="ANSWER",
        sender=Identifier("peer", delivery.peer),
        receiver=APPLICATION,
        conversation=delivery.conversation,
        content="I am on my way.",
        refers_to=delivery.message,
    )


def by_token(secret: bytes) -> Answer:
    """Answers that prove by a token that they answer exactly this message; the ledger says so."""

    def answer(delivery: Delivery) -> Message:
        return Message(
            type="TASK",
            subtype="ANSWER",
            sender=Identifier("peer", delivery.peer),
            receiver=APPLICATION,
            conversation=delivery.conversation,
            content="I am on my way.",
            session_token=answer_token(secret, delivery.message, delivery.peer),
            refers_to=delivery.message,
        )

    return answer


class LoopInput:
    """An input adapter whose peers answer what the output adapter hands over; see
    InputPushAdapter.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._handed: list[Delivery] = []
        self._news = asyncio.Event()

    def hand(self, deliveries: Sequence[Delivery]) -> None:
        """The peers get these, and answer."""
        self._handed += deliveries
        self._news.set()

    async def start(self, intake: Intake) -> None:
        """See InputPushAdapter."""
        self._intake = intake
        intake.schedule(self._run)

    async def stop(self) -> None:
        """See InputPushAdapter."""

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            handed, self._handed = self._handed, []
            arrived = await self._intake.publish([self._answer(one) for one in handed])
            refused = [one for one in arrived if not one.accepted]
            if refused:
                raise RuntimeError(f"an answer was refused: {refused[0]}")


class LoopOutput:
    """The one output adapter: deals deliveries out to the inputs, uniformly."""

    name, keeps_order = ADAPTER, True

    def __init__(self, inputs: Sequence[LoopInput]) -> None:
        self._takers: list[Take] = [one.hand for one in inputs]
        self.first_ns = 0
        """When the first delivery came."""
        self.count = 0

    def hand_to(self, *takers: Take) -> None:
        """Deliveries go to these instead."""
        self._takers = list(takers)

    async def send_many(self, deliveries: Sequence[Delivery]) -> Sequence[Outcome]:
        """See BatchAdapter."""
        self.first_ns = self.first_ns or CLOCK.steady_ns()
        self.count += len(deliveries)
        for number, take in enumerate(self._takers):
            share = deliveries[number :: len(self._takers)]
            if share:
                take(share)
        return [_TAKEN] * len(deliveries)

    async def send(self, delivery: Delivery) -> Outcome:
        """See OutputAdapter."""
        return (await self.send_many([delivery]))[0]

    async def close(self) -> None:
        """See OutputAdapter."""


_TAKEN = Sent()


class Room:
    """Everything of a node that a message passes, made by hand as `Assembly` does."""

    def __init__(
        self,
        place: Path,
        directory: PeerDirectory,
        *,
        route: Route = no_routing,
        with_tokens: bool = False,
        answering: bool = True,
    ) -> None:
        self.channels = open_embedded(place, CLOCK)
        self.records = self.channels.records
        secret = answer_secret(self.records)
        answer = by_token(secret) if with_tokens else by_medium
        self._looped = [LoopInput(answer) for _ in range(INPUTS if answering else 0)]
        self.output = LoopOutput(self._looped)
        self._trusted = not with_tokens
        self.arrivals = self._arrivals(secret, directory)
        self.outputs = Outputs(
            self.channels, self.records, CLOCK, report=self._report, is_decided=self._is_decided
        )
        self.dispatch = self.outputs.hold(self.output)
        self.inputs = Inputs(self.arrivals.publish, self.channels, self.records, CLOCK)
        self.engine = CommunicationEngine(
            self.channels,
            self.records,
            CLOCK,
            EngineParts(
                directory=CachedDirectory(directory, CLOCK),
                actions={},
                phrases={},
                adapters=self.outputs.names,
                route=route,
            ),
        )
        self._tasks = Tasks(CLOCK)

    async def start(self) -> None:
        """Everything runs when it returns."""
        for name, work in (*self.outputs.work().items(), ("engine", self.engine.run)):
            self._tasks.start(name, work)
        for number, one in enumerate(self._looped):
            await self.inputs.add_push(one, name=f"in{number}", trusted=self._vouches)
        await self.engine.opened.wait()

    async def close(self) -> None:
        """Stops everything and closes the log."""
        await self.inputs.close()
        await self._tasks.stop()
        await self.outputs.close()
        await self.channels.close()

    @property
    def failures(self) -> dict[str, int]:
        """Tasks that failed, and how often: a run with one says nothing."""
        return self._tasks.failures

    def _arrivals(self, secret: bytes, directory: PeerDirectory) -> Arrivals:
        authenticating = Authenticator(
            self.channels,
            self.records,
            CLOCK,
            Sessions(self.records, CLOCK),
            Passwords(self.records).check,
            is_peer=lambda name: directory.peer(name) is not None,
        )
        # One peer sends as much here as a thousand elsewhere, so there is no limit per sender.
        return Arrivals(
            self.channels,
            self.records,
            CLOCK,
            authenticating,
            secret=secret,
            settings=ArrivalSettings(rate=0),
        )

    def _vouches(self, _message: Message) -> bool:
        return self._trusted

    async def _report(self, outcomes: Sequence[object]) -> None:
        await self.engine.opened.wait()
        await self.engine.apply_outcomes(outcomes)  # type: ignore[arg-type]

    def _is_decided(self, message: str, peer: str) -> bool:
        return self.engine.is_decided(message, peer)


@asynccontextmanager
async def fresh_room(
    directory: PeerDirectory,
    *,
    route: Route = no_routing,
    with_tokens: bool = False,
    answering: bool = True,
    running: bool = True,
    places: Places | None = None,
) -> AsyncIterator[Room]:
    """A room in a directory of its own, which is removed afterwards, or when `places` says so."""
    # What is left of the room before holds hundreds of megabytes, in few enough objects that
    # Python would not look for it by itself.
    gc.collect()
    with one_place() if places is None else places.fresh() as place:
        room = Room(place, directory, route=route, with_tokens=with_tokens, answering=answering)
        try:
            if running:
                await room.start()
            gc.freeze()  # as `rapport up` does
            yield room
        finally:
            gc.unfreeze()
            await room.close()
