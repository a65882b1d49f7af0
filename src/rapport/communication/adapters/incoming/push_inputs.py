"""Runs one push adapter: its way in, its tasks under care, its end. [CO-5]"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from rapport.communication.adapters import contained
from rapport.communication.adapters.contained import IsolatedCall, end_isolated
from rapport.communication.adapters.incoming.input_base import (
    AdapterState,
    Arrival,
    InputPushAdapter,
    Work,
    messages_of,
)
from rapport.communication.adapters.steps_watched import StepMonitor
from rapport.core.errors import Conflict, RapportError, Unavailable
from rapport.core.message import Message
from rapport.core.times import format_duration
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import Tasks, end_firmly
from rapport.kernel.telemetry import get_logger

START_WITHIN_MS = STOP_WITHIN_MS = 30_000
_CUT_AGAIN_SECONDS = 0.2
PublishAs = Callable[[Sequence[Message]], Awaitable[Sequence[Arrival]]]
"""Publishes in the name of one input."""
_log = get_logger(__name__)


class InputCounts(msgspec.Struct):
    """What one input has done since it was added."""

    received: int = 0
    refused: int = 0
    errors: int = 0
    pulls: int = 0
    last_pull_ms: int = 0
    trouble: str = ""
    """What went wrong last; empty while all is well."""

    def take(self, arrivals: Sequence[Arrival]) -> None:
        """Counts what was published."""
        refused = sum(not arrival.accepted for arrival in arrivals)
        self.received += len(arrivals) - refused
        self.refused += refused
        self.trouble = ""


class PushInput:
    """See Intake: what the adapter is given, and how it is ended."""

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
        """The scheduled work that runs now, by the name of its task."""
        self._ended = self._is_ending = False

    async def start(self) -> None:
        """Starts the adapter. Raises what it raises, or Unavailable when that is no error of ours;
        then nothing of it runs.
        """
        try:
            await self._within(START_WITHIN_MS, partial(self.adapter.start, self))
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
        """Cancels scheduled work, then stops the adapter; what that raises is logged. Work that
        swallows its cancellation is cut off after some seconds.
        """
        self._ended = True
        await self._end_scheduled()
        try:
            await self._within(STOP_WITHIN_MS, self.adapter.stop)
        except Exception as error:
            _log.error("input not stopped", input=self.name, error=repr(error))

    async def publish(self, messages: Sequence[Message]) -> Sequence[Arrival]:
        """See Intake."""
        if self._ended:
            raise Conflict(
                f"the input {self.name!r} was removed; nothing of this was taken",
                code="input.removed",
            )
        arrivals = await self._publish(messages_of(messages, self.name, "publish"))
        self.counts.take(arrivals)
        return arrivals

    __call__ = publish

    def schedule(self, work: Work, *, name: str = "") -> None:
        """See Intake."""
        self._scheduled += 1
        task = f"input.{self.name}.{name or 'task'}.{self._scheduled}"
        self._tasks.start(task, partial(self._work_once, task, work))

    def unwell(self) -> list[str]:
        """Scheduled work that keeps failing."""
        return self._tasks.unwell()

    async def _work_once(self, task: str, work: Work) -> None:
        """Until the work ends or fails; whoever cares for the task calls it again then."""
        running = self._working[task] = IsolatedCall(work, self.steps)
        try:
            await running
        except Exception as error:
            self.counts.errors += 1
            self.counts.trouble = f"{type(error).__name__}: {error}"[:500]
            if not self._is_ending:  # what fails instead of being cancelled has ended as well
                raise
        finally:
            del self._working[task]

    async def _within(self, limit_ms: int, work: Work) -> None:
        await within(self._clock, limit_ms, work, self.steps)

    async def _end_scheduled(self) -> None:
        self._is_ending = True
        ending = asyncio.ensure_future(self._tasks.stop())
        try:
            await asyncio.wait({ending}, timeout=contained.PATIENCE_SECONDS)
        finally:
            while self._working and not ending.done():
                _log.error("input does not end its work; it is cut off", input=self.name)
                for running in list(self._working.values()):
                    running.cut()
                await asyncio.wait({ending}, timeout=_CUT_AGAIN_SECONDS)
        await ending


async def within(
    clock: Clock, limit_ms: int, work: Work, watched: StepMonitor | None = None
) -> None:
    """Awaits an adapter's work, not for ever; raises TimeoutError, or what it raises."""
    held = IsolatedCall(work, watched)
    doing = asyncio.ensure_future(held)
    deadline = asyncio.ensure_future(clock.sleep(limit_ms))
    try:
        await asyncio.wait({doing, deadline}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise TimeoutError(f"no answer within {format_duration(limit_ms)}")
        doing.result()
    finally:
        await end_firmly(deadline)
        await end_isolated(doing, held)
