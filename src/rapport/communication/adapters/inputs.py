"""The input adapters of a node, added and removed while it runs, each in the name of the
application that added it. [CO-5, CO-12]

`Inputs` is the registry. `PushInput` runs an adapter that is notified by its medium; `PullInput`
one that has to look, in one task, so that there are never two pulls of one adapter at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from rapport.channel.channel import Channels, Subscription
from rapport.channel.dead_letters import Replay
from rapport.channel.validation import REQUEST as REQUEST_PREFIX
from rapport.communication.adapters import isolation
from rapport.communication.adapters.input_base import (
    INPUT,
    AcknowledgesPull,
    AdapterState,
    ClosableInput,
    InputAdapter,
    InputPullAdapter,
    InputPushAdapter,
    Publish,
    StatefulPull,
    Work,
    check_pull,
    check_push,
    message_of_letter,
    messages_of,
    name_fault,
)
from rapport.communication.adapters.isolation import (
    IsolatedCall,
    StepMonitor,
    end_isolated,
    run_within,
)
from rapport.communication.adapters.pull_schedule import (
    REQUEST,
    OpenRequests,
    PullPlan,
    PullRequest,
    PullSchedule,
    timeout_event,
)
from rapport.communication.arrival_checks import Trusted, never
from rapport.communication.arrivals import ArrivalResult
from rapport.communication.dead_letter_replay import DeadLetterReplays
from rapport.communication.message_plan import assume_listeners
from rapport.communication.notifications import control_log_event, control_message
from rapport.core.errors import (
    Conflict,
    DuplicateName,
    InvalidInput,
    RapportError,
    Unavailable,
    UnknownName,
)
from rapport.core.event import Event, StoredEvent
from rapport.core.message import Identifier, Message
from rapport.core.times import format_duration
from rapport.kernel.clock import Chance, Clock, Ids
from rapport.kernel.tasks import Tasks, ends_within, first_of, run_to_end
from rapport.kernel.telemetry import get_logger
from rapport.store.base import RecordStore

START_WITHIN_MS = STOP_WITHIN_MS = 30_000
_CUT_AGAIN_SECONDS = 0.2
PublishAs = Callable[[Sequence[Message]], Awaitable[Sequence[ArrivalResult]]]
"""Publishes in the name of one input."""


class InputCounts(msgspec.Struct):
    """Counters of one input since it was added."""

    received: int = 0
    refused: int = 0
    errors: int = 0
    pulls: int = 0
    trouble: str = ""
    """The last error; empty after a success."""

    def count(self, arrivals: Sequence[ArrivalResult]) -> None:
        refused = sum(not arrival.accepted for arrival in arrivals)
        self.received += len(arrivals) - refused
        self.refused += refused
        self.trouble = ""


class PushInput:
    """Runs one push adapter, and is the `Intake` that the adapter gets."""

    def __init__(
        self,
        name: str,
        adapter: InputPushAdapter,
        publish: PublishAs,
        state: AdapterState,
        clock: Clock,
        *,
        owner: str,
    ) -> None:
        self.name, self.adapter, self.owner, self.state = name, adapter, owner, state
        self.counts = InputCounts()
        self.steps = StepMonitor(f"input {name}", clock)
        self._publish, self._clock = publish, clock
        self._tasks = Tasks(clock)
        self._scheduled = 0
        self._working: dict[str, IsolatedCall[None]] = {}
        """Running work by the name of its task."""
        self._ended = self._is_ending = False

    async def start(self) -> None:
        """Starts the adapter. Raises its RapportError, or Unavailable for any other error; then
        nothing of it runs.
        """
        try:
            await run_within(
                self._clock, START_WITHIN_MS, partial(self.adapter.start, self), self.steps
            )
        except RapportError:
            await self._end_scheduled()
            raise
        except Exception as error:
            await self._end_scheduled()
            raise Unavailable(
                f"the input {self.name!r} could not start: {type(error).__name__}: {error}",
                code="input.cannot_start",
            ) from error

    async def stop(self) -> None:
        """Cancels scheduled work, then stops the adapter; its errors are logged. Work that swallows
        its cancellation is cut off after some seconds.
        """
        self._ended = True
        await self._end_scheduled()
        try:
            await run_within(self._clock, STOP_WITHIN_MS, self.adapter.stop, self.steps)
        except Exception as error:
            _log.error("input not stopped", input=self.name, error=repr(error))

    async def publish(self, messages: Sequence[Message]) -> Sequence[ArrivalResult]:
        if self._ended:
            raise Conflict(
                f"the input {self.name!r} was removed; nothing of this was taken",
                code="input.removed",
            )
        found = messages_of(messages, self.name, "publish")
        arrivals = await self._publish(found) if found else ()
        self.counts.count(arrivals)
        return arrivals

    __call__ = publish

    def schedule(self, work: Work, *, name: str = "") -> None:
        self._scheduled += 1
        task = f"input.{self.name}.{name or 'task'}.{self._scheduled}"
        self._tasks.start(task, partial(self._work_once, task, work))

    async def _work_once(self, task: str, work: Work) -> None:
        """Until the work ends or fails; the task is restarted then."""
        running = self._working[task] = IsolatedCall(work, self.steps)
        try:
            await running
        except Exception as error:
            self.counts.errors += 1
            self.counts.trouble = f"{type(error).__name__}: {error}"[:500]
            if not self._is_ending:  # work that fails when it is cancelled has ended as well
                raise
        finally:
            del self._working[task]

    async def _end_scheduled(self) -> None:
        self._is_ending = True
        ending = asyncio.ensure_future(self._tasks.stop())
        try:
            await asyncio.wait({ending}, timeout=isolation.PATIENCE_SECONDS)
        finally:
            while self._working and not ending.done():
                _log.error("input does not end its work; it is cut off", input=self.name)
                for running in list(self._working.values()):
                    running.cut()
                await asyncio.wait({ending}, timeout=_CUT_AGAIN_SECONDS)
        await ending


PULL_WITHIN_MS = 5 * 60_000
_LONGEST_SLEEP_MS = 30_000
"""The wall clock is read this often: a clock that was set delays no pull for long."""
_BATCH = 100


class PullInput:
    """Runs one pull adapter by its schedule and its requests."""

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
        has_listeners: Callable[[], bool] = assume_listeners,
    ) -> None:
        """`within_ms`: a longer pull is cancelled and counts as failed."""
        self._has_listeners = has_listeners
        self.name, self.adapter, self.owner = name, adapter, owner
        self.counts = InputCounts()
        self.steps = StepMonitor(f"input {name}", clock)
        self._plan, self._publish, self._state = plan, publish, state
        self._channels, self._clock, self._within_ms = channels, clock, within_ms
        self._schedule = PullSchedule(plan, clock.now_ms())
        self._subscription: Subscription | None = None
        self._is_open = False
        self._unpublished: list[Message] = []
        """Pulled, but not accepted because the engine was unavailable."""

    @property
    def channel(self) -> str:
        return f"{REQUEST_PREFIX}{self.name}"

    async def run(self) -> None:
        """Works until cancelled or until its plan ends; may be restarted after a failure."""
        await self._open()
        while not self._schedule.is_over:
            await self._read_requests()
            now_ms = self._clock.now_ms()
            due_ms = self._schedule.next_due_ms(self._requests.next_due_ms(now_ms), now_ms)
            if due_ms is not None and due_ms <= now_ms:
                await self.pull_once()
            elif late := self._requests.pop_expired(now_ms):
                await self._settle(late, now_ms)  # after failures there is no pull for a while
            else:
                await self._wait(due_ms)
        await self._report_deadline()

    def unpublished_ids(self) -> list[str]:
        """Ids of messages that were pulled and not published."""
        return [message.id for message in self._unpublished]

    async def pull_once(self) -> None:
        """Pulls once and settles the requests for it."""
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
            late = self._requests.pulled(began_ms, now_ms, found=found)
            self._schedule.pulled(began_ms, now_ms, found=found)
            self.counts.trouble = ""  # also when there was nothing to pull
        await self._settle(late, now_ms)

    # --- a pull ---

    async def _pull(self) -> bool:
        """Whether a message came in and was accepted.

        A removal cancels the adapter's own work only: messages that it returned may exist nowhere
        else, so they are published first.
        """
        if self._unpublished:
            return await run_to_end(self._publish_all(self._unpublished))
        self.counts.pulls += 1
        call: IsolatedCall[Any] = IsolatedCall(self.adapter.pull, self.steps)
        pulling = asyncio.ensure_future(call)
        publishing = asyncio.ensure_future(self._publish_pulled(pulling, call))
        try:
            return await asyncio.shield(publishing)
        except asyncio.CancelledError:
            await end_isolated(pulling, call)
            await asyncio.gather(publishing, return_exceptions=True)
            raise

    async def _publish_pulled(self, pulling: asyncio.Future[Any], call: IsolatedCall[Any]) -> bool:
        """Publishes the messages that the adapter returns within the limit."""
        await ends_within(pulling, self._clock, self._within_ms)
        await end_isolated(pulling, call)
        if pulling.cancelled():
            raise Unavailable(
                f"no answer within {format_duration(self._within_ms)}", code="input.no_answer"
            )
        messages = messages_of(pulling.result(), self.name, "pull")
        return bool(messages) and await self._publish_all(messages)

    async def _publish_all(self, messages: Sequence[Message]) -> bool:
        """Publishes messages; returns whether one was accepted."""
        self._unpublished = []
        try:
            arrivals = await self._publish(messages)
        except Unavailable:
            self._unpublished = list(messages)
            raise
        self.counts.count(arrivals)
        if isinstance(self.adapter, AcknowledgesPull):
            settle = partial(self.adapter.pulled, messages, arrivals)
            await run_within(self._clock, self._within_ms, settle, self.steps)
        return any(arrival.accepted for arrival in arrivals)

    def _note_failure(self, error: Exception, pause_ms: int) -> None:
        self.counts.errors += 1
        # An error once, when failures begin; the node's conditions report their end.
        log = _log.debug if self.counts.trouble else _log.error
        self.counts.trouble = f"{type(error).__name__}: {error}"[:500]
        log("pull failed", input=self.name, error=repr(error), again_in_ms=pause_ms)

    # --- requests ---

    async def _open(self) -> None:
        self._subscription = await self._channels.subscribe(self.channel, f"input.{self.name}")
        kept = self._subscription.state
        settled = msgspec.msgpack.decode(kept, type=list[int]) if kept else []
        self._requests = OpenRequests(self._subscription.position, settled)
        if not self._is_open and isinstance(self.adapter, StatefulPull):
            opening = partial(self.adapter.open, self._state)
            await run_within(self._clock, self._within_ms, opening, self.steps)
        self._is_open = True

    async def _read_requests(self) -> None:
        source = self._channels.channel(self.channel)
        while batch := await source.read_after(self._requests.read_until, limit=_BATCH):
            for stored in batch:
                self._requests.add(stored.position, _request_of(stored))

    async def _settle(self, late: Sequence[PullRequest], now_ms: int) -> None:
        """Reports requests that ended without a message, then commits the position. A report has
        the same id each time, so it counts once.
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
        until, settled = self._requests.progress()
        state = msgspec.msgpack.encode(settled) if settled else b""
        if until > self._subscription.position or state != self._subscription.state:
            await self._subscription.commit(until, state)

    async def _report_deadline(self) -> None:
        """Reports a deadline at which nothing had come to the owner."""
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
        """Callbacks get it from `control`, queries from `log`."""
        data = event.payload_as(dict[str, str])
        if event.subject:  # else the input has no owner to notify
            message = control_message(
                event.subject, data["refers_to"], "timeout", data["reason"], id=event.id
            )
            logged = control_log_event(
                message, has_listeners=self._has_listeners(), now_ms=event.time
            )
            await self._channels.channel("log").append([logged])
        await self._channels.channel("control").append([event])

    async def _wait(self, due_ms: int | None) -> None:
        requests = self._channels.channel(self.channel).wait_after(self._requests.read_until)
        if due_ms is None:
            await requests
            return
        expiry_ms = self._requests.next_expiry_ms()
        until_ms = due_ms if expiry_ms is None else min(due_ms, expiry_ms)
        left_ms = min(max(until_ms - self._clock.now_ms(), 0), _LONGEST_SLEEP_MS)
        await first_of(requests, self._clock.sleep(left_ms))


