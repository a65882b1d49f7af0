"""Notifications of senders about the fate of their messages (ACK, COMERROR, TIMEOUT, ERROR) and
the callbacks of applications. [CO-2, CO-7, CO-15]

A notification is an event of `control`, which callbacks read, and a message of type CONTROL: one to
a peer is delivered like any other and causes no further one, one to a component is only logged, so
that the message query service finds it. Callbacks also get messages to components and messages
without a receiver, from `log`. A callback with a name has a durable position in both channels, so
that it continues there after a crash: in order, at least once. A callback without a name gets what
comes after it was added.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import lru_cache, partial

import msgspec

from rapport.channel.channel import Channels, Subscription
from rapport.channel.validation import check_reader_name
from rapport.communication.delivery_state import ControlSubtype
from rapport.communication.ledger_events import (
    CONTROL_MESSAGE,
    CONTROL_PREFIX,
    FATE,
    PROOF,
    SOURCE,
    MessageFate,
    event_name,
    logged_data,
)
from rapport.communication.transaction import Transaction
from rapport.core.errors import DuplicateName, InvalidInput
from rapport.core.event import CAUSE, Event, StoredEvent, cause_text, make_event
from rapport.core.message import CONTROL, MESSAGE, Identifier, Message
from rapport.kernel.tasks import first_of, run_blocking
from rapport.kernel.telemetry import get_logger
from rapport.store.base import Put, RecordStore

ENGINE = Identifier("component", "communication")


_PEER = "peer:"
_identifier = lru_cache(maxsize=4_096)(Identifier.parse)


def notify_sender(
    transaction: Transaction,
    sender: str,
    message: str,
    subtype: ControlSubtype,
    reason: str,
    *,
    now_ms: int,
    about: str = "",
) -> None:
    """Notifies the sender of a message, once for each subtype and `about`; empty = nobody."""
    for channel, event in notification_events(
        sender,
        message,
        subtype,
        reason,
        now_ms=now_ms,
        about=about,
        has_listeners=transaction.has_listeners(),
    ):
        transaction.emit(channel, event)


def notification_events(
    sender: str,
    message: str,
    subtype: ControlSubtype,
    reason: str,
    *,
    now_ms: int,
    about: str = "",
    has_listeners: bool,
) -> Iterator[tuple[str, Event]]:
    """The events that notify a sender, each with its channel."""
    if not sender:
        return
    name = event_name(about or message, "told", subtype)
    yield (
        "control",
        make_event(
            source=SOURCE,
            id=name,
            type=CONTROL_PREFIX + subtype,
            subject=sender,
            time=now_ms,
            data={"refers_to": message, "reason": reason},
            headers={CAUSE: cause_text(message)},
        ),
    )
    control = control_message(sender, message, subtype, reason, id=name)
    if not sender.startswith(_PEER):
        yield "log", control_log_event(control, has_listeners=has_listeners, now_ms=now_ms)
        return
    event = control.to_event(source=SOURCE, time=now_ms, causes=(message,))
    yield "input", msgspec.structs.replace(event, headers=event.headers | {PROOF: "application"})


def control_log_event(message: Message, *, has_listeners: bool, now_ms: int) -> Event:
    """A CONTROL message to a component as the log keeps it, for queries. Callbacks get it from
    `control`, and no ledger line is about it.
    """
    receiver = str(message.receiver)
    fate: MessageFate = "notified" if has_listeners else "no_receiver"
    data = logged_data(message, message.id, fate, (receiver,))
    headers = {CAUSE: cause_text(message.refers_to)}
    return Event(SOURCE, message.id, CONTROL_MESSAGE, receiver, now_ms, data, headers)


def control_message(
    receiver: str, message: str, subtype: ControlSubtype, reason: str, *, id: str
) -> Message:
    """The message of type CONTROL about another message."""
    return Message(
        type=CONTROL,
        subtype=subtype.upper(),
        sender=ENGINE,
        id=id,
        receiver=_identifier(receiver),
        content=reason,
        delivery_policy="unreliable",
        refers_to=message,
    )


# --- callbacks ---


NotificationCallback = Callable[[Message], Awaitable[None] | None]

_CHANNELS = ("control", "log")
_CONTROL_TYPES = {CONTROL_PREFIX + name: name for name in ("ack", "comerror", "timeout", "error")}
_COMPONENT = "component:"
_BATCH = 2_000
_READER = "notify."
_TABLE = "communication.listeners"
"""Names of callbacks with a durable position."""
_log = get_logger(__name__)


class _Listener:
    """One callback and its position in each channel."""

    def __init__(self, callback: NotificationCallback) -> None:
        self.callback = callback
        self.positions: dict[str, int] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.removed = asyncio.Event()


class Notifications:
    """All callbacks. A slow one delays no other."""

    def __init__(self, channels: Channels, records: RecordStore) -> None:
        self._channels, self._records = channels, records
        self._has_named = False
        """Whether a callback with a name was ever added here."""
        self._listeners: dict[str, _Listener] = {}
        self._count = 0
        self._changed = asyncio.Event()

    def add(self, callback: NotificationCallback, name: str = "") -> str:
        """Adds a callback and returns its id. With a name it continues where a callback of that
        name stopped, from the start when there was none.

        Raises DuplicateName when the name is in use, InvalidInput when it cannot be a name.
        """
        if name:
            check_reader_name(_READER + name)
        self._count += 1
        id = name or f"callback-{self._count}"
        if id in self._listeners:
            raise DuplicateName(
                f"another callback is called {id!r}", code="notification.name_taken"
            )
        listener = self._listeners[id] = _Listener(callback)
        if not name:
            for channel in _CHANNELS:
                listener.positions[channel] = self._channels.channel(channel).last_position()
        self._changed.set()
        return id

    def has_listeners(self) -> bool:
        """Whether a callback is registered, or one with a name was, which continues when it comes
        back.
        """
        return bool(self._listeners) or self._has_named

    def load(self) -> None:
        """Reads whether a callback with a name was here before; blocks."""
        self._has_named = bool(self._records.find(_TABLE, limit=1))

    def remove(self, id: str) -> bool:
        """Removes a callback; False when there is none of that id."""
        listener = self._listeners.pop(id, None)
        if listener is not None:
            listener.removed.set()
        return listener is not None

    async def run(self) -> None:
        """Serves every callback in a task of its own, until cancelled."""
        tasks: dict[_Listener, asyncio.Task[None]] = {}
        try:
            while True:
                self._changed.clear()
                for id, listener in self._listeners.items():
                    if listener not in tasks:
                        tasks[listener] = asyncio.create_task(self._serve(id, listener))
                await first_of(self._changed.wait(), *map(_ended, tasks.values()))
                for listener, task in list(tasks.items()):
                    if task.done():
                        del tasks[listener]
                        task.result()
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _serve(self, id: str, listener: _Listener) -> None:
        while not listener.removed.is_set():
            busy = [await self._notify(id, listener, channel) for channel in _CHANNELS]
            if not any(busy):
                grown = [
                    self._channels.channel(name).wait_after(listener.positions[name])
                    for name in _CHANNELS
                ]
                await first_of(listener.removed.wait(), *grown)

    async def step(self) -> bool:
        """Calls every callback with one batch of each channel; False when there was nothing new.
        For callers that do not `run`.
        """
        busy = False
        for id, listener in list(self._listeners.items()):
            for channel in _CHANNELS:
                busy = await self._notify(id, listener, channel) or busy
        return busy

    async def _notify(self, id: str, listener: _Listener, channel: str) -> bool:
        if channel not in listener.positions:
            subscription = await self._channels.subscribe(channel, _READER + id)
            await run_blocking(partial(self._records.apply, [Put(_TABLE, id, b"1")]))
            self._has_named = True
            listener.subscriptions[channel] = subscription
            listener.positions[channel] = subscription.position
        source = self._channels.channel(channel)
        last, position = source.last_position(), listener.positions[channel]
        batch = await source.read_after(position, limit=_BATCH)
        if not batch:
            # Expired or unreadable events are not waited for.
            listener.positions[channel] = max(position, last)
            return False
        try:
            await _call_with_all(id, listener, channel, batch)
        finally:  # also when it is cancelled: a message that was given is not given again
            # Another callback of this name has a position of its own, which must not move back.
            if channel in listener.subscriptions and self._listeners.get(id, listener) is listener:
                await listener.subscriptions[channel].commit(listener.positions[channel])
        return True


async def _call_with_all(
    id: str, listener: _Listener, channel: str, batch: Sequence[StoredEvent]
) -> None:
    """Calls the callback with each message of a batch and moves its position along."""
    for stored in batch:
        message = _notified(stored.event)
        if message is None:
            continue
        if listener.removed.is_set():
            return  # the rest comes when it is added again
        await _call(id, listener.callback, message)
        listener.positions[channel] = stored.position
    listener.positions[channel] = batch[-1].position


async def _ended(task: asyncio.Task[None]) -> None:
    """Waits until the task has ended in whatever way; never ends it."""
    await asyncio.wait({task})


def _notified(event: Event) -> Message | None:
    """The message of an event that callbacks get; None for other events."""
    try:
        if event.type == MESSAGE and FATE in event.headers:
            return Message.from_event(event)
        if event.type in _CONTROL_TYPES and event.subject.startswith(_COMPONENT):
            return _control(event)
    except InvalidInput as error:
        _log.error("not notified", id=event.id, error=error.message)
    return None


def _control(event: Event) -> Message:
    data = event.payload_as(dict[str, str])
    return control_message(
        event.subject,
        data.get("refers_to", ""),
        _CONTROL_TYPES[event.type],  # type: ignore[arg-type]
        data.get("reason", ""),
        id=event.id,
    )


async def _call(id: str, callback: NotificationCallback, message: Message) -> None:
    """Calls a callback. One that raises harms nobody; the message counts as given."""
    try:
        waited_for = callback(message)
        if waited_for is not None and inspect.isawaitable(waited_for):
            await waited_for
    except Exception as error:
        _log.error("callback failed", callback=id, message=message.id, error=repr(error))
