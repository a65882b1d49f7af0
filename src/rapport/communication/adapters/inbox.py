"""The inbox and open pages as media: `inbox:` keeps a message in the ledger until its reader
answers, `ws:` shows it on the inbox pages that a person has open now. [CO-16, UX-2]

```toml
[adapters.ws]
wait = "5s"                            # for an open page to confirm that it shows the message
```

The inbox sends nothing anywhere, so it works without a network; the web page shows
`Ledger.inbox(peer)`. A delivery that an open page took is sent; one that it shows is confirmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

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
from rapport.kernel.config_fields import Fields
from rapport.kernel.tasks import first_of

PAGE_KEYS = ("wait",)
LONGEST_WAIT_MS = 10_000
"""Deliveries fail after 15 s."""


class PageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The `[adapters.ws]` table."""

    wait_ms: int = 5_000
    """How long to wait for a page to confirm that it shows a message; longer means more
    confirmations, and later news of a page that is open but asleep.
    """


def read_page(table: Fields, _directory: Path) -> PageSettings:
    """The `[adapters.ws]` table."""
    wait_ms = table.duration_ms("wait", PageSettings().wait_ms, least=1)
    if wait_ms > LONGEST_WAIT_MS:
        message = f"'wait' must be at most {format_duration(LONGEST_WAIT_MS)}"
        table.fault("wait", "site.out_of_range", message, hint='write wait = "5s"')
    return PageSettings(wait_ms=wait_ms)


@adapter("inbox")
class InboxAdapter:
    """Accepts every delivery: a message in the log is in the inbox."""

    name = "inbox"
    repeatable = True
    keeps_order = True

    async def send(self, delivery: Delivery) -> Outcome:
        return Sent(delivery.key)

    async def send_many(self, deliveries: Sequence[Delivery]) -> list[Outcome]:
        return [Sent(delivery.key) for delivery in deliveries]

    async def close(self) -> None: ...


class OpenPage(Protocol):
    """A page that a person has open."""

    def take(self, delivery: Delivery) -> bool:
        """Accepts the delivery to show it soon; False when the page cannot."""


class OpenPages:
    """The open pages by peer, and the deliveries that wait to be shown. All calls belong to one
    event loop.
    """

    def __init__(self) -> None:
        self._pages: dict[str, list[OpenPage]] = {}
        self._awaited: dict[tuple[str, str], asyncio.Event] = {}

    def enter(self, peer: str, page: OpenPage) -> None:
        self._pages.setdefault(peer, []).append(page)

    def leave(self, peer: str, page: OpenPage) -> None:
        left = [one for one in self._pages.get(peer, []) if one is not page]
        if left:
            self._pages[peer] = left
        else:
            self._pages.pop(peer, None)

    def is_open(self, peer: str) -> bool:
        return peer in self._pages

    def hand_over(self, delivery: Delivery) -> asyncio.Event | None:
        """Passes a delivery to all open pages of its peer; the event is set once one of them shows
        it. None when none accepted it. Call `forget` afterwards.
        """
        taken = [page.take(delivery) for page in self._pages.get(delivery.peer, [])]
        if not any(taken):
            return None
        return self._awaited.setdefault((delivery.peer, delivery.key), asyncio.Event())

    def shown(self, peer: str, key: str) -> None:
        """A page of the peer confirms that it shows the delivery of that key."""
        awaited = self._awaited.get((peer, key))
        if awaited is not None:
            awaited.set()

    def forget(self, delivery: Delivery) -> None:
        """Ends the wait for a delivery."""
        self._awaited.pop((delivery.peer, delivery.key), None)


@adapter("ws")
class PageAdapter:
    """Shows deliveries on the peer's open pages; the address is `ws:`, stateless."""

    name = "ws"
    repeatable = True
    """A page does not show the same key twice."""

    def __init__(self, pages: OpenPages, settings: PageSettings, clock: Clock) -> None:
        self._pages, self._settings, self._clock = pages, settings, clock

    async def send(self, delivery: Delivery) -> Outcome:
        """Shown = confirmed, accepted = sent; unavailable while no page is open."""
        shown = self._pages.hand_over(delivery)
        if shown is None:
            return Failed("no page of this person is open", retry=True, unavailable=True)
        try:
            await first_of(shown.wait(), self._clock.sleep(self._settings.wait_ms))
        finally:
            self._pages.forget(delivery)
        return Confirmed(delivery.key) if shown.is_set() else Sent(delivery.key)

    async def close(self) -> None:
        """The pages belong to the web package."""
