"""Versions of components: the reception buffer, versions of own components, and outdated senders.
[EN-8]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rapport.ensemble.protocol import PublishedKnowledge, PullParts
from rapport.kernel.clock import Now
from rapport.transport.base import Address, Sender

if TYPE_CHECKING:
    from rapport.ensemble.gossip.gossip_state import GossipState

_NEVER = 0.0


class Reception:
    """One component, as far as its node knows. Fields are read and written on the hot path of the
    machine, so they are open.
    """

    __slots__ = (
        "address",
        "asked",
        "component",
        "global_ms",
        "listed",
        "local_ms",
        "message",
        "pulled_until_ms",
        "received_ms",
        "sent_ms",
        "version",
    )

    def __init__(self, component: str, steady_ms: float) -> None:
        self.component = component
        self.version = 0
        """Of the message held; 0 for none."""
        self.message: PublishedKnowledge | None = None
        self.received_ms = steady_ms
        """Steady time of the last news."""
        self.local_ms = 0
        """Time of the version held here; of the first header while none is."""
        self.global_ms = 0
        """Latest known reception by any node."""
        self.listed = False
        """Its header is in the buffer; a version may be held longer than its header."""
        self.pulled_until_ms = _NEVER
        """Steady time until which the next version is passed on for certain; 0: not pulled."""
        self.address: Address | None = None
        """Of the node it lives on."""
        self.asked = 0
        """Pulls sent since the last news."""
        self.sent_ms = float("-inf")
        """Steady time when the version held was last sent to all; minus infinity: not yet."""


class ReceptionBuffer:
    """All components that a node knows of, at most `capacity`; for more, the one known longest is
    forgotten. Looking up costs a dictionary access; going through headers is linear.
    """

    def __init__(self, capacity: int, local_ms: float, global_ms: float) -> None:
        self.entries: dict[str, Reception] = {}
        self._capacity = capacity
        self._local_ms, self._global_ms = local_ms, global_ms

    def add(self, component: str, now: Now) -> tuple[Reception, Reception | None]:
        """A new entry without version and header, and the one that had to go for it."""
        gone = None
        if len(self.entries) >= self._capacity:
            gone = self.entries.pop(next(iter(self.entries)))
        entry = self.entries[component] = Reception(component, now.steady_ms)
        return entry, gone

    def expire(self, now: Now) -> list[Reception]:
        """Removes and returns headers whose component no node received for too long, also after the
        clock was set back by more than that.
        """
        expired = [entry for entry in self.entries.values() if self._is_expired(entry, now)]
        for entry in expired:
            entry.listed = False
        return expired

    def is_current(self, global_ms: int, now: Now) -> bool:
        """Whether a header of that time may be in the buffer."""
        return abs(now.wall_ms - global_ms) <= self._global_ms

    def listed(self) -> Iterator[Reception]:
        """The entries whose header is in the buffer."""
        return (entry for entry in self.entries.values() if entry.listed)

    def outdated(self, now: Now) -> list[Reception]:
        """The listed entries whose version is outdated."""
        before_ms = now.wall_ms - self._local_ms
        return [entry for entry in self.listed() if entry.local_ms < before_ms]

    def forget(self, before_ms: float) -> list[Reception]:
        """Removes and returns entries without news since a steady time and without a header."""
        old = [
            entry
            for entry in self.entries.values()
            if entry.received_ms < before_ms and not entry.listed
        ]
        for entry in old:
            del self.entries[entry.component]
        return old

    def _is_expired(self, entry: Reception, now: Now) -> bool:
        return entry.listed and not self.is_current(entry.global_ms, now)


CLOCK_SET_MS = 1_577_836_800_000
"""2020: a clock before this was never set and is not used for checks."""
_REMEMBERED = 4_096
_FORMER_LIFE = 3
"""Newer versions of an own component, sent in this node's name, that an earlier run explains."""


class DuplicateComponent(msgspec.Struct):
    """Another node that claims a component of this node."""

    component: str
    node: str
    address: Address | None
    times: int
    last_ms: float
    """Steady time."""


def is_far_ahead(version: int, now: Now, ahead_ms: float) -> bool:
    """Whether no node with a sound clock can have given that version yet."""
    return version > now.wall_ms + ahead_ms and now.wall_ms >= CLOCK_SET_MS


