"""Runs one pull adapter: waits until a look is due, pulls, publishes, settles requests. [CO-5]

One task does it all, so there are never two pulls of one adapter at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from rapport.channel.channel import Channels, Subscription
from rapport.channel.reserved import REQUEST as REQUEST_PREFIX
from rapport.communication.adapters.contained import Contained, end_contained
from rapport.communication.adapters.incoming.input_base import (
    AdapterState,
    InputPullAdapter,
    NotesPulled,
    RemembersPlace,
    messages_of,
)
from rapport.communication.adapters.incoming.pull_schedule import PullPlan, PullSchedule
from rapport.communication.adapters.incoming.push_inputs import (
    InputCounts,
    PublishAs,
    within,
)
from rapport.communication.adapters.incoming.requests import (
    REQUEST,
    OpenRequests,
    PullRequest,
    timeout_event,
)
from rapport.communication.adapters.steps_watched import StepsWatched
from rapport.communication.blocking import run_to_end
from rapport.communication.message_plan import assume_listeners
from rapport.communication.sender_notifications import control_log_event, control_message
from rapport.core.errors import InvalidInput, Unavailable
from rapport.core.event import Event, StoredEvent
from rapport.core.message import Message
from rapport.core.times import format_duration
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import end_firmly, first_of
from rapport.kernel.telemetry import get_logger

PULL_WITHIN_MS = 5 * 60_000
_LONGEST_SLEEP_MS = 30_000
"""The wall clock is looked at this often: one that was set delays no look for long."""
_BATCH = 100
_log = get_logger(__name__)


class PullInput:
    """Holds the adapter, its schedule and the requests it was asked for."""

    def __init__(
        self,
        name: str,
        adapter: InputPullAdapter,
        plan: PullPlan,
        publish: PublishAs,
        state: AdapterState,
        channels: Channels,
        clock: Clock,
        *,
        owner: str,
        within_ms: int = PULL_WITHIN_MS,
        is_heard: Callable[[], bool] = assume_listeners,
    ) -> None:
        """`within_ms`: a pull that takes longer is cancelled and counts as failed."""
        self._is_heard = is_heard
        self.name, self.adapter, self.owner = name, adapter, owner
        self.counts = InputCounts()
        self.steps = StepsWatched(f"input {name}", clock)
        self._plan, self._publish, self._state = plan, publish, state
        self._channels, self._clock, self._within_ms = channels, clock, within_ms
        self._schedule = PullSchedule(plan, clock.now_ms())
        self._subscription: Subscription | None = None
        self._is_open = False
        self._unpublished: list[Message] = []
        """Pulled, but the engine could not take them yet."""

    @property
    def channel(self) -> str:
        """Where it is asked to look."""
        return f"{REQUEST_PREFIX}{self.name}"

    async def run(self) -> None:
        """Works until cancelled or until its plan is over; may be started again after a failure."""
        await self._open()
        while not self._schedule.is_over:
            await self._read_requests()
            now_ms = self._clock.now_ms()
            due_ms = self._schedule.next_due_ms(self._requests.next_due_ms(now_ms), now_ms)
            if due_ms is not None and due_ms <= now_ms:
                await self.look()
            elif late := self._requests.over(now_ms):
                await self._settle(late, now_ms)  # after failures there is no look for a while
            else:
                await self._wait(due_ms)
        await self._tell_owner()

    def left_over(self) -> list[str]:
        """Ids of what was pulled and not taken by the engine, which was unavailable."""
        return [message.id for message in self._unpublished]

    async def look(self) -> None:
        """Pulls once and settles what was waiting for that."""
        began_ms = self._clock.now_ms()
        try:
            found = await self._pull()
        except Exception as error:
            now_ms = self._clock.now_ms()
            late = self._requests.failed(now_ms)
            pause_ms = self._schedule.failed(began_ms, now_ms, kept=bool(self._unpublished))
            self._note_failure(error, pause_ms)
        else:
            now_ms = self._clock.now_ms()
            late = self._requests.looked(began_ms, now_ms, found=found)
            self._schedule.looked(began_ms, now_ms, found=found)
        await self._settle(late, now_ms)

    # --- a pull ---

    async def _pull(self) -> bool:
        """Whether something came in and was accepted.

        Being removed cancels the adapter's own work only: what it has given may be nowhere else,
        so that is handed in first.
        """
        if self._unpublished:
            return await run_to_end(self._hand_in(self._unpublished))
        self.counts.pulls += 1
        self.counts.last_pull_ms = self._clock.now_ms()
        held: Contained[Any] = Contained(self.adapter.pull, self.steps)
        pulling = asyncio.ensure_future(held)
        taking = asyncio.ensure_future(self._take(pulling, held))
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            await end_contained(pulling, held)
            await asyncio.gather(taking, return_exceptions=True)
            raise

    async def _take(self, pulling: asyncio.Future[Any], held: Contained[Any]) -> bool:
        """Waits for what the adapter gives, not for ever, and hands it in."""
        deadline: asyncio.Future[Any] = asyncio.ensure_future(self._clock.sleep(self._within_ms))
        waits: set[asyncio.Future[Any]] = {pulling, deadline}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        await end_firmly(deadline)
        await end_contained(pulling, held)
        if pulling.cancelled():
            raise Unavailable(
                f"no answer within {format_duration(self._within_ms)}", code="input.no_answer"
            )
        messages = messages_of(pulling.result(), self.name, "pull")
        return bool(messages) and await self._hand_in(messages)

    async def _hand_in(self, messages: Sequence[Message]) -> bool:
        """Whether one of them was accepted."""
        self._unpublished = []
        try:
            arrivals = await self._publish(messages)
        except Unavailable:
            self._unpublished = list(messages)
            raise
        self.counts.take(arrivals)
        if isinstance(self.adapter, NotesPulled):
            settle = partial(self.adapter.pulled, messages, arrivals)
            await within(self._clock, self._within_ms, settle, self.steps)
        return any(arrival.accepted for arrival in arrivals)

    def _note_failure(self, error: Exception, pause_ms: int) -> None:
        self.counts.errors += 1
        # Once when it begins: the node's conditions say when it ends, and count what is between.
        tell = _log.debug if self.counts.trouble else _log.error
        self.counts.trouble = f"{type(error).__name__}: {error}"[:500]
        tell("pull failed", input=self.name, error=repr(error), again_in_ms=pause_ms)

    # --- requests ---

    async def _open(self) -> None:
        self._subscription = await self._channels.subscribe(self.channel, f"input.{self.name}")
        kept = self._subscription.state
        settled = msgspec.msgpack.decode(kept, type=list[int]) if kept else []
        self._requests = OpenRequests(self._subscription.position, settled)
        if not self._is_open and isinstance(self.adapter, RemembersPlace):
            opening = partial(self.adapter.open, self._state)
            await within(self._clock, self._within_ms, opening, self.steps)
        self._is_open = True

    async def _read_requests(self) -> None:
        source = self._channels.channel(self.channel)
        while batch := await source.read_after(self._requests.read_until, limit=_BATCH):
            for stored in batch:
                self._requests.take(stored.position, _request_of(stored))

    async def _settle(self, late: Sequence[PullRequest], now_ms: int) -> None:
        """Tells who waited in vain, then moves the place on: told at least once, and once only, as
        the event's id is the same.
        """
        for request in late:
            event = timeout_event(
                self.name,
                request.requester,
                request.refers_to or request.id,
                cause=request.id,
                now_ms=now_ms,
            )
            await self._report_timeout(event)
        assert self._subscription is not None, "_open comes first"
        until, settled = self._requests.place()
        state = msgspec.msgpack.encode(settled) if settled else b""
        if until > self._subscription.position or state != self._subscription.state:
            await self._subscription.commit(until, state)

    async def _tell_owner(self) -> None:
        """A deadline at which nothing had come is a time-out for who set it."""
        deadline_ms = self._plan.deadline_ms
        if deadline_ms is None or self._schedule.found_some:
            return
        event = timeout_event(
            self.name,
            self.owner,
            self.name,
            cause=f"{self.name}@{deadline_ms}",
            now_ms=self._clock.now_ms(),
        )
        await self._report_timeout(event)

    async def _report_timeout(self, event: Event) -> None:
        """Callbacks are told by `control`; `log` has it for queries."""
        data = event.payload_as(dict[str, str])
        if event.subject:  # an input without an owner has nobody to tell
            told = control_message(
                event.subject, data["refers_to"], "timeout", data["reason"], id=event.id
            )
            logged = control_log_event(told, has_listeners=self._is_heard(), now_ms=event.time)
            await self._channels.channel("log").append([logged])
        await self._channels.channel("control").append([event])

    async def _wait(self, due_ms: int | None) -> None:
        requests = self._channels.channel(self.channel).wait_after(self._requests.read_until)
        if due_ms is None:
            await requests
            return
        over_ms = self._requests.next_over_ms()
        until_ms = due_ms if over_ms is None else min(due_ms, over_ms)
        left_ms = min(max(until_ms - self._clock.now_ms(), 0), _LONGEST_SLEEP_MS)
        await first_of(requests, self._clock.sleep(left_ms))


def _request_of(stored: StoredEvent) -> PullRequest | None:
    """None for what is no request: nobody to tell, nothing to look for."""
    if stored.event.type != REQUEST:
        return None
    try:
        request: PullRequest = stored.event.payload_as(PullRequest)
    except InvalidInput as error:
        _log.error("not a request", position=stored.position, error=error.message)
        return None
    return request
