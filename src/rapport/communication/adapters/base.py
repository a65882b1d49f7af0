"""What an output adapter is: it takes deliveries to addresses and says what became of them. [CO-4]

Adapters know nothing of policies, channels or retries. A new medium is one file with one class
that fits `OutputAdapter` and says with `@adapter(...)` what it is, registered by
`Outputs.register` or as an entry point `rapport.adapters`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from rapport.communication.actions import Effect
from rapport.core.errors import InvalidInput
from rapport.core.event import CAUSE, MAX_NAME, Event, cause_text, check_envelope
from rapport.core.ids import content_id

DELIVERY = "rapport.output.delivery"
LONGEST_ID = 240
_AWAITABLE = ("Awaitable", "Coroutine", "Future", "Task")
"""Kinds of results that a plain function may say it gives, to be awaited."""
Class = TypeVar("Class", bound=type)


class Declared(msgspec.Struct, frozen=True):
    """What a class says about itself: the name that addresses begin with, and whether every peer
    has an instance of its own.
    """

    name: str
    stateful: bool = False


def adapter(name: str, *, stateful: bool = False) -> Callable[[Class], Class]:
    """Declares a class as an adapter. Stateless: one instance serves all peers, several sends may
    run at once. Stateful: each peer has its own, made on first use with the peer's address.

    >>> @adapter("pager")
    ... class Pager: ...
    >>> declared(Pager)
    Declared(name='pager', stateful=False)
    """

    def declare(kind: Class) -> Class:
        kind.declared = Declared(name, stateful)  # type: ignore[attr-defined]
        kind.name = name  # type: ignore[attr-defined]
        return kind

    return declare


def declared(kind: object) -> Declared:
    """What `@adapter` said of a class or of the class of an instance; raises InvalidInput."""
    found = getattr(kind, "declared", None)
    if isinstance(found, Declared):
        return found
    shown = kind.__name__ if isinstance(kind, type) else type(kind).__name__
    raise InvalidInput(
        f"{shown} does not say that it is an adapter",
        code="adapter.not_declared",
        hint=f'write @adapter("NAME") above class {shown}',
    )


class Delivery(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    gc=False,
    rename={
        "message": "id",
        "text": "content",
        "conversation": "conversation-id",
        "refers_to": "refers-to",
    },
):
    """One attempt to bring one message to one address. Written with the message's own names, so
    that the plain lane makes it of the message's bytes (`plain.py`).
    """

    message: str
    peer: str
    address: str
    """Adapter and parameters: `mail:ana@example.org`."""
    attempt: int
    text: str
    policy: str = ""
    detection: str = ""
    time: int = 0
    """When the situation was, ms UTC."""
    sent: int = 0
    """When the message was sent, ms UTC, where that is another time; 0 = the same."""
    queued: int = 0
    """When this attempt was queued, ms UTC."""
    expires: int = 0
    """After this nobody needs it any more; 0 = never."""
    urgent: bool = False
    wants_answer: bool = False
    effect: Effect | None = None
    """What is to be done, for an action that tells nobody."""
    type: str = ""
    subtype: str = ""
    sender: str = ""
    """Who says it, as `kind:name`; with the next three as in the message."""
    rule_sender: str = ""
    """The sender as privacy policies see it, where that is another."""
    conversation: str = ""
    language: str = ""
    refers_to: str = ""
    plain: bool = False
    """Nothing else is kept about it: its outcome is reported together with all of this."""
    acknowledge: bool = False
    """The sender of a plain one is told when the medium took it."""
    repeat: int = 0
    """How often it was repeated because nobody answered; a repetition is meant to be seen, so it
    has an idempotency key of its own."""
    case: str = ""
    """The engine's record that hears of the outcome; empty = the message's own."""
    share: str = ""
    """Where several engines work: the share that keeps that record."""

    @property
    def id(self) -> str:
        """Names this attempt; the same also when it is written again after a crash. The address is
        in it as a mark only, as it may hold secrets. An additional receiver's case has attempts of
        its own, perhaps to the same address: none may be taken for a repetition of the other.
        """
        mark = _address_mark(self.address)
        name = f"{self.message}.{self.peer}.{mark}.{self.attempt}"
        if self.case:
            name += f".{content_id(self.case)[:16]}"
        if len(name) <= LONGEST_ID and name.isprintable():
            return name
        parts = (self.message, self.peer, self.address, str(self.attempt))
        return content_id("delivery", *parts, *filter(None, (self.case,)))

    @property
    def key(self) -> str:
        """The idempotency key: the same for every attempt, so a medium can drop what it knows. An
        action has the detection's id, by which receivers find what they know of it.
        """
        if self.effect is not None:
            return self.detection
        if self.repeat:
            return content_id("key", self.message, self.peer, self.address, str(self.repeat))
        return content_id("key", self.message, self.peer, self.address)

    @property
    def target(self) -> str:
        """The address without the adapter's name."""
        return self.address.partition(":")[2]

    def to_event(self) -> Event:
        """The delivery as an event of `output.<adapter>`; raises InvalidInput for a message whose
        id cannot be an event's.
        """
        event = Event(
            source="communication",
            id=self.id,
            type=DELIVERY,
            subject=self.message,
            time=self.queued,
            data=_ENCODER.encode(self),
            headers={CAUSE: cause_text(self.message)},
        )
        if len(self.message) > MAX_NAME or not self.message.isprintable():
            check_envelope(event)
        return event

    @staticmethod
    def from_event(event: Event) -> Delivery:
        """The delivery that `to_event` wrote; raises InvalidInput."""
        try:
            return _DECODER.decode(event.data)
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
            raise InvalidInput(
                f"the data of event {event.id!r} cannot be read: {error}", code="event.bad_data"
            ) from None


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Delivery)


