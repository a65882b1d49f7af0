"""What came in and is no message: kept as a dead letter with the reason, never dropped silently.
[CO-5, CO-16]

What an input adapter is: it brings messages from outside into the engine. [CO-5]

Push adapters are told by their medium and publish; pull adapters are asked to look. Both belong to
the application that added them. `Inputs` runs them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from rapport.channel.channel import Channels
from rapport.channel.dead.letters import bury
from rapport.communication.adapters.base import check_method
from rapport.communication.aside import run_aside
from rapport.communication.content_rules import ContentFault
from rapport.core.errors import InvalidInput
from rapport.core.event import Event, StoredEvent, make_event
from rapport.core.message import Message
from rapport.kernel.clock import Clock
from rapport.store.base import Change, Delete, Put, RecordStore

INPUT = "input"
REJECTED_INPUT = "rapport.input.unusable"
SHOWN_TEXT = 2_000
LARGEST_RAW = 500_000
"""Bytes of unreadable input that a dead letter holds; as base64 they fit into an event."""
TOO_FAST = "message.too_fast"
"""The reason of a message that was refused only for now."""


class RejectedInput(msgspec.Struct, frozen=True, kw_only=True):
    """A mail or file that is no message, and why."""

    id: str
    code: str
    reason: str
    sender: str = ""
    subject: str = ""
    """The subject of a mail, the name of a file."""
    text: str = ""
    message: str = ""
    """The whole message as JSON, without its token, where it was one and was refused: it can be put
    through its input again.
    """
    raw: bytes = b""
    """The input as its medium gave it, where no message came of it: its input reads it again when
    the letter is replayed. See `kept_raw`.
    """


DeadLetterInput = Callable[[RejectedInput], Awaitable[None]]
"""Durable when it returns; may be called again for the same thing."""


async def drop_input(_found: RejectedInput) -> None:
    """For an input without a place to keep things aside."""


def dead_letter_inputs(name: str, channels: Channels, clock: Clock) -> DeadLetterInput:
    """Keeps what the input `name` could not use in `dead_letters`."""

    async def set_aside(found: RejectedInput) -> None:
        event = rejected_input_event(name, found, now_ms=clock.now_ms())
        error = InvalidInput(found.reason, code=found.code)
        await bury(channels, INPUT, f"input.{name}", StoredEvent(0, event.time, event), error, 1)

    return set_aside


def rejected_input_event(name: str, found: RejectedInput, *, now_ms: int) -> Event:
    """What was found, as the event of a dead letter."""
    return make_event(
        source=f"input/{name}",
        id=found.id,
        type=REJECTED_INPUT,
        subject=name,
        time=now_ms,
        data=found,
    )


def kept_raw(raw: bytes) -> bytes:
    """Unreadable input as its dead letter keeps it: nothing of what is too large, or of what shows
    a session token, which no log may hold.
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
    """An input adapter that reads what was unreadable once more."""

    async def read_again(self, found: RejectedInput) -> Message | None:
        """The message in `found.raw`, with the same id each time; None when it was no message but
        is dealt with now. Raises InvalidInput when it is still unreadable.
        """


async def message_of_letter(event: Event | None, adapter: object) -> Message | None:
    """The message of a dead letter: as `not_accepted` kept it, or as the input's adapter reads it
    now; None when there is nothing left to publish. Raises InvalidInput.
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
Trusted = Callable[[Message], bool]
"""Whether this medium itself proves that the message comes from its sender."""


def never(_message: Message) -> bool:
    """No message is proved by its medium."""
    return False


class Arrival(Protocol):
    """What became of one published message; `communication/arriving/arrivals.py` gives these."""

    @property
    def id(self) -> str:
        """The message's id."""

    @property
    def accepted(self) -> bool:
        """Whether it is in `input`, durable."""

    @property
    def reason(self) -> str:
        """Why it was not accepted, as a code."""

    @property
    def fault(self) -> ContentFault | None:
        """Where and why its content does not fit the schema of its type."""

    @property
    def why(self) -> str:
        """The same in words where there are some: what is wrong, and where."""


class Publish(Protocol):
    """How messages get into the engine: `Arrivals.publish`."""

    async def __call__(
        self, messages: Sequence[Message], *, adapter: str, trusted: Trusted = never
    ) -> Sequence[Arrival]:
        """Durable when it returns; one result for each message, in order."""


