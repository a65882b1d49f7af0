"""The input adapters of a node: added and removed while it runs, each in the name of the
application that added it. [CO-5, CO-12]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import msgspec

from rapport.channel.channel import Channels
from rapport.channel.dead.letters import DEAD_LETTERS
from rapport.channel.dead.replay import Replay, settled
from rapport.communication.adapters.incoming.declare_inputs import name_fault
from rapport.communication.adapters.incoming.input_base import (
    AdapterState,
    Closes,
    InputAdapter,
    InputPullAdapter,
    InputPushAdapter,
    Publish,
    Trusted,
    check_pull,
    check_push,
    never,
)
from rapport.communication.adapters.incoming.pull_inputs import PULL_WITHIN_MS, PullInput
from rapport.communication.adapters.incoming.pull_schedule import PullPlan
from rapport.communication.adapters.incoming.push_inputs import (
    STOP_WITHIN_MS,
    PublishAs,
    PushInput,
    within,
)
from rapport.communication.adapters.incoming.requests import PullRequest
from rapport.communication.adapters.unusable import INPUT, refused_message
from rapport.communication.blocking import run_blocking
from rapport.communication.dead_letter_replay import DeadLetterReplays, replay_note
from rapport.communication.message_plan import assume_listeners
from rapport.core.errors import DuplicateName, InvalidInput, UnknownName
from rapport.core.event import StoredEvent
from rapport.core.message import Identifier
from rapport.kernel.chance import Chance, Ids
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import Tasks
from rapport.kernel.telemetry import get_logger
from rapport.store.base import RecordStore

_log = get_logger(__name__)


class InputStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say about one input now."""

    name: str
    kind: Literal["push", "pull"]
    owner: str
    received: int
    refused: int
    errors: int
    pulls: int
    last_pull_ms: int
    trouble: str
    blocked: int = 0
    """How often it kept the event loop from turning."""


class Inputs:
    """Holds the inputs by name. A name is also that of the adapter's durable state, of its request
    channel, and of the header `adapter` of what comes in.
    """

    def __init__(
        self,
        publish: Publish,
        channels: Channels,
        records: RecordStore,
        clock: Clock,
        *,
        new_id: Callable[[], str] | None = None,
        is_heard: Callable[[], bool] = assume_listeners,
    ) -> None:
        """`publish`: `Arrivals.publish`; `is_heard`: whether notification callbacks are
        registered.
        """
        self._is_heard = is_heard
        self._publish, self._channels = publish, channels
        self._records, self._clock = records, clock
        self._new_id = new_id or Ids(clock, Chance.from_machine()).new
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
        """Starts the adapter and returns its name; raises what it raises, and then it was not
        added. Without a name it gets one that nobody else has. Raises InvalidInput
        (`input.bad_signature`) for one whose methods cannot be called.
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
        self._take_letters(name, trusted)
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
        """Pulls every `interval_ms` from now on, at `deadline` (ms UTC) for the last time, and
        whenever `request` asks; returns its name.

        Raises InvalidInput for an interval that is not positive, and for an adapter that cannot be
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
            is_heard=self._is_heard,
        )
        self._inputs[name] = entry
        self._tasks.start(f"input.{name}", partial(self._run_pull, entry))
        self._take_letters(name, trusted)
        return name

    async def request(
        self,
        name: str,
        *,
        requester: Identifier,
        ttl_ms: int = 0,
        refers_to: str = "",
    ) -> str:
        """Asks a pull adapter to look now; durable when it returns the request's id. With a time to
        live it is looked again until something came; after it the requester is told TIMEOUT in
        `control`.

        Raises UnknownName, or InvalidInput for an input that nobody pulls.
        """
        entry = self._inputs.get(name)
        if entry is None:
            raise UnknownName("input", name, list(self._inputs))
        if not isinstance(entry, PullInput):
            raise InvalidInput(
                f"the input {name!r} is told by its medium and cannot be asked",
                code="input.not_pulled",
            )
        if ttl_ms < 0:
            raise InvalidInput(
                f"a time to live of {ttl_ms} ms cannot be",
                code="input.bad_ttl",
                hint="0 = one look",
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
        """Ends an input: when it returns nothing of it runs any more. Returns the adapter, or None
        when there is none of that name.
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

    async def remove_of(self, owner: str) -> list[str]:
        """Ends all inputs of an application, the newest first; returns their names."""
        names = [name for name, entry in self._inputs.items() if entry.owner == owner]
        for name in reversed(names):
            await self.remove(name)
        return names

    async def close(self) -> None:
        """Removes all, the newest first."""
        for name in reversed(list(self._inputs)):
            await self.remove(name)

    def adapter(self, name: str) -> InputAdapter | None:
        """The adapter of that name, for doors that hand it what comes in; or None."""
        entry = self._inputs.get(name)
        return entry.adapter if entry else None

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
        if left := entry.left_over():
            _log.error(
                "pulled but not taken", input=entry.name, messages=left[:20], count=len(left)
            )
        if isinstance(entry.adapter, Closes):
            try:
                await within(self._clock, STOP_WITHIN_MS, entry.adapter.close, entry.steps)
            except Exception as error:
                _log.error("input not closed", input=entry.name, error=repr(error))

    # --- dead letters that come back ---

    def _take_letters(self, name: str, trusted: Trusted) -> None:
        returned = DeadLetterReplays(self._channels, self._records, f"input.{name}", (INPUT,))
        publish = self._publish_as(name, trusted)
        self._tasks.start(_letters(name), partial(self._keep_taking_letters, returned, publish))

    async def _keep_taking_letters(self, returned: DeadLetterReplays, publish: PublishAs) -> None:
        await returned.open()
        while True:
            for replay, stored in await returned.waiting():
                await self._put_through(publish, replay, stored)
            await returned.wait()

    async def _put_through(
        self, publish: PublishAs, replay: Replay, stored: StoredEvent | None
    ) -> None:
        """Publishes what was refused once more. After a crash before the note it comes again under
        the same id, and is in `input` once.
        """
        error = ""
        try:
            message = refused_message(stored.event if stored else None)
            (arrival,) = await publish([message])
            error = "" if arrival.accepted else arrival.why
        except InvalidInput as fault:
            error = fault.message
        note = replay_note(replay, error, self._clock.now_ms())
        await self._channels.channel(DEAD_LETTERS).append([note])
        changes = settled(replay, "" if error else "replayed")
        await run_blocking(partial(self._records.apply, changes))

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
    counts = entry.counts
    return InputStatus(
        name=entry.name,
        kind="push" if isinstance(entry, PushInput) else "pull",
        owner=entry.owner,
        received=counts.received,
        refused=counts.refused,
        errors=counts.errors,
        pulls=counts.pulls,
        last_pull_ms=counts.last_pull_ms,
        trouble=counts.trouble,
        blocked=entry.steps.blocked,
    )
