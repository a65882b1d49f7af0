"""A subscription: laid at the broker of choice, renewed, and laid anew when it changes. [CX-3]"""

from __future__ import annotations

import asyncio
from collections import deque

from rapport.context.clients.link import BrokerLink
from rapport.context.faults import ContextNotFound
from rapport.context.messages import (
    Message,
    Notice,
    Noticed,
    Question,
    Unwatch,
    Watch,
    is_late,
)
from rapport.core.context_record import ContextRecord
from rapport.core.errors import Conflict, RapportError, Unavailable
from rapport.kernel.tasks import Tasks, first_of
from rapport.transport.base import Address

_AGAIN_MS = 500


class ContextSubscription:
    """Records as a broker notifies of them. Each is acknowledged; what comes twice is taken once;
    what waited past its validity is dropped.
    """

    def __init__(self, link: BrokerLink, question: Question, every_ms: int) -> None:
        self._link, self._question, self._every_ms = link, question, every_ms
        self._id = link.new_id()
        self._records: deque[ContextRecord] = deque()
        self._there = asyncio.Event()
        self._change = asyncio.Event()
        self._latest: dict[str, ContextRecord] = {}
        self._numbers: dict[Address, int] = {}
        self._failure: RapportError | None = None
        self._tasks = Tasks(link.clock)
        self.skipped = 0
        """Records that a slow reader missed: newer ones pushed them out."""

    def start(self) -> None:
        """Begins to listen."""
        self._link.on_notice[self._id] = self._take
        self._link.on_change.append(self._moved)
        self._tasks.start("context subscription", self._keep)

    async def next(self) -> ContextRecord:
        """The next record that is still valid; raises what ended the subscription."""
        while True:
            while self._records:
                record = self._records.popleft()
                if record.valid_until > self._link.clock.now_ms():
                    return record
            if self._failure is not None:
                raise self._failure
            self._there.clear()
            await self._there.wait()

    async def close(self) -> None:
        """Ends it, here and at the broker; a second call is no error."""
        if self._link.on_notice.pop(self._id, None) is None:
            return
        self._link.on_change.remove(self._moved)
        if self._link.broker is not None:
            self._link.post(Unwatch(self._id), self._link.broker)
        self._end(Conflict("the subscription is closed", code="context.closed"))
        await self._tasks.stop()

    async def _keep(self) -> None:
        """Lays and renews it until it is refused."""
        lease_ms = self._link.settings.lease_ms

        def make(id: int, _left_ms: int) -> Message:
            return Watch(id, self._question, lease_ms, self._every_ms)

        what = f"{self._question.entity} {self._question.scope}"
        while True:
            self._change.clear()
            pause_ms = lease_ms / 3
            try:
                await self._link.call(
                    make, within_ms=lease_ms // 3, what=what, id=self._id, received_ends=True
                )
            except (Unavailable, ContextNotFound):
                pause_ms = _AGAIN_MS  # the network may have it later
            except RapportError as error:
                self._end(error)
                return
            await first_of(self._link.clock.sleep(pause_ms), self._change.wait())

    def _moved(self, _broker: Address, before: Address | None) -> None:
        self._change.set()
        if before is not None:
            self._link.post(Unwatch(self._id), before)

    def _take(self, notice: Notice, sender: Address) -> None:
        self._link.post(Noticed(self._id, notice.number), sender)
        if self._is_known(notice, sender):
            return
        if len(self._records) >= self._link.settings.waiting_notices:
            self._records.popleft()
            self.skipped += 1
        self._records.append(notice.record)
        self._there.set()

    def _is_known(self, notice: Notice, sender: Address) -> bool:
        """Repeated; or, on change, told by another broker before."""
        record, last = notice.record, self._numbers.get(sender)
        comes_late = last is not None and is_late(notice.number, last)
        if not comes_late:
            self._numbers[sender] = notice.number
        if self._every_ms:
            return comes_late
        latest = self._latest.get(record.provider)
        if latest is not None:
            is_older = record.rank() < latest.rank()
            # What began earlier counts once what began later is over, if it was told after it.
            still_counts = latest.valid_until > self._link.clock.now_ms()
            if record == latest or (is_older and (still_counts or comes_late)):
                return True
        self._latest[record.provider] = record
        return False

    def _end(self, failure: RapportError) -> None:
        self._failure = self._failure or failure
        self._there.set()