class AdapterState:
    """A small durable memory of one input adapter, kept under its name: what it has seen, how far
    it got. Every call is a short visit to the record store; written = on disk.
    """

    def __init__(self, name: str, records: RecordStore) -> None:
        self._name, self._records = name, records

    async def get(self, key: str) -> bytes | None:
        """What was put there, or None."""
        return await run_aside(partial(self._records.get, _TABLE, self._key(key)))

    async def put(self, key: str, value: bytes) -> None:
        """Durable when it returns."""
        await self.put_many({key: value})

    async def put_many(self, values: dict[str, bytes], *, forget: Sequence[str] = ()) -> None:
        """All or none, durable when it returns; `forget` names keys to let go of."""
        changes: list[Change] = [Put(_TABLE, self._key(key), v) for key, v in values.items()]
        changes += [Delete(_TABLE, self._key(key)) for key in forget]
        if changes:
            await run_aside(partial(self._records.apply, changes))

    async def forget(self, *keys: str) -> None:
        """Lets go of keys; those that are not there are no error."""
        await self.put_many({}, forget=keys)

    async def keys(
        self, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> list[tuple[str, bytes]]:
        """Pairs in the order of their keys, a page at a time."""
        find = partial(
            self._records.find,
            _TABLE,
            prefix=self._key(prefix),
            after=self._key(after) if after else "",
            limit=limit,
        )
        found = await run_aside(find)
        return [(key.removeprefix(self._key("")), value) for key, value in found]

    def _key(self, key: str) -> str:
        return f"{self._name}/{key}"


class Intake(Protocol):
    """What a push adapter is given when it starts: its way in, its memory, and care for its tasks.

    It can be called like `publish`.
    """

    name: str
    state: AdapterState

    async def publish(self, messages: Sequence[Message]) -> Sequence[Arrival]:
        """Hands received messages to the engine; durable when it returns, so the medium may be
        told that they were taken. Raises Unavailable (try again) or Conflict once removed.
        """

    async def __call__(self, messages: Sequence[Message]) -> Sequence[Arrival]:
        """The same as `publish`."""

    def schedule(self, work: Work, *, name: str = "") -> None:
        """Runs background work under care: when it raises it is called again, later each time.
        Ends when it returns, or when the adapter is removed.
        """


class InputPushAdapter(Protocol):
    """A medium that tells us. Started when added, stopped when removed."""

    async def start(self, intake: Intake) -> None:
        """Begins to listen and returns; what raises here is the error of adding it."""

    async def stop(self) -> None:
        """Lets go of sockets and files; scheduled work has been cancelled before. Called once."""


@runtime_checkable
class InputPullAdapter(Protocol):
    """A medium that has to be looked at. Never two pulls of one adapter at a time."""

    async def pull(self) -> Sequence[Message] | Message | None:
        """What is new; nothing new is an empty list or None, and one Message is one. Failures are
        exceptions: logged, and tried again later.

        Give each message an id that stays the same when it is pulled again: then a crash between
        pulling and `pulled` doubles nothing.
        """


@runtime_checkable
class StatefulPull(Protocol):
    """A pull adapter that keeps a durable place."""

    async def open(self, state: AdapterState) -> None:
        """Called once before the first pull."""


@runtime_checkable
class AcknowledgesPull(Protocol):
    """A pull adapter that wants to know when what it pulled is safe."""

    async def pulled(self, messages: Sequence[Message], arrivals: Sequence[Arrival]) -> None:
        """Called after the messages of one pull are durable, before the next pull: the moment to
        move the place on, or to move or delete files.
        """


@runtime_checkable
class ClosableInput(Protocol):
    """An adapter with something to let go of."""

    async def close(self) -> None:
        """Called once, after the last pull has ended."""


InputAdapter = InputPushAdapter | InputPullAdapter


def check_push(adapter: object, name: str) -> None:
    """Raises InvalidInput for a push adapter whose methods cannot be called."""
    owner, code = f"the input {name!r}", "input.bad_signature"
    check_method(adapter, owner, "start", "async def start(self, intake)", 1, code=code)
    check_method(adapter, owner, "stop", "async def stop(self)", 0, code=code)


def check_pull(adapter: object, name: str) -> None:
    """Raises InvalidInput for a pull adapter that cannot be called."""
    owner, code = f"the input {name!r}", "input.bad_signature"
    check_method(adapter, owner, "pull", "async def pull(self)", 0, code=code)


def messages_of(given: object, name: str, method: str) -> list[Message]:
    """The messages that an adapter gives: a list or another iterable of them, one alone, or None.
    Raises InvalidInput, which names the adapter and what it gave.
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
    """What a plug-in's input may use. Its entry point of the group `rapport.inputs` is called with
    its table of the site file and this, and gives a push or a pull adapter.
    """

    name: str
    """`[inputs.NAME]`: also its mark on messages."""
    directory: Path
    """Of the site."""
    clock: Clock
    set_aside: DeadLetterInput
    """Keeps what came in and is no message as a dead letter."""


def name_fault(name: str) -> InvalidInput | None:
    """What is wrong with the name of an input, or None; it becomes part of channel names."""
    if name[:1].isalpha() and name.isascii() and len(name) <= 100:
        rest = name.replace("-", "").replace("_", "")
        if rest.isalnum() and name == name.lower():
            return None
    return InvalidInput(
        f"{name[:80]!r} cannot be the name of an input",
        code="input.bad_name",
        hint="a letter, then letters, digits, - or _, all lower case: such as front-desk",
    )