def _request_of(stored: StoredEvent) -> PullRequest | None:
    """The request in an event of the request channel; None for any other event."""
    if stored.event.type != REQUEST:
        return None
    try:
        request: PullRequest = stored.event.payload_as(PullRequest)
    except InvalidInput as error:
        _log.error("not a request", position=stored.position, error=error.message)
        return None
    return request


_log = get_logger(__name__)


class InputStatus(InputCounts, kw_only=True):
    name: str
    kind: Literal["push", "pull"]
    owner: str
    blocked: int = 0
    """Steps that blocked the event loop."""


class Inputs:
    """The inputs by name. The name also names the adapter's durable state, its request channel, and
    the header `adapter` of its messages.
    """

    def __init__(
        self,
        publish: Publish,
        channels: Channels,
        records: RecordStore,
        clock: Clock,
        *,
        has_listeners: Callable[[], bool] = assume_listeners,
    ) -> None:
        """`publish`: `Arrivals.publish`; `has_listeners`: whether callbacks are registered."""
        self._has_listeners = has_listeners
        self._publish, self._channels = publish, channels
        self._records, self._clock = records, clock
        self._new_id = Ids(clock, Chance.from_machine()).new
        self._inputs: dict[str, PushInput | PullInput] = {}
        self._tasks = Tasks(clock)

    async def add_push(
        self,
        adapter: InputPushAdapter,
        *,
        name: str = "",
        owner: str = "",
        trusted: Trusted = never,
    ) -> str:
        """Starts the adapter and returns its name, by default a unique one. Raises what the adapter
        raises, and InvalidInput (`input.bad_signature`) for methods that cannot be called; then it
        was not added.
        """
        name = self._free_name(name)
        check_push(adapter, name)
        entry = PushInput(
            name,
            adapter,
            self._publish_as(name, trusted),
            AdapterState(name, self._records),
            self._clock,
            owner=owner,
        )
        self._inputs[name] = entry
        try:
            await entry.start()
        except BaseException:
            self._inputs.pop(name, None)
            raise
        self._start_replays(name, trusted)
        return name

    async def add_pull(
        self,
        adapter: InputPullAdapter,
        interval_ms: int | None = None,
        delete_if_successful: bool = False,
        deadline: int | None = None,
        *,
        name: str = "",
        owner: str = "",
        trusted: Trusted = never,
        within_ms: int = PULL_WITHIN_MS,
    ) -> str:
        """Pulls every `interval_ms` from now on, at `deadline` (ms UTC) for the last time, and on
        request; returns its name.

        Raises InvalidInput for an interval that is not positive, and for methods that cannot be
        called (`input.bad_signature`).
        """
        plan = PullPlan(
            interval_ms=interval_ms,
            deadline_ms=deadline,
            delete_if_successful=delete_if_successful,
        )
        plan.check()
        name = self._free_name(name)
        check_pull(adapter, name)
        entry = PullInput(
            name,
            adapter,
            plan,
            self._publish_as(name, trusted),
            AdapterState(name, self._records),
            self._channels,
            self._clock,
            owner=owner,
            within_ms=within_ms,
            has_listeners=self._has_listeners,
        )
        self._inputs[name] = entry
        self._tasks.start(f"input.{name}", partial(self._run_pull, entry))
        self._start_replays(name, trusted)
        return name

    async def request(
        self,
        name: str,
        *,
        requester: Identifier,
        ttl_ms: int = 0,
        refers_to: str = "",
    ) -> str:
        """Requests a pull now and returns the request's id; durable. With a time to live pulls are
        repeated until a message comes; when it ends, the requester gets TIMEOUT in `control`.

        Raises UnknownName, or InvalidInput for a push adapter.
        """
        entry = self._inputs.get(name)
        if entry is None:
            raise UnknownName("input", name, list(self._inputs))
        if not isinstance(entry, PullInput):
            raise InvalidInput(
                f"the input {name!r} is notified by its medium and cannot be pulled",
                code="input.not_pulled",
            )
        if ttl_ms < 0:
            raise InvalidInput(
                f"a time to live of {ttl_ms} ms is not possible",
                code="input.bad_ttl",
                hint="0 = one pull",
            )
        now_ms = self._clock.now_ms()
        request = PullRequest(
            id=self._new_id(),
            requester=str(requester),
            asked_ms=now_ms,
            expires=now_ms + ttl_ms if ttl_ms else 0,
            refers_to=refers_to,
        )
        await self._channels.channel(entry.channel).append([request.to_event(name)])
        return request.id

    async def remove(self, name: str) -> InputAdapter | None:
        """Ends an input and returns its adapter, None when there is none of that name; nothing of
        it runs on return.
        """
        entry = self._inputs.pop(name, None)
        if entry is None:
            return None
        await self._tasks.stop(_letters(name))
        if isinstance(entry, PushInput):
            await entry.stop()
        else:
            await self._tasks.stop(f"input.{name}")
            await self._close(entry)
        return entry.adapter

    async def close(self) -> None:
        """Removes all, the newest first."""
        for name in reversed(list(self._inputs)):
            await self.remove(name)

    def status(self) -> list[InputStatus]:
        """All inputs, by name."""
        return [_status(self._inputs[name]) for name in sorted(self._inputs)]

    # --- parts ---

    async def _run_pull(self, entry: PullInput) -> None:
        await entry.run()
        if self._inputs.get(entry.name) is entry:
            del self._inputs[entry.name]
            await self._tasks.stop(_letters(entry.name))
            await self._close(entry)

    async def _close(self, entry: PullInput) -> None:
        if left := entry.unpublished_ids():
            _log.error(
                "pulled but not published", input=entry.name, messages=left[:20], count=len(left)
            )
        if isinstance(entry.adapter, ClosableInput):
            try:
                await run_within(self._clock, STOP_WITHIN_MS, entry.adapter.close, entry.steps)
            except Exception as error:
                _log.error("input not closed", input=entry.name, error=repr(error))

    # --- replayed dead letters ---

    def _start_replays(self, name: str, trusted: Trusted) -> None:
        returned = DeadLetterReplays(self._channels, self._records, f"input.{name}", (INPUT,))
        publish = self._publish_as(name, trusted)
        adapter = self._inputs[name].adapter
        work = partial(self._run_replays, returned, publish, adapter)
        self._tasks.start(_letters(name), work)

    async def _run_replays(
        self, returned: DeadLetterReplays, publish: PublishAs, adapter: InputAdapter
    ) -> None:
        await returned.open()
        while True:
            for replay, stored in await returned.waiting():
                await self._replay(returned, publish, adapter, replay, stored)
            await returned.wait()

    async def _replay(
        self,
        returned: DeadLetterReplays,
        publish: PublishAs,
        adapter: InputAdapter,
        replay: Replay,
        stored: StoredEvent | None,
    ) -> None:
        """Publishes a refused or unreadable input once more. After a crash before the note it comes
        again under the same id, and is in `input` once.
        """
        error = ""
        try:
            message = await message_of_letter(stored.event if stored else None, adapter)
            if message is not None:
                (arrival,) = await publish([message])
                error = "" if arrival.accepted else arrival.why
        except InvalidInput as fault:
            error = fault.message
        except Unavailable:
            raise  # tried again by the task's supervisor
        except Exception as fault:  # code of an adapter
            _log.error("dead letter not read again", letter=replay.letter, error=repr(fault))
            error = f"{type(fault).__name__}: {fault}"
        await returned.finish(replay, error, self._clock.now_ms())

    def _publish_as(self, name: str, trusted: Trusted) -> PublishAs:
        return partial(self._publish, adapter=name, trusted=trusted)

    def _free_name(self, name: str) -> str:
        name = name or f"input-{self._new_id()}"
        if fault := name_fault(name):
            raise fault
        if name in self._inputs:
            raise DuplicateName(
                f"there is an input named {name!r} already", code="input.registered"
            )
        return name


def _letters(name: str) -> str:
    return f"input.{name}.letters"


def _status(entry: PushInput | PullInput) -> InputStatus:
    counts = msgspec.structs.asdict(entry.counts)
    # An adapter that keeps a connection knows more than its last message shows.
    counts["trouble"] = counts["trouble"] or getattr(entry.adapter, "trouble", "")
    return InputStatus(
        name=entry.name,
        kind="push" if isinstance(entry, PushInput) else "pull",
        owner=entry.owner,
        blocked=entry.steps.blocked,
        **counts,
    )
