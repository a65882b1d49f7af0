"""Notification callbacks: applications hear of messages to components, of messages without a
receiver, and how their own went. [CO-7, CO-15]

What there is to tell stands in `log` and `control`; a callback with a name has a durable place in
both, so that what was not told before a crash is told after it: in order, at least once. One
without a name hears of what comes after it was added.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial

from rapport.channel.channel import Channels, PackedStretch, Subscription
from rapport.channel.checking import check_reader_name
from rapport.communication.blocking import run_blocking
from rapport.communication.ledger_events import CONTROL_PREFIX
from rapport.communication.message_plan import FATE
from rapport.communication.payload_cache import (
    NotifiedMessages,
    packed_after,
    release,
    unpacked_after,
)
from rapport.communication.sender_notifications import control_message
from rapport.core.errors import DuplicateName, InvalidInput
from rapport.core.event import Event, StoredEvent
from rapport.core.message import MESSAGE, Message
from rapport.kernel.tasks import first_of
from rapport.kernel.telemetry import get_logger
from rapport.store.base import Put, RecordStore

NotificationCallback = Callable[[Message], Awaitable[None] | None]

_CHANNELS = ("control", "log")
_TOLD = {CONTROL_PREFIX + name: name for name in ("ack", "comerror", "timeout", "error")}
_COMPONENT = "component:"
_BATCH = 2_000
_READER = "notify."
_TABLE = "communication.listeners"
"""Names of callbacks with a durable place."""

_log = get_logger(__name__)


class _Listener:
    """One callback and how far it was told in each channel."""

    def __init__(self, callback: NotificationCallback) -> None:
        self.callback = callback
        self.positions: dict[str, int] = {}
        self.places: dict[str, Subscription] = {}
        self.gone = asyncio.Event()


class Notifications:
    """All callbacks. Telling costs nothing while nobody listens, and one that takes its time keeps
    nobody else waiting.
    """

    def __init__(self, channels: Channels, records: RecordStore) -> None:
        self._channels, self._records = channels, records
        self._has_named = False
        """Whether a callback with a name ever had a place here."""
        self._listeners: dict[str, _Listener] = {}
        self._named: dict[str, _Listener] = {}
        self._count = 0
        self._changed = asyncio.Event()

    def add(self, callback: NotificationCallback, name: str = "") -> str:
        """Tells this callback, too, from now on; returns what `remove` wants. With a name it goes
        on where a callback of that name was told last, from the start when there was none.

        Raises DuplicateName when the name is in use, InvalidInput when it cannot be one.
        """
        if name:
            check_reader_name(_READER + name)
        if name and name in self._named:
            raise DuplicateName(
                f"another callback is called {name!r}", code="notification.name_taken"
            )
        self._count += 1
        id = name or f"callback-{self._count}"
        if id in self._listeners:
            raise DuplicateName(
                f"another callback is called {id!r}", code="notification.name_taken"
            )
        listener = self._listeners[id] = _Listener(callback)
        if name:
            self._named[name] = listener
        else:
            for channel in _CHANNELS:
                last = self._channels.channel(channel).last_position()
                listener.positions[channel] = last
        self._changed.set()
        return id

    def is_heard(self) -> bool:
        """Whether anybody is notified: a callback is registered, or one with a name was, which is
        told when it comes back.
        """
        return bool(self._listeners) or self._has_named

    def load(self) -> None:
        """Looks whether a callback with a name was here before; blocks."""
        self._has_named = bool(self._records.find(_TABLE, limit=1))

    def remove(self, id: str) -> bool:
        """Tells the callback nothing more; False when there is none of that id."""
        self._named.pop(id, None)
        listener = self._listeners.pop(id, None)
        if listener is not None:
            listener.gone.set()
        return listener is not None

    async def run(self) -> None:
        """Tells every callback what is new to it, each in a task of its own, until cancelled."""
        tasks: dict[_Listener, asyncio.Task[None]] = {}
        try:
            while True:
                self._changed.clear()
                for id, listener in self._listeners.items():
                    if listener not in tasks:
                        tasks[listener] = asyncio.create_task(self._keep_telling(id, listener))
                await first_of(self._changed.wait(), *map(_ended, tasks.values()))
                for listener, task in list(tasks.items()):
                    if task.done():
                        del tasks[listener]
                        task.result()
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _keep_telling(self, id: str, listener: _Listener) -> None:
        while not listener.gone.is_set():
            told = [await self._tell(id, listener, channel) for channel in _CHANNELS]
            if not any(told):
                grown = [
                    self._channels.channel(name).wait_after(listener.positions[name])
                    for name in _CHANNELS
                ]
                await first_of(listener.gone.wait(), *grown)

    async def tell(self) -> bool:
        """Tells every callback what is new to it, one after the other, a batch of each channel;
        False when there was nothing. For who does not `run`.
        """
        told = False
        for id, listener in list(self._listeners.items()):
            for channel in _CHANNELS:
                told = await self._tell(id, listener, channel) or told
        return told

    async def _tell(self, id: str, listener: _Listener, channel: str) -> bool:
        if channel not in listener.positions:
            place = await self._channels.subscribe(channel, _READER + id)
            await run_blocking(partial(self._records.apply, [Put(_TABLE, id, b"1")]))
            self._has_named = True
            listener.places[channel] = place
            listener.positions[channel] = place.position
        source = self._channels.channel(channel)
        last, position = source.last_position(), listener.positions[channel]
        stretches = packed_after(source, position, limit=_BATCH)
        limit = unpacked_after(source, position, limit=_BATCH)
        batch = [] if stretches else await source.read_after(position, limit=limit)
        if not batch and not stretches:
            # What is there is over or cannot be read: it is not to be waited for.
            listener.positions[channel] = max(listener.positions[channel], last)
            return False
        try:
            if stretches:
                await _tell_all(id, listener, channel, _carried(stretches), stretches[-1].last)
                if len(self._listeners) == 1:
                    release(source, stretches)
            else:
                await _tell_all(id, listener, channel, _messages(batch), batch[-1].position)
        finally:  # also when it is cancelled in between: what it has heard it is not told again
            # Who has the name now has a place of its own, which is not to be moved back.
            if channel in listener.places and self._named.get(id, listener) is listener:
                await listener.places[channel].commit(listener.positions[channel])
        return True


async def _tell_all(
    id: str, listener: _Listener, channel: str, told: Iterable[tuple[int, Message]], last: int
) -> None:
    """Calls it with each message, and moves its position on after each, then to the last one."""
    for position, message in told:
        if listener.gone.is_set():
            return  # of the rest it hears when it is added again
        await_it = _call(id, listener.callback, message)
        if await_it is not None:
            await _finish(id, await_it, message)
        listener.positions[channel] = position
    listener.positions[channel] = last


async def _ended(task: asyncio.Task[None]) -> None:
    """When the task has ended, however; never ends it."""
    await asyncio.wait({task})


def _carried(stretches: Sequence[PackedStretch]) -> Iterator[tuple[int, Message]]:
    """As `_messages` of what this process wrote a moment ago."""
    for stretch in stretches:
        position = stretch.first
        for piece in stretch.carried:
            if isinstance(piece, NotifiedMessages):
                yield from enumerate(piece.messages, start=position)
            position += len(piece)


def _messages(batch: Sequence[StoredEvent]) -> list[tuple[int, Message]]:
    """Those of a batch that callbacks are told of, with their positions."""
    found = []
    for stored in batch:
        event = stored.event
        try:
            if event.type == MESSAGE and FATE in event.headers:
                found.append((stored.position, Message.from_event(event)))
            elif event.type in _TOLD and event.subject.startswith(_COMPONENT):
                found.append((stored.position, _control(event)))
        except InvalidInput as error:
            _log.error("not told", id=event.id, error=error.message)
    return found


def _control(event: Event) -> Message:
    data = event.payload_as(dict[str, str])
    subtype = _TOLD[event.type]
    return control_message(
        event.subject,
        data.get("refers_to", ""),
        subtype,  # type: ignore[arg-type]
        data.get("reason", ""),
        id=event.id,
    )


def _call(id: str, callback: NotificationCallback, message: Message) -> Awaitable[None] | None:
    """What is still to be waited for. One that raises harms nobody; the message counts as told."""
    try:
        waited_for = callback(message)
    except Exception as error:
        _log.error("callback failed", callback=id, message=message.id, error=repr(error))
        return None
    is_over = waited_for is None or not inspect.isawaitable(waited_for)
    return None if is_over else waited_for


async def _finish(id: str, waited_for: Awaitable[None], message: Message) -> None:
    try:
        await waited_for
    except Exception as error:
        _log.error("callback failed", callback=id, message=message.id, error=repr(error))
