"""What the parts of one gossip machine share: settings, buffer, outbox, trace. [EN-5, EN-8]"""

from __future__ import annotations

from collections import Counter

from rapport.core.errors import InvalidInput
from rapport.ensemble.gossip.reception_buffer import Reception, ReceptionBuffer
from rapport.ensemble.gossip.recipients import Nobody, Recipients
from rapport.ensemble.gossip.settings import GossipSettings
from rapport.ensemble.gossip.splitting import Splitter
from rapport.ensemble.messages import Message, Outgoing, Part, Published
from rapport.ensemble.trace import Kind, TraceEvent, Tracing
from rapport.transport.base import Address, Now


class Workplace:
    """The state that push, pull and parts work on, and how they speak."""

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
        self.recipients: Recipients = recipients if recipients is not None else Nobody()
        self.radio, self.ip = settings.radio, settings.ip
        self.buffer = ReceptionBuffer(settings.components, settings.local_ms, settings.global_ms)
        self.entries = self.buffer.entries
        self.outbox: list[Outgoing] = []
        self.changed: list[Published] = []
        self.own: dict[str, int] = {}
        """The components of this node, each with the version last published."""
        self.counts: Counter[str] = Counter()
        """What happened how often; only ever growing."""
        self._splitter = Splitter(settings.part_bytes)
        self._whole_bytes = settings.part_bytes

    def say(self, message: Message, to: Address | None) -> None:
        """Puts a message into the outbox, to one address or (none) to all in range; knowledge that
        is too large goes in parts.
        """
        if message.__class__ is Published:
            body = message.body
            if body.__class__ is bytes and len(body) > self._whole_bytes:
                self._say_in_parts(message, to)
                return
        self.outbox.append(Outgoing(message, to))

    def _say_in_parts(self, message: Published, to: Address | None) -> None:
        try:
            parts = self._splitter.parts_of(message)
        except InvalidInput:  # larger than any message may be
            self.counts["not_sendable"] += 1
            return
        self.outbox += [Outgoing(part, to) for part in parts]

    def parts_of(self, message: Published) -> tuple[Part, ...]:
        """The message as `say` would send it."""
        return self._splitter.parts_of(message)

    def pass_on(self, message: Published, why: str, now: Now) -> None:
        """Sends another node's knowledge by all media of this one."""
        if self.trace is not None:
            self.tell(Kind.PASSED_ON, now, message.component, message.version, why)
        if self.radio:
            self.say(message, None)
        if self.ip:
            for to in self.recipients.to_pass_on(message, now):
                self.say(message, to)

    def known(self, component: str, now: Now) -> Reception:
        """The entry of a component, made if there is none."""
        entry = self.entries.get(component)
        if entry is None:
            entry, gone = self.buffer.add(component, now)
            if gone is not None:
                self.counts["pushed_out"] += 1
                if gone.listed and self.trace is not None:
                    self.tell(Kind.HEADER_EXPIRED, now, gone.component, 0, "full", gone.global_ms)
        return entry

    def tell(
        self,
        kind: Kind,
        now: Now,
        component: str,
        version: int = 0,
        detail: str = "",
        value: int = 0,
    ) -> None:
        """Writes to the trace; only to be called when there is one."""
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
