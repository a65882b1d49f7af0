"""The contract of input adapters, which bring messages from outside into the engine, and the dead
letters of inputs that are refused or unreadable. [CO-5, CO-16]

Push adapters are notified by their medium and publish; pull adapters are called to look. Both
belong to the application that added them. `Inputs` runs them. An input that becomes no message is
never dropped silently: it is a dead letter with the reason.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from rapport.channel.channel import Channels
from rapport.channel.dead_letters import append_dead_letter
from rapport.communication.adapters.base import check_method
from rapport.communication.arrivals import ArrivalResult
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, StoredEvent, make_event
from rapport.core.message import Message
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import run_blocking
from rapport.store.base import Change, Delete, Put, RecordStore

INPUT = "input"
REJECTED_INPUT = "rapport.input.unusable"
SHOWN_TEXT = 2_000
LARGEST_RAW = 500_000
"""Bytes of unreadable input that a dead letter holds; as base64 they fit into an event."""


class RejectedInput(msgspec.Struct, frozen=True, kw_only=True):
    """An input that became no accepted message, and why."""

    id: str
    code: str
    reason: str
    sender: str = ""
    subject: str = ""
    """The subject of a mail, the name of a file, an MQTT topic."""
    text: str = ""
    message: str = ""
    """The refused message as JSON, without its token: it can be published again."""
    raw: bytes = b""
    """The unreadable input as its medium gave it: the adapter reads it again when the letter is
    replayed. See `kept_raw`.
    """


DeadLetterInput = Callable[[RejectedInput], Awaitable[None]]
"""Durable on return; may be called again for the same input."""


async def drop_input(_found: RejectedInput) -> None:
    """For an input without dead letters."""


def dead_letter_inputs(name: str, channels: Channels, clock: Clock) -> DeadLetterInput:
    """Writes rejected inputs of the input `name` to `dead_letters`."""

    async def set_aside(found: RejectedInput) -> None:
        event = rejected_input_event(name, found, now_ms=clock.now_ms())
        error = InvalidInput(found.reason, code=found.code)
        await append_dead_letter(
            channels, INPUT, f"input.{name}", StoredEvent(0, event.time, event), error, 1
        )

    return set_aside


def rejected_input_event(name: str, found: RejectedInput, *, now_ms: int) -> Event:
    return make_event(
        source=f"input/{name}",
        id=found.id,
        type=REJECTED_INPUT,
        subject=name,
        time=now_ms,
        data=found,
    )


def kept_raw(raw: bytes) -> bytes:
    """The bytes of an unreadable input that its dead letter keeps: none if they are too many, or
    hold a session token, which no log may hold.
    """
    return raw if len(raw) <= LARGEST_RAW and b"session-token" not in raw else b""


def refused_input(message: Message, reason: str) -> RejectedInput:
    """A message that the engine refused for good."""
    return RejectedInput(
        id=message.id,
        code="input.not_accepted",
        reason=reason,
        sender=str(message.sender),
        text=message.content[:SHOWN_TEXT],
        message=msgspec.structs.replace(message, session_token="").to_json().decode(),
    )


@runtime_checkable
class RereadsInput(Protocol):
    """An input adapter that can read an unreadable input again."""

    async def read_again(self, found: RejectedInput) -> Message | None:
        """The message in `found.raw`, with the same id each time; None when it was no message but
        is dealt with now. Raises InvalidInput when it is still unreadable.
        """


async def message_of_letter(event: Event | None, adapter: object) -> Message | None:
    """The message of a dead letter: as `refused_input` kept it, or as the adapter reads it now;
    None when there is nothing left to publish. Raises InvalidInput.
    """
    if event is None:
        raise InvalidInput("the event is in no log any more", code="dead_letter.event_gone")
    found: RejectedInput = event.payload_as(RejectedInput)
    if found.message:
        return Message.from_json(found.message.encode())
    if found.raw and isinstance(adapter, RereadsInput):
        return await adapter.read_again(found)
    raise InvalidInput(
        f"it was no message ({found.code}), and only what is shown of it was kept",
        code="input.not_replayable",
        hint="bring it again by its medium, then forget this letter",
    )


_TABLE = "communication.inputs"
Work = Callable[[], Awaitable[None]]


Publish = Callable[..., Awaitable[Sequence[ArrivalResult]]]
"""`Arrivals.publish`: one result for each message, in order; durable on return."""


class AdapterState:
    """A small durable key-value store of one input adapter. Every call is a short access to the
    record store.
    """

    def __init__(self, name: str, records: RecordStore) -> None:
        self._name, self._records = name, records

    async def get(self, key: str) -> bytes | None:
        return await run_blocking(partial(self._records.get, _TABLE, self._key(key)))

    async def put(self, key: str, value: bytes) -> None:
        """Durable when it returns."""
        await self.put_many({key: value})

    async def put_many(self, values: dict[str, bytes], *, forget: Sequence[str] = ()) -> None:
        """Writes `values` and deletes the keys `forget`: all or none, durable on return."""
        changes: list[Change] = [Put(_TABLE, self._key(key), v) for key, v in values.items()]
        changes += [Delete(_TABLE, self._key(key)) for key in forget]
        if changes:
            await run_blocking(partial(self._records.apply, changes))

    async def forget(self, *keys: str) -> None:
        """Deletes keys; absent ones are no error."""
        await self.put_many({}, forget=keys)

    async def keys(
        self, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """One page of pairs, ordered by key."""
        find = partial(
            self._records.find,
            _TABLE,
            prefix=self._key(prefix),
            after=self._key(after) if after else "",
            limit=limit,
        )
        found = await run_blocking(find)
        return [(key.removeprefix(self._key("")), value) for key, value in found]

    def _key(self, key: str) -> str:
        return f"{self._name}/{key}"


class Intake(Protocol):
    """The engine's side of a push adapter, passed to `start`. It can be called like `publish`."""

    name: str
    state: AdapterState

    async def publish(self, messages: Sequence[Message]) -> Sequence[ArrivalResult]:
        """Publishes received messages; durable on return, so the medium may be acknowledged. Raises
        Unavailable (try again), or Conflict once the input is removed. Without messages it only
        ends the input's trouble.
        """

    async def __call__(self, messages: Sequence[Message]) -> Sequence[ArrivalResult]: ...

    def schedule(self, work: Work, *, name: str = "") -> None:
        """Runs background work; when it raises it is called again, later each time. It ends when it
        returns, or when the adapter is removed.
        """


