"""A small site of people, and a communication room that can be killed and started again."""

from __future__ import annotations

from typing import Any

import pytest

from rapport.channel.backends.local import open_memory
from rapport.communication.actions import Action, PolicyActions, no_own_actions
from rapport.communication.adapters.base import Delivery, Outcome, Sent
from rapport.communication.adapters.dispatch import Dispatch
from rapport.communication.adapters.inbox import InboxAdapter
from rapport.communication.adapters.outputs import PrivacyRecheck
from rapport.communication.answers import AnswerData, record_answer
from rapport.communication.content_rules import ANY_CONTENT, Contents
from rapport.communication.delivery_runner import EngineParts
from rapport.communication.delivery_state import NextReceiver, RetryPolicy
from rapport.communication.engine import CommunicationEngine
from rapport.communication.ledger import Ledger
from rapport.communication.links import answer_secret, answer_token
from rapport.communication.message_plan import Route, no_routing
from rapport.communication.peers import Collective, Peer, PeerDirectory, SiteDirectory
from rapport.communication.records import LookupCounts
from rapport.core.detection import Detection
from rapport.core.message import Identifier
from rapport.kernel.clock import ManualClock

NOON = 1_772_452_800_000  # 2026-03-02T12:00:00Z
SECOND = 1_000


class Scripted:
    """Does what its script says, then takes everything; keeps what it was handed."""

    def __init__(self, name: str, *script: Outcome | BaseException) -> None:
        self.name, self.script = name, list(script)
        self.sent: list[Delivery] = []

    async def send(self, delivery: Delivery) -> Outcome:
        self.sent.append(delivery)
        outcome = self.script.pop(0) if self.script else Sent()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def close(self) -> None:
        return


class Room:
    """Engine and dispatches over channels that outlive them; `restart` is what a kill -9 leaves."""

    def __init__(self, *, channels: Any = None, now_ms: int = NOON) -> None:
        self.clock = ManualClock(now_ms)
        self.channels = channels or open_memory(self.clock)
        self.adapters: dict[str, Any] = {"inbox": InboxAdapter()}
        self.peers = {
            "ana": Peer(name="ana", addresses=("inbox:",)),
            "ben": Peer(name="ben", addresses=("inbox:",)),
            "lea": Peer(name="lea", addresses=("inbox:",)),
        }
        self.collectives = {
            "guards": Collective(name="guards", members=("ana", "ben")),
            "security-leads": Collective(name="security-leads", members=("lea",)),
        }
        self.actions = {
            "raise alarm": Action(
                phrase="raise alarm",
                send_to=Identifier("collective", "guards"),
                text="Guest {A} alone in {R}",
                urgent=True,
                done_when="answered",
                answer_within_ms=60 * SECOND,
                escalate=(NextReceiver("collective:security-leads"),),
            )
        }
        self.phrases: dict[str, tuple[str, ...]] = {"secure-building": ("raise alarm",)}
        self.end_phrases: dict[str, tuple[str, ...]] = {}
        """Policies with a situation, and the phrases of their `actions when cleared`."""
        self.own_actions: PolicyActions = no_own_actions
        self.route: Route = no_routing
        self.directory: PeerDirectory | None = None
        """In place of the people above."""
        self.lookups = LookupCounts()
        self.contents: Contents = ANY_CONTENT
        self.direct = False
        """Whether dispatches hand outcomes straight to the engine."""
        self.retry = RetryPolicy(attempts=4, first_ms=2 * SECOND, longest_ms=10 * SECOND)

    async def start(self) -> None:
        """Makes engine and dispatches anew, as a fresh process would."""
        self.engine = CommunicationEngine(
            self.channels,
            self.channels.records,
            self.clock,
            EngineParts(
                directory=self.directory or SiteDirectory(self.peers, self.collectives),
                actions=self.actions,
                phrases=self.phrases,
                adapters=tuple(self.adapters),
                retry=self.retry,
                own_actions=self.own_actions,
                end_phrases=self.end_phrases,
                route=self.route,
                lookups=self.lookups,
                contents=self.contents,
            ),
        )
        await self.engine.open()
        self.dispatches = [
            Dispatch(
                adapter,
                self.channels,
                self.channels.records,
                self.clock,
                report=self.engine.apply_outcomes if self.direct else None,
                is_decided=self.engine.is_decided,
                may_go=PrivacyRecheck(
                    self.directory or SiteDirectory(self.peers, self.collectives)
                ),
            )
            for adapter in self.adapters.values()
        ]
        for dispatch in self.dispatches:
            await dispatch.open()

    restart = start

    async def settle(self) -> None:
        """Lets everybody work until nobody has anything to do."""
        busy = True
        while busy:
            busy = bool(await self.engine.settle())
            for dispatch in self.dispatches:
                busy = bool(await dispatch.settle()) or busy

    async def pass_time(self, duration_ms: int) -> None:
        """Moves the clock second by second, letting everybody work in between."""
        target = self.clock.now_ms() + duration_ms
        while self.clock.now_ms() < target:
            self.clock.set_ms(min(self.clock.now_ms() + SECOND, target))
            await self.settle()

    async def detect(self, guest: str = "5", *, room: str = "r1", event: str = "e1") -> Detection:
        """Appends one detection."""
        detection = Detection(
            policy="secure-building",
            time=self.clock.now_ms(),
            bindings={"A": guest, "R": room},
            causes=((self.clock.now_ms(), event),),
        )
        await self.channels.channel("detections").append([detection.to_event(source="policy")])
        return detection

    async def answer(self, message: str, peer: str, text: str = "on my way") -> None:
        """What the door does when a person clicks."""
        secret = answer_secret(self.channels.records)
        data = AnswerData(
            message=message, peer=peer, text=text, token=answer_token(secret, message, peer)
        )
        await record_answer(self.channels, secret, data, now_ms=self.clock.now_ms())

    async def ledger(self) -> Ledger:
        """The ledger as it stands."""
        ledger = Ledger(self.channels)
        await ledger.refresh()
        return ledger

    async def states(self) -> list[tuple[str, str, str]]:
        """Every ledger line in order: (state, peer, adapter)."""
        found = []
        for stored in await self.channels.channel("log").read_after(0, limit=100_000):
            if stored.event.type.startswith("rapport.delivery."):
                data = stored.event.payload()
                state = stored.event.type.removeprefix("rapport.delivery.")
                found.append((state, data.get("peer", ""), data.get("adapter", "")))
        return found


@pytest.fixture
def room() -> Room:
    return Room()


@pytest.fixture
def new_room() -> type[Room]:
    return Room


@pytest.fixture
def scripted() -> type[Scripted]:
    return Scripted
