"""Machines and media broken on purpose: on a whole run, each is caught by the rule it breaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from rapport.ensemble.gossip.gossip_machine import GossipMachine
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.gossip.recipients import RandomRecipients
from rapport.ensemble.gossip.versions import Reception
from rapport.ensemble.protocol import (
    Headers,
    Message,
    OutgoingMessage,
    Part,
    PublishedKnowledge,
    Pull,
)
from rapport.ensemble.trace import Kind, TraceEvent
from rapport.kernel.clock import Now
from rapport.transport.base import Address, Sender
from rapport_lab.ensemble.rules.check import RULES, check_all

Laboratory = Any
PUSH = GossipSettings(knowledge_ms=1_000, probability=0.5)
PULL = GossipSettings(
    knowledge_ms=1_000,
    header_ms=1_000,
    pull_ms=1_000,
    local_ms=2_000,
    global_ms=4_000,
    probability=0.2,
)
IMMEDIATE = msgspec.structs.replace(PULL, answers="immediate")
HASTY = msgspec.structs.replace(IMMEDIATE, pull_ms=200, local_ms=300, answer_gap_ms=50)
PARTS = GossipSettings(knowledge_ms=1_000, part_bytes=128)
ON_IP = GossipSettings(knowledge_ms=1_000, radio=False, ip=True)
BOUND = GossipSettings(knowledge_ms=1_000, probability=1.0)


class TakesItselfForOthers(GossipMachine):
    def handle(self, message: Message, sender: Sender, now: Now) -> None:
        if isinstance(message, PublishedKnowledge) and message.component in self._state.own:
            self._entries.pop(message.component, None)
            self._state.own.clear()
        super().handle(message, sender, now)


class MissesSome(GossipMachine):
    missed = 0

    def _take(self, message: PublishedKnowledge, entry: Reception | None, *rest: Any) -> None:
        self.missed += 1
        if self.missed % 5:
            super()._take(message, entry, *rest)


class SwallowsWhatItPassesOn(GossipMachine):
    def _pass_on(self, message: PublishedKnowledge, now: Now) -> None:
        super()._pass_on(message, now)
        self.outbox.clear()


class PublishesThePast(GossipMachine):
    def _hold_own(self, message: PublishedKnowledge, entry: Reception, why: str, now: Now) -> None:
        past = msgspec.structs.replace(message, created_ms=message.created_ms - 500)
        super()._hold_own(past, entry, why, now)


class TakesTheFirstPartForAll(GossipMachine):
    def _take_other(self, message: Message, sender: Sender, now: Now) -> None:
        if isinstance(message, Part) and message.index == 0:
            name, version = message.component, message.version
            held = self._entries.get(name)
            if held is None or held.version < version:
                part = PublishedKnowledge(name, version, now.wall_ms, "?", (), message.data)
                self._take(part, held, sender, now)
        else:
            super()._take_other(message, sender, now)


class LeaksWhatItKeeps(GossipMachine):
    def _record_decision(
        self, message: PublishedKnowledge, delay_ms: float | None, now: Now
    ) -> None:
        super()._record_decision(message, delay_ms, now)
        if delay_ms is None:
            self.outbox.append(OutgoingMessage(message))


class PublishesTooOften(GossipMachine):
    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._knowledge._period_ms *= 0.7


class PublishesTooSeldom(GossipMachine):
    rounds = 0

    def _publish_all(self, now: Now) -> None:
        self.rounds += 1
        if self.rounds % 4:
            super()._publish_all(now)


class Everybody(RandomRecipients):
    def to_publish(self, component: str, now: Now) -> list[Address]:
        return list(self.known)


class SendsToEverybody(GossipMachine):
    def __init__(self, *arguments: Any, recipients: RandomRecipients, **more: Any) -> None:
        everybody = Everybody(1, recipients._chance, known=recipients.known)
        super().__init__(*arguments, recipients=everybody, **more)


class OverrulesTheStrategy(GossipMachine):
    def _record_decision(
        self, message: PublishedKnowledge, delay_ms: float | None, now: Now
    ) -> None:
        super()._record_decision(message, delay_ms, now)
        if delay_ms is None:
            self._state.pass_on(message, "strategy", now)


class ForgetsToPassOn(GossipMachine):
    def _pass_on(self, message: PublishedKnowledge, now: Now) -> None:
        pass


class PassesOnAgain(GossipMachine):
    again = 0
    """Not always: that would be a storm without end."""

    def _repeated(
        self, message: PublishedKnowledge, entry: Reception, sender: Sender, now: Now
    ) -> None:
        super()._repeated(message, entry, sender, now)
        if message.component not in self._state.own and self.again < 5:
            self.again += 1
            self._state.pass_on(message, "strategy", now)


class SendsTwice(GossipMachine):
    def _pass_on(self, message: PublishedKnowledge, now: Now) -> None:
        super()._pass_on(message, now)
        self.outbox.extend(self.outbox[-1:])


class IgnoresTheBoundary(GossipMachine):
    def _pass_on(self, message: PublishedKnowledge, now: Now) -> None:
        before = len(self.outbox)
        super()._pass_on(message, now)
        if len(self.outbox) == before:
            self._state.pass_on(message, "strategy", now)


class NeverAsksTheBoundary(GossipMachine):
    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **(more | {"boundary": None}))


class PassesOnHeaders(GossipMachine):
    passed = 0

    def _take_other(self, message: Message, sender: Sender, now: Now) -> None:
        super()._take_other(message, sender, now)
        self.passed += 1
        if isinstance(message, Headers) and self.passed < 20:
            self.outbox.append(OutgoingMessage(message))


class PassesOnPulls(GossipMachine):
    passed = 0

    def _take_other(self, message: Message, sender: Sender, now: Now) -> None:
        super()._take_other(message, sender, now)
        self.passed += 1
        if isinstance(message, Pull) and self.passed < 50:
            self.outbox.append(OutgoingMessage(message))


class KeepsNoHeaders(GossipMachine):
    def _hold(self, message: PublishedKnowledge, entry: Reception, now: Now) -> None:
        trace = self._state.trace
        kept = (Kind.REPLACED,)
        self._state.trace = lambda event: _tell_only(kept, event, trace)
        super()._hold(message, entry, now)
        self._state.trace = trace
        entry.listed = False


class TellsHeadersTooOften(GossipMachine):
    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._headers._period_ms *= 0.6


class TellsHalfTheHeaders(GossipMachine):
    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        listed = self.buffer.listed
        self.buffer.listed = lambda: iter(list(listed())[1:])


class TellsNoHeaders(GossipMachine):
    rounds = 0

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._pull.send_headers = self._pull.expire


class IgnoresHeaders(GossipMachine):
    def _take_other(self, message: Message, sender: Sender, now: Now) -> None:
        if not isinstance(message, Headers):
            super()._take_other(message, sender, now)


class PullsWhatIsFresh(GossipMachine):
    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.buffer._local_ms = 0


class NeverPulls(GossipMachine):
    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._pulls.end()
        self._pull.send_pulls = self._pull.expire


class IgnoresPulls(GossipMachine):
    def _take_other(self, message: Message, sender: Sender, now: Now) -> None:
        if not isinstance(message, Pull):
            super()._take_other(message, sender, now)


class AnswersTwice(GossipMachine):
    def _take_other(self, message: Message, sender: Sender, now: Now) -> None:
        before = len(self.outbox)
        super()._take_other(message, sender, now)
        if isinstance(message, Pull):
            self.outbox.extend(self.outbox[before:])


class SaysAgainWhatItAnswered(GossipMachine):
    def _end_wait(self, message: PublishedKnowledge, entry: Reception, now: Now) -> None:
        self._decide_again(message, now)


class PullsTwiceFromOne(GossipMachine):
    def tick(self, now: Now) -> None:
        before = len(self.outbox)
        super().tick(now)
        pulls = [one for one in self.outbox[before:] if isinstance(one.message, Pull)]
        self.outbox.extend(pulls[:1])


class IgnoresTheFlag(GossipMachine):
    def _was_pulled(self, entry: Reception, now: Now) -> bool:
        super()._was_pulled(entry, now)
        return False


class KeepsOldHeaders(GossipMachine):
    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.buffer._global_ms = 1e9


def _tell_only(kinds: Sequence[Kind], event: TraceEvent, trace: Any) -> None:
    if event.kind in kinds:
        trace(event)


MUTANTS: list[tuple[int, type[GossipMachine], dict[str, Any]]] = [
    (1, TakesItselfForOthers, {"settings": PUSH}),
    (2, MissesSome, {"settings": PUSH}),
    (5, SwallowsWhatItPassesOn, {"settings": PUSH}),
    (6, PublishesThePast, {"settings": PUSH}),
    (7, TakesTheFirstPartForAll, {"settings": PARTS, "body_bytes": 300}),
    (8, LeaksWhatItKeeps, {"settings": PUSH}),
    (9, PublishesTooOften, {"settings": PUSH}),
    (9, PublishesTooSeldom, {"settings": PUSH}),
    (11, SendsToEverybody, {"settings": ON_IP}),
    (12, OverrulesTheStrategy, {"settings": PUSH}),
    (12, ForgetsToPassOn, {"settings": PUSH}),
    (13, PassesOnAgain, {"settings": PUSH}),
    (13, SendsTwice, {"settings": PUSH}),
    (13, AnswersTwice, {"settings": IMMEDIATE}),
    (13, SaysAgainWhatItAnswered, {"settings": HASTY, "counting": True}),
    (14, IgnoresTheBoundary, {"settings": BOUND, "outside": frozenset({(1, 0), (2, 3)})}),
    (14, NeverAsksTheBoundary, {"settings": BOUND, "outside": frozenset({(1, 0), (2, 3)})}),
    (18, PassesOnHeaders, {"settings": PULL}),
    (18, PassesOnPulls, {"settings": PULL}),
    (19, KeepsNoHeaders, {"settings": PULL}),
    (20, TellsHeadersTooOften, {"settings": PULL}),
    (20, TellsHalfTheHeaders, {"settings": PULL}),
    (20, TellsNoHeaders, {"settings": msgspec.structs.replace(PULL, header_offset_ms=100)}),
    (21, IgnoresHeaders, {"settings": PULL}),
    (22, PullsWhatIsFresh, {"settings": PULL}),
    (22, PullsTwiceFromOne, {"settings": msgspec.structs.replace(PULL, radio=False, ip=True)}),
    (22, NeverPulls, {"settings": msgspec.structs.replace(PULL, pull_offset_ms=100)}),
    (23, IgnoresPulls, {"settings": PULL}),
    (23, IgnoresPulls, {"settings": IMMEDIATE}),
    (24, IgnoresTheFlag, {"settings": PULL}),
    (25, KeepsOldHeaders, {"settings": PULL, "stops": ((0, 8_000),)}),
]


IMPLIED: dict[type[GossipMachine], set[int]] = {
    TakesItselfForOthers: {13},  # what it takes for another's it also passes on
    TellsHalfTheHeaders: {22},  # it does not pull the other half either
    KeepsOldHeaders: {20, 22},  # it tells and pulls them, which it should not
}
"""What else a broken machine breaks thereby."""


@pytest.mark.parametrize(
    ("rule", "machine", "plan"),
    MUTANTS,
    ids=[
        f"{rule} {machine.__name__} {number}" for number, (rule, machine, _) in enumerate(MUTANTS)
    ],
)
def test_a_broken_machine_is_caught(
    laboratory: Laboratory, rule: int, machine: type[GossipMachine], plan: dict[str, Any]
) -> None:
    plan = laboratory.Plan(**({"duration_ms": 20_000, "loss": 0.2} | plan))
    caught = {breach.rule for breach in check_all(laboratory.trace(plan, machine))}
    assert rule in caught
    assert caught - {rule} <= IMPLIED.get(machine, set())
    assert check_all(laboratory.trace(plan)) == []


def _reaches_too_far(run: Any) -> None:
    run.links = {(one, other) for one in run.names for other in run.names if one != other}


def _reaches_one_only(run: Any) -> None:
    nearest: dict[str, str] = {}
    for one, other in sorted(run.links):
        nearest.setdefault(one, other)
    run.links = set(nearest.items())


@pytest.mark.parametrize(
    ("rules", "spoil", "body_bytes"),
    [
        ({3}, _reaches_too_far, 20),
        ({4}, _reaches_one_only, 20),
        ({4, 10}, _reaches_one_only, 300),  # parts, and the pulls of parts
    ],
    ids=["3 reaches too far", "4 reaches one only", "10 parts reach one only"],
)
def test_a_broken_medium_is_caught(
    laboratory: Laboratory, rules: set[int], spoil: Any, body_bytes: int
) -> None:
    plan = laboratory.Plan(settings=PARTS, duration_ms=10_000, body_bytes=body_bytes)
    run = laboratory.Run(plan)
    spoil(run)
    assert {breach.rule for breach in check_all(run.trace())} == rules


def test_every_rule_of_gossip_has_a_mutant() -> None:
    """Those of groups are broken in `test_groups`."""
    broken = {rule for rule, _machine, _plan in MUTANTS} | {3, 4, 10}
    assert broken == {rule.number for rule in RULES} - {15, 16, 17}