class OwnComponents:
    """Versions of own components, and conflicting claims of other nodes."""

    def __init__(
        self,
        state: GossipState,
        on_duplicate: Callable[[DuplicateComponent], None] | None,
        *,
        given_before: int = 0,
    ) -> None:
        """`given_before`: the greatest version that an earlier run assigned, as far as known."""
        self._state, self._on_duplicate = state, on_duplicate
        self._given_before = given_before
        self.given = 0
        """The version assigned last, of any component."""
        self._last: dict[str, int] = {}
        self._climbed: dict[str, int] = {}
        self.duplicates: dict[str, DuplicateComponent] = {}

    def next_version(self, component: str, held: Reception | None, now: Now) -> int:
        """The wall clock, or one more than the last version where that clock stands or went back.
        After the clock was ahead by more than `ahead_ms` it starts again: no node accepted those
        versions.

        `held`: the reception of the component, perhaps of an earlier run, before it lived here.
        """
        last = held.message if held is not None else None
        if last is not None and last.node == self._state.node:
            self._remember(component, max(last.version, self._known(component)))
        version = self._known(component) + 1
        if now.wall_ms > version or is_far_ahead(version, now, self._state.settings.ahead_ms):
            version = max(now.wall_ms, 1)
        self._remember(component, version)
        self.given = version
        return version

    def receive_newer(self, message: PublishedKnowledge, now: Now) -> None:
        """Handles a newer version of an own component from outside. Either an earlier run of this
        node published it, then own versions continue above it; or another node claims the
        component, which is counted. Own knowledge is never replaced.
        """
        state, component = self._state, message.component
        if message.version <= self._known(component):
            return
        state.counts["own_heard"] += 1
        is_same_node = message.node == state.node
        is_same_address = message.address is None or message.address == state.address
        climbed = self._climbed.get(component, 0)
        if not (is_same_node and is_same_address and climbed < _FORMER_LIFE):
            self._note_duplicate(message, now)
        if not is_same_node:
            return
        if is_far_ahead(message.version, now, state.settings.ahead_ms):
            state.counts["far_ahead"] += 1
            return
        self._climbed[component] = climbed + 1
        self._remember(component, message.version)

    def named(self, component: str, version: int, now: Now) -> None:
        """Another node knows that version. If it is of an own component and newer than any assigned
        here, an earlier run assigned it, and own versions continue above it.
        """
        if component not in self._state.own or version <= self._known(component):
            return
        if is_far_ahead(version, now, self._state.settings.ahead_ms):
            self._state.counts["far_ahead"] += 1
            return
        self._state.counts["own_named"] += 1
        self._remember(component, version)

    def _known(self, component: str) -> int:
        """The greatest version of a component that was given, as far as is known."""
        return self._last.get(component, self._given_before)

    def _note_duplicate(self, message: PublishedKnowledge, now: Now) -> None:
        self._state.counts["doubles"] += 1
        found = self.duplicates.get(message.component)
        if found is None:
            if len(self.duplicates) >= _REMEMBERED:
                del self.duplicates[next(iter(self.duplicates))]
            found = self.duplicates[message.component] = DuplicateComponent(
                message.component, message.node, message.address, 0, now.steady_ms
            )
        found.node, found.address = message.node, message.address
        found.times, found.last_ms = found.times + 1, now.steady_ms
        if self._on_duplicate is not None:
            self._on_duplicate(found)

    def _remember(self, component: str, version: int) -> None:
        if component not in self._last and len(self._last) >= _REMEMBERED:
            forgotten = next((one for one in self._last if one not in self._state.own), None)
            if forgotten is not None:
                del self._last[forgotten]
                self._climbed.pop(forgotten, None)
        self._last[component] = version


_MOST = 1_024
"""Components that are watched."""
_LATE_MS = 1_000
"""How late a message may arrive, whatever the publishing period."""


class _Old(NamedTuple):
    """An outdated version, when it arrived, and when its node was last notified."""

    version: int
    heard_ms: float
    notified_ms: float


class OvertakenVersions:
    """Notifies nodes that publish outdated versions: at once if the version comes from its own
    node, otherwise when several such versions follow each other as time does. Late messages and old
    copies do not follow each other so.

    The notification is a pull of no parts: it names a version and requests nothing.
    """

    def __init__(self, state: GossipState) -> None:
        self._state = state
        self._late_ms = max(2 * state.settings.knowledge_ms, _LATE_MS)
        self._old: dict[str, _Old] = {}

    def receive_older(
        self, message: PublishedKnowledge, held: Reception, sender: Sender, now: Now
    ) -> None:
        """Handles a version older than the one held."""
        state, known = self._state, held.message
        if held.version - message.version <= self._late_ms or known is None:
            return
        if known.node != message.node or message.component in state.own:
            return  # of two nodes with one component neither is asked to outdo the other
        if is_far_ahead(held.version, now, state.settings.ahead_ms):
            return
        is_direct = not sender.to_all and message.address == sender.address
        if self._should_notify(message, now, is_direct=is_direct):
            state.counts["overtaken"] += 1
            self._notify(message, known, sender)

    def _notify(
        self, message: PublishedKnowledge, known: PublishedKnowledge, sender: Sender
    ) -> None:
        state, to = self._state, message.address
        component, version = known.component, known.version
        if state.radio and sender.to_all:
            state.enqueue(PullParts(component, version, ()), None)
        if state.ip and to is not None and to in (sender.address, known.address):
            # Never to an address that only a copy of something old names.
            state.enqueue(PullParts(component, version, (), state.address or to), to)

    def _should_notify(self, message: PublishedKnowledge, now: Now, *, is_direct: bool) -> bool:
        """Whether the sender is alive and was not notified lately."""
        before = self._old.pop(message.component, None)
        if len(self._old) >= _MOST:
            del self._old[next(iter(self._old))]
        notified_ms = before.notified_ms if before is not None else float("-inf")
        is_alive = is_direct or (before is not None and self._follows(message, before, now))
        is_notified = is_alive and now.steady_ms >= notified_ms + self._state.settings.answer_gap_ms
        notified_ms = now.steady_ms if is_notified else notified_ms
        self._old[message.component] = _Old(message.version, now.steady_ms, notified_ms)
        return is_notified

    def _follows(self, message: PublishedKnowledge, before: _Old, now: Now) -> bool:
        """Whether it is as much newer than the one before as it arrived later."""
        newer_ms, later_ms = message.version - before.version, now.steady_ms - before.heard_ms
        return newer_ms > 0 and abs(newer_ms - later_ms) <= _LATE_MS
