"""Routing rules kept in the record store: durable, and in force when the call returns. [CO-6]

What the site file says comes first and is not kept: the file is its place. Several engines may
share one record store: what one of them changes is in force on the others within a second.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.aside import run_aside
from rapport.communication.services.routing import Routing, RoutingRule, named
from rapport.communication.services.told_changes import ToldChanges
from rapport.core.errors import Conflict
from rapport.core.event import Event
from rapport.core.message import Identifier, Message
from rapport.kernel.clock import Clock
from rapport.store.base import Delete, Put, RecordStore

CHANGED = "rapport.routing.changed"
SOURCE = "routing"
TABLE = "communication.routing"
_LOOK_EVERY_NS = 1_000_000_000


class RoutingRecords:
    """The rules in force on this node. Reading is for any thread, changing for one event loop."""

    def __init__(
        self,
        channels: Channels,
        records: RecordStore,
        clock: Clock,
        *,
        of_site: Iterable[RoutingRule] = (),
    ) -> None:
        self._clock = clock
        self._of_site = {rule.id: rule for rule in map(named, of_site)}
        self._routing = Routing(self._of_site.values())
        self._kept = ToldChanges(channels, records, TABLE)
        self._turn = asyncio.Lock()
        self._guard = threading.Lock()
        """Held while rules are loaded: what is added meanwhile is added to those."""
        self._looked_ns = clock.steady_ns()

    async def open(self) -> None:
        """Loads the kept rules; from then on they are in force."""
        await run_aside(self._load)
        await self._kept.tell_again()

    def recipients(self, message: Message) -> tuple[Identifier, ...]:
        """See Routing. Now and then it looks for what another engine changed, which blocks: for the
        engine's worker thread.
        """
        now_ns = self._clock.steady_ns()
        if now_ns - self._looked_ns >= _LOOK_EVERY_NS:
            self._looked_ns = now_ns
            self.refresh()
        return self._routing.recipients(message)

    def rules(self) -> list[RoutingRule]:
        """Every rule in force, in the order in which they count."""
        return self._routing.rules()

    def is_of_site(self, rule_id: str) -> bool:
        """Whether the site file says this rule."""
        return rule_id in self._of_site

    def refresh(self) -> bool:
        """Takes in what another engine changed; True when there was something. One look at the
        records; blocks: call it from a worker thread.
        """
        if not self._kept.has_changed():
            return False
        self._load()
        return True

    async def add(self, rule: RoutingRule, *, by: str = "") -> str:
        """Puts a rule in force for good and returns its id; durable when it returns.

        Raises as Routing.add does.
        """
        rule = named(rule)
        async with self._turn:
            await run_aside(self.refresh)
            if self._routing.get(rule.id) is not None:
                return self._routing.add(rule)
            key, event = self._kept.key(rule.id), self._event("added", rule, by)
            await self._kept.keep(Put(TABLE, key, msgspec.msgpack.encode(rule)), event)
            with self._guard:
                self._routing.add(rule)
            await self._kept.tell(event)
        return rule.id

    async def remove(self, rule_id: str, *, by: str = "") -> RoutingRule | None:
        """Takes a rule out of force for good and returns it; None when there is none of that id.

        Raises Conflict for a rule of the site file: taken out here it would be back after the next
        start.
        """
        async with self._turn:
            await run_aside(self.refresh)
            if self.is_of_site(rule_id):
                raise Conflict(
                    f"the routing rule {rule_id!r} is one of the site file",
                    code="routing.of_site",
                    hint="take it out of [[routing]] in site.toml and start the node again",
                )
            rule = self._routing.get(rule_id)
            if rule is not None:
                event = self._event("removed", rule, by)
                await self._kept.keep(Delete(TABLE, self._kept.key(rule_id)), event)
                with self._guard:
                    self._routing.remove(rule_id)
                await self._kept.tell(event)
            return rule

    def _event(self, what: str, rule: RoutingRule, by: str) -> Event:
        data = {"change": what, "rule": shown_rule(rule), "by": by}
        now_ms = self._clock.now_ms()
        return self._kept.event(
            source=SOURCE, type=CHANGED, subject=rule.id, time=now_ms, data=data
        )

    def _load(self) -> None:
        with self._guard:
            rules = dict(self._of_site)
            for name, raw in self._kept.entries():
                rules.setdefault(name, msgspec.msgpack.decode(raw, type=RoutingRule))
            self._routing = Routing(rules.values())


def shown_rule(rule: RoutingRule) -> dict[str, object]:
    """The rule as JSON shows it: names as text, what is empty left out."""
    shown: dict[str, object] = {"id": rule.id, "type": rule.type, "subtype": rule.subtype}
    shown |= {"receiver": str(rule.receiver or ""), "sender": str(rule.sender or "")}
    return {key: value for key, value in shown.items() if value} | {
        "to": [str(each) for each in rule.to]
    }
