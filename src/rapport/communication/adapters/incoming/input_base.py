"""What an input adapter is: it brings messages from outside into the engine. [CO-5]

Push adapters are told by their medium and publish; pull adapters are asked to look. Both belong to
the application that added them. `Inputs` runs them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from rapport.communication.adapters.base import check_method
from rapport.communication.adapters.unusable import SetAside
from rapport.communication.blocking import run_blocking
from rapport.communication.contents.rules import ContentFault
from rapport.core.errors import InvalidInput
from rapport.core.message import Message
from rapport.kernel.clock import Clock
from rapport.store.base import Change, Delete, Put, RecordStore

_TABLE = "communication.inputs"
Work = Callable[[], Awaitable[None]]
Trusted = Callable[[Message], bool]
"""Whether this medium itself proves that the message comes from its sender."""


def never(_message: Message) -> bool:
    """No message is proved by its medium."""
    return False


class Arrival(Protocol):
    """What became of one published message; `communication/arrivals.py` gives these."""

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
        return await run_blocking(partial(self._records.get, _TABLE, self._key(key)))

    async def put(self, key: str, value: bytes) -> None:
        """Durable when it returns."""
        await self.put_many({key: value})

    async def put_many(self, values: dict[str, bytes], *, forget: Sequence[str] = ()) -> None:
        """All or none, durable when it returns; `forget` names keys to let go of."""
        changes: list[Change] = [Put(_TABLE, self._key(key), v) for key, v in values.items()]
        changes += [Delete(_TABLE, self._key(key)) for key in forget]
        if changes:
            await run_blocking(partial(self._records.apply, changes))

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
        found = await run_blocking(find)
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
class RemembersPlace(Protocol):
    """A pull adapter that keeps a durable place."""

    async def open(self, state: AdapterState) -> None:
        """Called once before the first pull."""


@runtime_checkable
class NotesPulled(Protocol):
    """A pull adapter that wants to know when what it pulled is safe."""

    async def pulled(self, messages: Sequence[Message], arrivals: Sequence[Arrival]) -> None:
        """Called after the messages of one pull are durable, before the next pull: the moment to
        move the place on, or to move or delete files.
        """


@runtime_checkable
class Closes(Protocol):
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
    set_aside: SetAside
    """Keeps what came in and is no message as a dead letter."""