@lru_cache(maxsize=16_384)
def _address_mark(address: str) -> str:
    return content_id(address)[:16]


class Sent(msgspec.Struct, frozen=True, tag="handed"):
    """The medium took it; whether it arrived is not known."""

    reference: str = ""


class Confirmed(msgspec.Struct, frozen=True, tag="confirmed"):
    """The other side said that it has it."""

    reference: str = ""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """It did not go; `retry` tells whether trying again can help. `unavailable`: the medium knows
    that it cannot deliver now (no page is open), so that a peer who allows fallback is tried at
    the next address at once; with `retry` this address is tried again later all the same.
    """

    reason: str
    retry: bool
    unavailable: bool = False


Outcome = Sent | Confirmed | Failed


class BrokenOff(Exception):
    """Raised in place of an outcome where a call had to end and nothing may be said of it: the
    dispatch then begins anew at its durable place, as after a crash. For who stands between
    dispatch and medium; an adapter tells a failure.
    """


class OutputAdapter(Protocol):
    """A medium. Stateless: one instance serves all peers, several sends may run at once.

    A class may also say `repeatable = True`: sending the same key twice does no harm, so no mark
    is written before; after a crash it is simply sent again.
    """

    name: str

    async def send(self, delivery: Delivery) -> Outcome | None:
        """Hands the delivery to the medium; None means `Sent()`. Failures are values; an exception,
        or anything else that is returned, is a fault of the adapter and counts as a failure.

        May be cancelled when it takes too long; then nobody knows whether it went.
        """

    async def close(self) -> None:
        """Lets go of connections; a second call is no error."""


@runtime_checkable
class BatchAdapter(Protocol):
    """An output adapter that takes many deliveries at once, where the medium makes that cheaper."""

    keeps_order: bool
    """Whether deliveries of one call arrive in their order: then several of one peer may be in one
    call, else at most one is.
    """

    async def send_many(self, deliveries: Sequence[Delivery]) -> Sequence[Outcome | None] | None:
        """One outcome for each delivery, in their order, or None when all were sent; otherwise as
        `send`.
        """


def check_method(
    subject: object, owner: str, name: str, example: str, arguments: int, *, code: str
) -> None:
    """Raises InvalidInput unless an adapter, or its class, has an async method that takes so many
    arguments. `example` is what to write.
    """
    method = getattr(subject, name, None)
    fault = _method_fault(method, name, arguments + isinstance(subject, type))
    if fault:
        raise InvalidInput(f"{owner}: {fault}", code=code, hint=f"write {example}")


def _method_fault(method: Any, name: str, arguments: int) -> str:
    if not callable(method):
        return f"it has no method {name}"
    try:
        signature = inspect.signature(method)
        signature.bind(*[None] * arguments)
    except TypeError as error:
        return f"{name}{signature} cannot be called: {error}"
    except ValueError:
        return ""  # not written in Python: nothing can be said before it is called
    function = getattr(method, "__func__", method)
    may_wait = any(word in str(signature.return_annotation) for word in _AWAITABLE)
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        return f"{name} is a generator: it yields instead of returning"
    if inspect.isfunction(function) and not inspect.iscoroutinefunction(function) and not may_wait:
        return f"{name} is not async"
    return ""


def is_repeatable(output: OutputAdapter) -> bool:
    """Whether sending the same key again does no harm."""
    return bool(getattr(output, "repeatable", False))


def is_stateful(output: object) -> bool:
    """Whether every peer has an instance of its own; what says nothing is stateless."""
    found = getattr(output, "declared", None)
    return isinstance(found, Declared) and found.stateful
