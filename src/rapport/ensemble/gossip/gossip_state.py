"""State shared by push, pull and parts of a gossip machine; periodic tasks. [EN-5, EN-8]"""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

from rapport.core.errors import InvalidInput
from rapport.ensemble.gossip.gossip_settings import GossipSettings
from rapport.ensemble.gossip.parts import Splitter
from rapport.ensemble.gossip.recipients import NoRecipients, Recipients
from rapport.ensemble.gossip.versions import Reception, ReceptionBuffer
from rapport.ensemble.protocol import Message, OutgoingMessage, Part, PublishedKnowledge
from rapport.ensemble.trace import Kind, TraceEvent, Tracing
from rapport.kernel.clock import Chance, Now
from rapport.transport.base import Address


class GossipState:
    """The state that push, pull and parts share: buffer, outbox, counters, trace."""

    def __init__(
        self,
        node: str,
        settings: GossipSettings,
        *,
        recipients: Recipients | None,
        address: Address | None,
        trace: Tracing | None,
    ) -> None:
        self.node, self.settings, self.address, self.trace = node, settings, address, trace
        self.recipients: Recipients = recipients if recipients is not None else NoRecipients()
        self.radio, self.ip = settings.radio, settings.ip
        self.buffer = ReceptionBuffer(settings.components, settings.local_ms, settings.global_ms)
        self.entries = self.buffer.entries
        self.outbox: list[OutgoingMessage] = []
        self.changed: list[PublishedKnowledge] = []
        self.own: dict[str, int] = {}
        """The components of this node, each with the version last published."""
        self.counts: Counter[str] = Counter()
        """Event counts; they only grow."""
        self._splitter = Splitter(settings.part_bytes)
        self._whole_bytes = settings.part_bytes

    def enqueue(self, message: Message, to: Address | None) -> None:
        """Puts a message into the outbox, to one address or (none) to all in range; knowledge that
        is too large goes in parts.
        """
        if message.__class__ is PublishedKnowledge:
            body = message.body
            if body.__class__ is bytes and len(body) > self._whole_bytes:
                self._enqueue_parts(message, to)
                return
        self.outbox.append(OutgoingMessage(message, to))

    def _enqueue_parts(self, message: PublishedKnowledge, to: Address | None) -> None:
        try:
            parts = self._splitter.parts_of(message)
        except InvalidInput:  # larger than any message may be
            self.counts["not_sendable"] += 1
            return
        self.outbox += [OutgoingMessage(part, to) for part in parts]

    def parts_of(self, message: PublishedKnowledge) -> tuple[Part, ...]:
        """The parts of a message, as `enqueue` sends them."""
        return self._splitter.parts_of(message)

    def pass_on(self, message: PublishedKnowledge, why: str, now: Now) -> None:
        """Sends another node's knowledge by all media of this one."""
        if self.trace is not None:
            self.record(Kind.PASSED_ON, now, message.component, message.version, why)
        if self.radio:
            self.enqueue(message, None)
        if self.ip:
            for to in self.recipients.to_pass_on(message, now):
                self.enqueue(message, to)

    def known(self, component: str, now: Now) -> Reception:
        """The entry of a component, made if there is none."""
        entry = self.entries.get(component)
        if entry is None:
            entry, gone = self.buffer.add(component, now)
            if gone is not None:
                self.counts["pushed_out"] += 1
                if gone.listed and self.trace is not None:
                    self.record(Kind.HEADER_EXPIRED, now, gone.component, 0, "full", gone.global_ms)
        return entry

    def record(
        self,
        kind: Kind,
        now: Now,
        component: str,
        version: int = 0,
        detail: str = "",
        value: int = 0,
    ) -> None:
        """Records a trace event; to be called only when tracing is on."""
        assert self.trace is not None
        self.trace(
            TraceEvent(
                now.steady_ms,
                now.wall_ms,
                kind,
                self.node,
                component=component,
                version=version,
                detail=detail,
                value=value,
            )
        )


_NEVER: Final = float("inf")


class Period:
    """The next due time of a periodic task; missed times are skipped."""

    __slots__ = ("_number", "_offset_ms", "_period_ms", "due_ms")

    def __init__(
        self, period_ms: float, offset_ms: float | None, chance: Chance, start_ms: float
    ) -> None:
        """A period of 0 is never due. Without an offset one is drawn."""
        self._period_ms = period_ms
        self._offset_ms = chance.random() * period_ms if offset_ms is None else offset_ms
        self._number = 0
        self.due_ms = _NEVER
        """Steady time of the next; infinite for never."""
        if period_ms > 0:
            self._number = max(math.ceil((start_ms - self._offset_ms) / period_ms), 0)
            self.due_ms = self._offset_ms + self._number * period_ms

    @property
    def offset_ms(self) -> float:
        """The offset, as given or drawn."""
        return self._offset_ms

    def done(self, steady_ms: float) -> None:
        """Sets the next due time, the first one after now."""
        # Counted, not computed from the time alone: a rounded quotient may be one too small.
        passed = math.floor((steady_ms - self._offset_ms) / self._period_ms)
        self._number = max(self._number, passed) + 1
        self.due_ms = self._offset_ms + self._number * self._period_ms

    def end(self) -> None:
        self.due_ms = _NEVER
