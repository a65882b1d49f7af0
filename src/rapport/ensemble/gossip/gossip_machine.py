"""The gossip of one node as a pure state machine: messages and time in, messages out.
[EN-5, EN-6, EN-8, EN-9]

Each period the node publishes its components. A version that it receives for the first time becomes
the replica. The node passes it on if another node pulled it, or if the strategy decides so and no
boundary stops it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from rapport.core.errors import InvalidInput
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.gossip.gossip_state import GossipState, Period
from rapport.ensemble.gossip.parts import Parts
from rapport.ensemble.gossip.pull import PullMachine
from rapport.ensemble.gossip.recipients import PullCounts, Recipients
from rapport.ensemble.gossip.strategies import AT_ONCE, KEEP, Probabilistic, Strategy
from rapport.ensemble.gossip.versions import (
    CLOCK_SET_MS,
    DuplicateComponent,
    OvertakenVersions,
    OwnComponents,
    Reception,
    ReceptionBuffer,
)
from rapport.ensemble.protocol import (
    Headers,
    Message,
    OutgoingMessage,
    Part,
    PublishedKnowledge,
    Pull,
    PullParts,
)
from rapport.ensemble.trace import Kind, Tracing
from rapport.kernel.clock import Chance, Now
from rapport.transport.base import Address, Sender

Boundary = Callable[[PublishedKnowledge], bool]
"""Returns whether a version may be passed on."""

_NEVER: Final = float("inf")
_FORGETS_IN: Final = 4
"""Sweeps within `forget_ms`."""


class Publication(NamedTuple):
    """Knowledge to publish; the machine adds version, time, node and address."""

    component: str
    roles: tuple[str, ...]
    body: Any
    """As in `Published`; none: it cannot be published now, so nothing is."""
    groups: tuple[str, ...] = ()


class KnowledgeSource(Protocol):
    """Source of the knowledge of a node's components."""

    def published(self, now: Now) -> Iterable[Publication]:
        """All publications at a time. A component that is missing no longer lives on this node."""


