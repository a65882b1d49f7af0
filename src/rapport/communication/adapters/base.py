"""The contract of output adapters: deliveries go in, outcomes come out. [CO-1, CO-4, CO-16, UX-4]

Adapters know nothing of policies, channels or retries. A new medium is one file with one class that
implements `OutputAdapter` and is declared with `@adapter(...)`; it is registered by
`Outputs.register` or as an entry point `rapport.adapters`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from rapport.communication.actions import Effect
from rapport.core.errors import InvalidInput
from rapport.core.event import CAUSE, MAX_NAME, Event, cause_text, check_envelope, content_id
from rapport.core.times import format_time
from rapport.kernel.config_fields import Fields
from rapport.kernel.settings import read_secret

DELIVERY = "rapport.output.delivery"
LONGEST_ID = 240
_AWAITABLE_KINDS = ("Awaitable", "Coroutine", "Future", "Task")
"""Return annotations of plain functions whose result is awaited."""
Class = TypeVar("Class", bound=type)


class AdapterDeclaration(msgspec.Struct, frozen=True):
    """The name that addresses begin with, and whether every peer has an instance of its own."""

    name: str
    stateful: bool = False


def adapter(name: str, *, stateful: bool = False) -> Callable[[Class], Class]:
    """Declares a class as an adapter. Stateless: one instance serves all peers, several sends may
    run at once. Stateful: each peer has its own, made on first use with the peer's address.

    >>> @adapter("pager")
    ... class Pager: ...
    >>> declaration_of(Pager)
    AdapterDeclaration(name='pager', stateful=False)
    """

    def declare(kind: Class) -> Class:
        kind.declared = AdapterDeclaration(name, stateful)  # type: ignore[attr-defined]
        kind.name = name  # type: ignore[attr-defined]
        return kind

    return declare


def declaration_of(kind: object) -> AdapterDeclaration:
    """The declaration of a class or of an instance's class; raises InvalidInput."""
    found = getattr(kind, "declared", None)
    if isinstance(found, AdapterDeclaration):
        return found
    shown = kind.__name__ if isinstance(kind, type) else type(kind).__name__
    raise InvalidInput(
        f"{shown} is not declared as an adapter",
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
    """One attempt to send a message to one address; encoded with the message's own field names."""

    message: str
    peer: str
    address: str
    """Adapter and parameters: `mail:ana@example.org`."""
    attempt: int
    text: str
    policy: str = ""
    detection: str = ""
    time: int = 0
    """The time of the situation, ms UTC."""
    sent: int = 0
    """When the message was sent, ms UTC; 0 = at `time`."""
    queued: int = 0
    """When this attempt was queued, ms UTC."""
    expires: int = 0
    """When it expires, ms UTC; 0 = never."""
    urgent: bool = False
    wants_answer: bool = False
    effect: Effect | None = None
    """The effect of an action that sends no message."""
    type: str = ""
    subtype: str = ""
    sender: str = ""
    """As `kind:name`; with the next fields as in the message."""
    rule_sender: str = ""
    """The sender that privacy policies see, where it differs."""
    conversation: str = ""
    language: str = ""
    refers_to: str = ""
    plain: bool = False
    """Sent by the fast path: there is no record of it, so its outcome is reported with the whole
    delivery.
    """
    acknowledge: bool = False
    """The sender of a fast-path delivery is notified when it is sent."""
    repeat: int = 0
    """How often it was repeated because nobody answered; a repetition is meant to be seen, so it
    has an idempotency key of its own."""
    case: str = ""
    """The engine's record that gets the outcome; empty = the message's own."""
    share: str = ""
    """Of several engines the share that keeps that record."""

    @property
    def id(self) -> str:
        """Identifies this attempt, also when it is written again after a crash. The address is in
        it as a digest only, as it may hold secrets. An additional receiver's case has attempts of
        its own, perhaps to the same address; they have other ids.
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
        """The idempotency key: the same for every attempt, so that a medium can drop repetitions.
        That of an action is the detection's id.
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
    """The medium accepted it; whether it arrived is not known."""

    reference: str = ""


class Confirmed(msgspec.Struct, frozen=True, tag="confirmed"):
    """The receiving side confirmed it."""

    reference: str = ""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """It was not sent; `retry`: trying again can help. `unavailable`: the medium knows that it
    cannot deliver now (no page is open), so a peer that allows fallback is tried at the next
    address at once; with `retry` this address is tried again later all the same.
    """

    reason: str
    retry: bool
    unavailable: bool = False


Outcome = Sent | Confirmed | Failed


class SendInterrupted(Exception):
    """Raised instead of an outcome when a call had to end and its result must not count: the
    dispatch restarts at its durable position, as after a crash. Not for adapters, which return
    `Failed`.
    """


class OutputAdapter(Protocol):
    """A medium. Stateless: one instance serves all peers, several sends may run at once.

    A class may also say `repeatable = True`: sending the same key twice does no harm, so no mark
    is written before; after a crash it is simply sent again.
    """

    name: str

    async def send(self, delivery: Delivery) -> Outcome | None:
        """Sends the delivery; None means `Sent()`. Failures are values; an exception, or any other
        return value, is a fault of the adapter and counts as a failure.

        May be cancelled when it takes too long; then nobody knows whether it went.
        """

    async def close(self) -> None:
        """Closes connections; a second call is no error."""


@runtime_checkable
class BatchAdapter(Protocol):
    """An output adapter whose medium takes many deliveries at once."""

    keeps_order: bool
    """Whether deliveries of one call arrive in order: then one call may hold several of one peer,
    else at most one.
    """

    async def send_many(self, deliveries: Sequence[Delivery]) -> Sequence[Outcome | None] | None:
        """One outcome for each delivery, in order, or None when all were sent;
        otherwise as `send`.
        """


def check_method(
    subject: object, owner: str, name: str, example: str, arguments: int, *, code: str
) -> None:
    """Raises InvalidInput unless an adapter, or its class, has an async method that takes this many
    arguments. `example` is the right signature.
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
        return ""  # not written in Python: cannot be checked before it is called
    function = getattr(method, "__func__", method)
    may_wait = any(word in str(signature.return_annotation) for word in _AWAITABLE_KINDS)
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        return f"{name} is a generator: it yields instead of returning"
    if inspect.isfunction(function) and not inspect.iscoroutinefunction(function) and not may_wait:
        return f"{name} is not async"
    return ""


def is_repeatable(output: OutputAdapter) -> bool:
    """Whether sending the same key again does no harm."""
    return bool(getattr(output, "repeatable", False))


def is_stateful(output: object) -> bool:
    """Whether every peer has an instance of its own."""
    found = getattr(output, "declared", None)
    return isinstance(found, AdapterDeclaration) and found.stateful


TokenFor = Callable[[str, str], str]
"""Message and peer to the token that proves an answer; see `answers.answer_token`."""


def no_token(_message: str, _peer: str) -> str:
    """For a node without answer tokens."""
    return ""


def delivery_json(delivery: Delivery, proof: str = "") -> bytes:
    """The delivery as JSON of the source's listing 1, for media that machines read, with the
    idempotency `key` and with `answer`, the token that proves an answer. The bytes are the same for
    every attempt.
    """
    needed = {
        "id": delivery.message,
        "type": delivery.type or "NOTIFICATION",
        "subtype": delivery.subtype or delivery.policy,
        "sender": delivery.sender or "component:policy",
        "receiver": f"peer:{delivery.peer}",
        "content": delivery.text,
        "urgent": delivery.urgent,
        "key": delivery.key,
        "time": format_time(delivery.time),
        "wants-answer": delivery.wants_answer,
    }
    perhaps = {
        "conversation-id": delivery.conversation,
        "language": delivery.language,
        "refers-to": delivery.refers_to,
        "answer": proof,
    }
    return msgspec.json.encode(needed | {key: text for key, text in perhaps.items() if text})


class AbsentAdapter:
    """Stands for an adapter that the site no longer has. Fails every delivery, so that it goes to
    another address or receiver: for good, or for now where an application may register the adapter
    after a restart.
    """

    def __init__(self, name: str, *, may_return: bool = False) -> None:
        self.name, self._may_return = name, may_return

    async def send(self, delivery: Delivery) -> Outcome:
        if self._may_return:
            reason = f"adapter.unknown: the adapter {self.name!r} is not registered yet"
            return Failed(reason, retry=True, unavailable=True)
        return Failed(
            f"adapter.unknown: the site has no adapter {self.name!r} any more", retry=False
        )

    async def close(self) -> None: ...


class OtherEngineAdapter(AbsentAdapter):
    """Stands for an adapter that only another of several engines was given: deliveries wait for it
    to be registered here, too, or go to another address.
    """

    async def send(self, delivery: Delivery) -> Outcome:
        return Failed(
            f"adapter.elsewhere: this engine was not given the adapter {self.name!r}; register it "
            "in every process, or install it as a plug-in (rapport.adapters)",
            retry=True,
            unavailable=True,
        )


def read_secret_field(key: str, table: Fields, directory: Path) -> str:
    """The secret that `key` names (`file:PATH`, `env:NAME`); empty when it is absent or faulty."""
    text = table.text(key, "")
    if not text:
        return ""
    try:
        return read_secret(text, directory)
    except InvalidInput as error:
        table.report(key, error)
        return ""
