"""The inbox: a message that stays in the ledger until its reader answers through the door. [CO-16]

Nothing is sent anywhere, so it works without a network; the web page shows `Ledger.inbox(peer)`.

Open pages of people as a medium: `ws:` reaches whoever has the inbox open right now. [CO-16]

Taken by an open page = handed; the page says that it shows the message = confirmed. The web room
tells `OpenPages` which pages there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import msgspec

from rapport.channel.push.signing import signature as signature
from rapport.communication.adapters.base import (
    Confirmed,
    Delivery,
    Failed,
    Outcome,
    Sent,
    adapter,
)
from rapport.core.times import format_duration
from rapport.kernel.clock import Clock
from rapport.kernel.fields import Fields
from rapport.kernel.tasks import first_of


@adapter("inbox")
class InboxAdapter:
    """Takes every delivery: being in the log is being in the inbox."""

    name = "inbox"
    repeatable = True
    """Nothing leaves the node."""
    keeps_order = True

    async def send(self, delivery: Delivery) -> Outcome:
        """Always taken; whether it was read is not known."""
        return Sent(delivery.key)

    async def send_many(self, deliveries: Sequence[Delivery]) -> list[Outcome]:
        """All taken, as by `send`."""
        return [Sent(delivery.key) for delivery in deliveries]

    async def close(self) -> None:
        """Nothing to let go of."""


class OpenPage(Protocol):
    """A page that a person has open."""

    def take(self, delivery: Delivery) -> bool:
        """Takes the delivery to show it soon; False when the page cannot take any."""


class OpenPages:
    """Who has a page open now, and what is being shown. All calls belong to one event loop."""

    def __init__(self) -> None:
        self._pages: dict[str, list[OpenPage]] = {}
        self._awaited: dict[tuple[str, str], asyncio.Event] = {}

    def enter(self, peer: str, page: OpenPage) -> None:
        """A page was opened."""
        self._pages.setdefault(peer, []).append(page)

    def leave(self, peer: str, page: OpenPage) -> None:
        """It was closed."""
        left = [one for one in self._pages.get(peer, []) if one is not page]
        if left:
            self._pages[peer] = left
        else:
            self._pages.pop(peer, None)

    def is_open(self, peer: str) -> bool:
        """Whether the person has a page open."""
        return peer in self._pages

    def hand_over(self, delivery: Delivery) -> asyncio.Event | None:
        """Gives a delivery to all open pages of its peer; set once one of them shows it. None when
        none took it. Call `forget` when nobody waits any more.
        """
        taken = [page.take(delivery) for page in self._pages.get(delivery.peer, [])]
        if not any(taken):
            return None
        return self._awaited.setdefault((delivery.peer, delivery.key), asyncio.Event())

    def shown(self, peer: str, key: str) -> None:
        """A page of the peer says that it shows the delivery of that key; others are unmoved."""
        awaited = self._awaited.get((peer, key))
        if awaited is not None:
            awaited.set()

    def forget(self, delivery: Delivery) -> None:
        """Nobody waits for the delivery any more."""
        self._awaited.pop((delivery.peer, delivery.key), None)


@adapter("ws")
class PageAdapter:
    """Shows deliveries on the peer's open pages; the address is `ws:`, stateless."""

    name = "ws"
    repeatable = True
    """A page that shows a key already does not show it again."""

    def __init__(self, pages: OpenPages, settings: PageSettings, clock: Clock) -> None:
        self._pages, self._settings, self._clock = pages, settings, clock

    async def send(self, delivery: Delivery) -> Outcome:
        """Shown = confirmed, taken = sent; while no page is open another address is better."""
        shown = self._pages.hand_over(delivery)
        if shown is None:
            return Failed("no page of this person is open", retry=True, unavailable=True)
        try:
            await first_of(shown.wait(), self._clock.sleep(self._settings.wait_ms))
        finally:
            self._pages.forget(delivery)
        return Confirmed(delivery.key) if shown.is_set() else Sent(delivery.key)

    async def close(self) -> None:
        """The pages are the web room's."""


PAGE_KEYS = ("wait",)


LONGEST_WAIT_MS = 10_000
"""A delivery that takes 15 s counts as failed."""


class PageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The `[adapters.ws]` table."""

    wait_ms: int = 5_000
    """How long an open page may take to say that it shows a message; longer means more often
    "confirmed" than "handed", and later news of a page that is there but asleep."""


def read_page(table: Fields) -> PageSettings:
    """What `[adapters.ws]` says."""
    wait_ms = table.duration_ms("wait", PageSettings().wait_ms, least=1)
    if wait_ms > LONGEST_WAIT_MS:
        message = f"'wait' must be at most {format_duration(LONGEST_WAIT_MS)}"
        table.fault("wait", "site.out_of_range", message, hint='write wait = "5s"')
    return PageSettings(wait_ms=wait_ms)