class GossipMachine:
    """The gossip of one node.

    After each call the shell sends the `outbox`, handles `changed`, and empties both; it calls
    `tick` when `next_due_ms` has come. No call raises because of the content of a message. Memory
    is bounded by the settings. A version already held costs about 0.1 us, a new one below 1.
    """

    def __init__(
        self,
        node: str,
        settings: GossipSettings,
        chance: Chance,
        *,
        source: KnowledgeSource,
        strategy: Strategy | None = None,
        only_ungrouped: bool = False,
        boundary: Boundary | None = None,
        recipients: Recipients | None = None,
        address: Address | None = None,
        askers: PullCounts | None = None,
        trace: Tracing | None = None,
        on_duplicate: Callable[[DuplicateComponent], None] | None = None,
        given_before: int = 0,
        start_ms: float = 0.0,
    ) -> None:
        """Raises InvalidInput when the strategy cannot work with these settings.

        Args:
            strategy: none is the probability of the settings.
            only_ungrouped: knowledge of a group is not for the strategy. It goes from its node to
                all members, and from grouper to grouper by the key: so each version is passed on at
                most once (rule 13).
            recipients: none sends nothing on IP.
            askers: counts pulls of own components.
            on_duplicate: called each time another node claims a component of this one.
            given_before: own versions begin above it, wherever the clock is.
            start_ms: the steady time now, so that the first period is a whole one.
        """
        self.node, self.settings = node, settings
        self._state = state = GossipState(
            node, settings, recipients=recipients, address=address, trace=trace
        )
        self.outbox: list[OutgoingMessage] = state.outbox
        """Messages to send, in order; the shell empties this list in place."""
        self.changed: list[PublishedKnowledge] = state.changed
        """Newer versions received; the shell empties this list in place."""
        self.counts: Mapping[str, int] = state.counts
        self.buffer: ReceptionBuffer = state.buffer
        self.on_published: Callable[[PublishedKnowledge], None] | None = None
        """Called with each version of an own component, whether or not it is sent."""
        self._entries = state.entries
        self._source, self._boundary = source, boundary
        self._strategy = strategy or Probabilistic(settings.probability, chance)
        _check_strategy(self._strategy, settings)
        self._only_ungrouped = only_ungrouped
        self._listens = self._strategy.listens
        self._quiet = trace is None and not self._listens
        self._ahead_ms = settings.ahead_ms
        self._by_creation = settings.times == "created"
        self._own = OwnComponents(state, on_duplicate, given_before=given_before)
        self._overtaken = OvertakenVersions(state)
        self._pull = PullMachine(state, self._strategy, askers)
        self._parts = Parts(state, chance)
        self._waiting: list[tuple[float, int, PublishedKnowledge]] = []
        self._number = 0
        self._knowledge = Period(
            settings.knowledge_ms, settings.knowledge_offset_ms, chance, start_ms
        )
        self._headers = Period(settings.header_ms, settings.header_offset_ms, chance, start_ms)
        self._pulls = Period(settings.pull_ms, settings.pull_offset_ms, chance, start_ms)
        sweep_ms = settings.forget_ms / _FORGETS_IN
        self._sweep = Period(sweep_ms, start_ms % sweep_ms, chance, start_ms + sweep_ms)
        self._due_ms = self._earliest_ms()

    @property
    def duplicates(self) -> Mapping[str, DuplicateComponent]:
        """Components of this node that another node claims."""
        return self._own.duplicates

    @property
    def given(self) -> int:
        """The version that was last assigned to an own component; 0 for none."""
        return self._own.given

    @property
    def settings_drawn(self) -> GossipSettings:
        """The settings with the offsets that were drawn."""
        return msgspec.structs.replace(
            self.settings,
            knowledge_offset_ms=self._knowledge.offset_ms,
            header_offset_ms=self._headers.offset_ms,
            pull_offset_ms=self._pulls.offset_ms,
        )

    @property
    def incomplete(self) -> int:
        """Versions of which parts are missing."""
        return len(self._parts)

    # Received messages

    def handle(self, message: Message, sender: Sender, now: Now) -> None:
        if type(message) is PublishedKnowledge:
            entry = self._entries.get(message.component)
            if entry is None or message.version > entry.version:
                self._take(message, entry, sender, now)
                return
            if message.version < entry.version:
                self._overtaken.receive_older(message, entry, sender, now)
            if not self._quiet:
                self._repeated(message, entry, sender, now)
        else:
            self._take_other(message, sender, now)

    def _take(
        self, message: PublishedKnowledge, entry: Reception | None, sender: Sender, now: Now
    ) -> None:
        """A newer version: it is held from now on, and perhaps passed on."""
        state = self._state
        if message.component in state.own:
            self._own.receive_newer(message, now)
            return
        if message.version > now.wall_ms + self._ahead_ms and now.wall_ms >= CLOCK_SET_MS:
            state.counts["far_ahead"] += 1
            return
        if entry is None:
            entry = state.known(message.component, now)
        self._hold(message, entry, now)
        state.changed.append(message)
        if entry.pulled_until_ms and self._was_pulled(entry, now):
            entry.sent_ms = now.steady_ms
            state.pass_on(message, "pulled", now)
            return
        is_left_out = self._only_ungrouped and message.groups
        delay_ms = KEEP if is_left_out else self._strategy.decide(message, sender, now)
        if state.trace is not None:
            self._record_decision(message, delay_ms, now)
        if delay_ms == AT_ONCE:
            self._pass_on(message, now)
        elif delay_ms is not KEEP:
            self._wait(message, delay_ms, now)

    def _hold(self, message: PublishedKnowledge, entry: Reception, now: Now) -> None:
        time_ms = now.wall_ms
        if self._by_creation and message.created_ms < time_ms:
            time_ms = message.created_ms
        entry.message, entry.version = message, message.version
        entry.received_ms = now.steady_ms
        entry.local_ms = time_ms
        if time_ms > entry.global_ms or not entry.listed:
            entry.global_ms = time_ms
        entry.listed = True
        entry.asked, entry.sent_ms = 0, -_NEVER
        if message.address is not None:
            entry.address = message.address
        if self._state.trace is not None:
            record, name = self._state.record, message.component
            record(Kind.REPLACED, now, name, message.version, "", message.created_ms)
            record(Kind.HEADER_ADDED, now, name, message.version, "knowledge", entry.global_ms)

    def _was_pulled(self, entry: Reception, now: Now) -> bool:
        """Whether the component was pulled in time; clears the mark."""
        is_in_time = entry.pulled_until_ms > now.steady_ms
        entry.pulled_until_ms = 0.0
        if self._state.trace is not None:
            why = "forwarded" if is_in_time else "time"
            self._state.record(Kind.FLAG_CLEARED, now, entry.component, 0, why)
        return is_in_time

    def _pass_on(self, message: PublishedKnowledge, now: Now) -> None:
        """Passes a version on, unless the boundary stops it."""
        state = self._state
        if self._boundary is not None:
            is_inside = self._boundary(message)
            if state.trace is not None:
                detail = "inside" if is_inside else "outside"
                state.record(Kind.BOUNDED, now, message.component, message.version, detail)
            if not is_inside:
                return
        self._entries[message.component].sent_ms = now.steady_ms
        state.pass_on(message, "strategy", now)

    def _wait(self, message: PublishedKnowledge, delay_ms: float, now: Now) -> None:
        """Lets the strategy wait and listen; decides at once when too many versions wait."""
        if len(self._waiting) >= self.settings.waiting:
            self._decide_again(message, now)
            return
        due_ms = now.steady_ms + delay_ms
        self._number += 1
        heappush(self._waiting, (due_ms, self._number, message))
        self._due_ms = min(self._due_ms, due_ms)

    def _end_wait(self, message: PublishedKnowledge, entry: Reception | None, now: Now) -> None:
        if entry is not None and entry.sent_ms == -_NEVER:
            self._decide_again(message, now)
        else:  # said meanwhile in answer to a pull, or pushed out: asked only so that it forgets
            self._strategy.decide_again(message, now)

    def _decide_again(self, message: PublishedKnowledge, now: Now) -> None:
        passes = self._strategy.decide_again(message, now)
        if self._state.trace is not None:
            self._record_decision(message, AT_ONCE if passes else KEEP, now)
        if passes:
            self._pass_on(message, now)

    def _repeated(
        self, message: PublishedKnowledge, entry: Reception, sender: Sender, now: Now
    ) -> None:
        if self._state.trace is not None:
            why = "own" if message.component in self._state.own else "older"
            self._state.record(Kind.DROPPED, now, message.component, message.version, why)
        is_left_out = self._only_ungrouped and message.groups
        if self._listens and message.version == entry.version and not is_left_out:
            self._strategy.repeated(message, sender, now)

    def _take_other(self, message: Message, sender: Sender, now: Now) -> None:
        match message:
            case Headers():
                self._pull.take_headers(message, now)
            case Pull():
                self._pull.take_pull(message, sender, now)
            case Part():
                whole = self._parts.take(message, sender, now)
                self._due_ms = min(self._due_ms, self._parts.next_due_ms())
                if whole is not None:
                    self._take(whole, self._entries.get(whole.component), sender, now)
            case PullParts():
                self._own.named(message.component, message.version, now)
                self._parts.answer(message, sender, now)
                self._due_ms = min(self._due_ms, self._parts.next_due_ms())

    # Due tasks

    def tick(self, now: Now) -> None:
        steady_ms = now.steady_ms
        if steady_ms >= self._knowledge.due_ms:
            self._knowledge.done(steady_ms)
            self._publish_all(now)
        if steady_ms >= self._headers.due_ms:
            self._headers.done(steady_ms)
            self._pull.send_headers(now)
        if steady_ms >= self._pulls.due_ms:
            self._pulls.done(steady_ms)
            self._pull.send_pulls(now)
        while self._waiting and self._waiting[0][0] <= steady_ms:
            message = heappop(self._waiting)[2]
            entry = self._entries.get(message.component)
            if entry is None or entry.version == message.version:
                self._end_wait(message, entry, now)
        self._parts.tick(now)
        if steady_ms >= self._sweep.due_ms:
            self._sweep.done(steady_ms)
            self._forget(now)
        self._due_ms = self._earliest_ms()

    def next_due_ms(self) -> float | None:
        """The steady time of the earliest thing to do; none: nothing before a message."""
        return None if self._due_ms == _NEVER else self._due_ms

    def publish_now(self, component: str, now: Now) -> bool:
        """Publishes a component out of turn; false when it is not this node's, or cannot be
        published.
        """
        for offer in self._source.published(now):
            if offer.component == component:
                if offer.body is None:
                    self._withhold(component, now)
                    return False
                self._publish(offer, "asked", now)
                return True
        return False

    def send(self, message: PublishedKnowledge, to: Address) -> None:
        """Sends another node's knowledge to one address, in parts if it is large, for groupers. It
        is neither held nor counted as sent.
        """
        self._state.enqueue(message, to)

    def adopt(self, component: str) -> None:
        """The component lives here, though it was not published yet: versions from other nodes are
        not accepted.
        """
        self._state.own.setdefault(component, 0)

    def disown(self, component: str) -> None:
        """The component no longer lives here; its last version is not sent again."""
        if self._state.own.pop(component, None) is not None:
            self._silence(component)

    def stop(self) -> None:
        """Ends all periodic tasks; messages are still handled."""
        for period in (self._knowledge, self._headers, self._pulls, self._sweep):
            period.end()
        self._waiting.clear()
        self._parts.clear()
        self._due_ms = _NEVER

    def _publish_all(self, now: Now) -> None:
        own = self._state.own
        offered = set()
        for offer in self._source.published(now):
            offered.add(offer.component)
            if offer.body is None:
                self._withhold(offer.component, now)
            else:
                self._publish(offer, "period", now)
        for component in own.keys() - offered:
            self.disown(component)

    def _withhold(self, component: str, now: Now) -> None:
        """Withholds a component: its last version is neither listed nor sent."""
        self.adopt(component)
        self._silence(component)
        self._state.counts["withheld"] += 1
        if self._state.trace is not None:
            self._state.record(Kind.WITHHELD, now, component)

    def _silence(self, component: str) -> None:
        entry = self._entries.get(component)
        if entry is not None:
            entry.message, entry.listed = None, False

    def _publish(self, offer: Publication, why: str, now: Now) -> None:
        state = self._state
        component = offer.component
        version = self._own.next_version(component, self._entries.get(component), now)
        message = PublishedKnowledge(
            component,
            version,
            now.wall_ms,
            state.node,
            offer.roles,
            offer.body,
            state.address,
            offer.groups,
        )
        state.own[component] = version
        entry = self._entries.get(component) or state.known(component, now)
        self._hold_own(message, entry, why, now)
        if self.on_published is not None:
            self.on_published(message)
        if state.radio:
            state.enqueue(message, None)
        if state.ip:
            for to in state.recipients.to_publish(component, now):
                state.enqueue(message, to)

    def _hold_own(self, message: PublishedKnowledge, entry: Reception, why: str, now: Now) -> None:
        entry.message, entry.version = message, message.version
        entry.local_ms = entry.global_ms = now.wall_ms
        entry.received_ms = entry.sent_ms = now.steady_ms
        entry.listed, entry.pulled_until_ms = True, 0.0
        if self._state.trace is not None:
            record, name = self._state.record, message.component
            record(Kind.PUBLISHED, now, name, message.version, why, message.created_ms)

    def _forget(self, now: Now) -> None:
        self._pull.expire(now)
        forgotten = self.buffer.forget(now.steady_ms - self.settings.forget_ms)
        self._state.counts["forgotten"] += len(forgotten)

    def _earliest_ms(self) -> float:
        waiting_ms = self._waiting[0][0] if self._waiting else _NEVER
        return min(
            self._knowledge.due_ms,
            self._headers.due_ms,
            self._pulls.due_ms,
            self._sweep.due_ms,
            waiting_ms,
            self._parts.next_due_ms(),
        )

    def _record_decision(
        self, message: PublishedKnowledge, delay_ms: float | None, now: Now
    ) -> None:
        detail = "keep" if delay_ms is KEEP else "pass" if delay_ms == AT_ONCE else "wait"
        self._state.record(Kind.DECIDED, now, message.component, message.version, detail)


def _check_strategy(strategy: Strategy, settings: GossipSettings) -> None:
    if strategy.needs_headers and not (settings.header_ms and settings.radio):
        raise InvalidInput(
            "the strategy learns from the headers of neighbours, and none are sent",
            code="ensemble.bad_strategy",
            hint=f"radio, and header_ms of {settings.knowledge_ms:g} or less",
        )