class InputPushAdapter(Protocol):
    """A medium that notifies. Started when added, stopped when removed."""

    async def start(self, intake: Intake) -> None:
        """Begins to listen and returns; an error here makes adding the input fail."""

    async def stop(self) -> None:
        """Closes sockets and files; scheduled work has been cancelled before. Called once."""


@runtime_checkable
class InputPullAdapter(Protocol):
    """A medium that has to be polled. There are never two pulls of one adapter at a time."""

    async def pull(self) -> Sequence[Message] | Message | None:
        """New messages: a list, one Message, or None. Failures are exceptions; they are logged and
        the pull is repeated later.

        Give each message an id that stays the same when it is pulled again: then a crash between
        pulling and `pulled` doubles nothing.
        """


@runtime_checkable
class StatefulPull(Protocol):
    """A pull adapter with durable state."""

    async def open(self, state: AdapterState) -> None:
        """Called once before the first pull."""


@runtime_checkable
class AcknowledgesPull(Protocol):
    """A pull adapter that is notified when its messages are durable."""

    async def pulled(self, messages: Sequence[Message], arrivals: Sequence[ArrivalResult]) -> None:
        """Called after the messages of one pull are durable, before the next pull: the time to
        advance a cursor, or to move or delete files.
        """


@runtime_checkable
class ClosableInput(Protocol):
    """An adapter that holds resources."""

    async def close(self) -> None:
        """Called once, after the last pull has ended."""


InputAdapter = InputPushAdapter | InputPullAdapter


def check_push(adapter: object, name: str) -> None:
    """Raises InvalidInput for a push adapter whose methods cannot be called."""
    owner, code = f"the input {name!r}", "input.bad_signature"
    check_method(adapter, owner, "start", "async def start(self, intake)", 1, code=code)
    check_method(adapter, owner, "stop", "async def stop(self)", 0, code=code)


def check_pull(adapter: object, name: str) -> None:
    """Raises InvalidInput for a pull adapter whose methods cannot be called."""
    owner, code = f"the input {name!r}", "input.bad_signature"
    check_method(adapter, owner, "pull", "async def pull(self)", 0, code=code)


def messages_of(given: object, name: str, method: str) -> list[Message]:
    """The messages that an adapter returned: an iterable of them, one alone, or None. Raises
    InvalidInput that names the adapter and what it returned.
    """
    if given is None:
        return []
    if isinstance(given, Message):
        return [given]
    wrong = type(given).__name__
    if isinstance(given, Iterable) and not isinstance(given, (str, bytes, Mapping)):
        found = list(given)
        strange = [type(each).__name__ for each in found if not isinstance(each, Message)]
        if not strange:
            return found
        wrong = f"{wrong} with {strange[0]} in it"
    raise InvalidInput(
        f"{method} of the input {name!r} gave {wrong} instead of messages",
        code="input.no_messages",
        hint="a list of Message, one Message, or None",
    )


class InputHost(msgspec.Struct, frozen=True, kw_only=True):
    """The node's side of a plug-in's input. The entry point of the group `rapport.inputs` is called
    with its table of the site file and this, and returns a push or a pull adapter.
    """

    name: str
    """`[inputs.NAME]`, also in the header `adapter` of its messages."""
    directory: Path
    """The site's directory."""
    clock: Clock
    set_aside: DeadLetterInput
    """Writes an input that is no message to the dead letters."""


def name_fault(name: str) -> InvalidInput | None:
    """Why an input cannot have this name, or None; it becomes part of channel names."""
    if name[:1].isalpha() and name.isascii() and len(name) <= 100:
        rest = name.replace("-", "").replace("_", "")
        if rest.isalnum() and name == name.lower():
            return None
    return InvalidInput(
        f"{name[:80]!r} cannot be the name of an input",
        code="input.bad_name",
        hint="a letter, then letters, digits, - or _, all lower case: such as front-desk",
    )
