"""What the shell of a node writes into a trace: what crossed its edge, and whom it knows. [EN-3,
EN-10]
"""

from __future__ import annotations

from collections.abc import Iterable

from rapport.ensemble.messages import Message, Outgoing
from rapport.ensemble.trace import IP, RADIO, Kind, Recorder, TraceEvent
from rapport.kernel.clock import Now
from rapport.transport.base import Address, Sender


class Recording:
    """The recorder as one node uses it."""

    def __init__(self, recorder: Recorder, node: str) -> None:
        self.recorder, self._node = recorder, node
        self._known: frozenset[Address] = frozenset()

    def note(self, kind: Kind, now: Now, *, component: str = "", other: str = "") -> None:
        """Something that the world did."""
        self.recorder(
            TraceEvent(now.steady_ms, now.wall_ms, kind, self._node, component, other=other)
        )

    def received(self, message: Message, sender: Sender, now: Now) -> None:
        """What is about to be handled."""
        other = self.recorder.name_of(sender.address)
        medium = RADIO if sender.to_all else IP
        self.recorder.received(self._node, message, other, medium, now)

    def sent(self, outgoing: Outgoing, now: Now) -> None:
        """What is about to be sent."""
        self.recorder.sent(self._node, outgoing, now)

    def members(self, present: Iterable[Address], now: Now) -> None:
        """Whom the node knows from now on."""
        known = frozenset(present)
        for address in sorted(known - self._known):
            self.note(Kind.KNOWN, now, other=self.recorder.name_of(address))
        for address in sorted(self._known - known):
            self.note(Kind.FORGOTTEN, now, other=self.recorder.name_of(address))
        self._known = known
