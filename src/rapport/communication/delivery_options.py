"""Options that an application may set for a delivery beyond the fields of a message.
[CO-8, CO-15]

They stand in the message's event of `input` as `wishes`; only those of applications count.
"""

from __future__ import annotations

import msgspec

from rapport.communication.delivery_state import (
    CollectiveDelivery,
    DoneWhen,
    NextReceiver,
    PeerDelivery,
)
from rapport.core.errors import InvalidInput
from rapport.core.event import Event
from rapport.core.json_objects import ObjectDecoder
from rapport.core.message import Identifier

_MARK = b',"wishes":'
LEAST_REPEAT_MS = 1_000
"""Least interval of repeats."""
_TOO_MUCH = 2**53
"""Limit of numbers and durations: more cannot be added to a time and stored."""


class DeliveryOptions(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Options of a delivery; durations in ms. AT_LEAST(k), escalation and repeats count answers by
    default.
    """

    done_when: DoneWhen | None = None
    answer_within: int = 0
    reach: CollectiveDelivery | None = None
    least: int = 0
    escalate: tuple[NextReceiver, ...] = ()
    repeat_every: int = 0
    repeat_most: int = 0
    peer_delivery: PeerDelivery | None = None

    def counts(self) -> DoneWhen:
        """When a member counts as done."""
        awaits = self.answer_within or self.least or self.escalate or self.repeat_every
        return self.done_when or ("answered" if awaits else "sent")


DEFAULT_OPTIONS = DeliveryOptions()


class _EventOptions(msgspec.Struct):
    wishes: DeliveryOptions = DEFAULT_OPTIONS


_DECODER = msgspec.json.Decoder(_EventOptions)
_POSTED = ObjectDecoder(
    DeliveryOptions,
    fault="its wishes cannot be read",
    code="message.bad_wishes",
    hint='such as {"least": 3, "answer_within": 600000}, durations in ms',
)


def read_options(body: bytes) -> DeliveryOptions:
    """The options as an application writes them, none for an empty body; raises InvalidInput."""
    return _POSTED.decode(body) if body else DEFAULT_OPTIONS


def with_options(event: Event, options: DeliveryOptions) -> Event:
    """A message's event with options of its delivery. Raises InvalidInput for invalid options."""
    check_options(options)
    data = msgspec.json.decode(event.data) | {"wishes": options}
    return msgspec.structs.replace(event, data=msgspec.json.encode(data))


def may_have_options(data: bytes) -> bool:
    """Whether `options_of` may find options in these data; costs nothing."""
    # Options come last, and nothing else in a message is an object.
    return data.endswith(b"}}")


def options_of(event: Event) -> DeliveryOptions:
    """The options in a message's event; free where there are none. Raises InvalidInput for invalid
    options: not every event was written by `with_options`.
    """
    if not may_have_options(event.data) or _MARK not in event.data:
        return DEFAULT_OPTIONS
    try:
        options: DeliveryOptions = _DECODER.decode(event.data).wishes
    except msgspec.DecodeError as error:
        raise InvalidInput(f"its wishes cannot be read: {error}", code="event.bad_data") from None
    check_options(options)
    return options


def check_options(options: DeliveryOptions) -> None:
    """Raises InvalidInput for invalid options."""
    numbers = [options.answer_within, options.least, options.repeat_every, options.repeat_most]
    numbers += [step.answer_within for step in options.escalate]
    if min(numbers) < 0 or max(numbers) >= _TOO_MUCH:
        raise InvalidInput(
            "numbers and durations of a delivery are not negative, and less than 2**53",
            code="message.bad_wishes",
            hint="durations are in milliseconds; 0 or nothing means without an end",
        )
    if 0 < options.repeat_every < LEAST_REPEAT_MS:
        raise InvalidInput(
            f"a message cannot be repeated every {options.repeat_every} ms",
            code="message.bad_wishes",
            hint=f"give a repeat_every of at least {LEAST_REPEAT_MS} ms",
        )
    if options.repeat_most and not options.repeat_every:
        raise InvalidInput(
            "it says how often a message is repeated, but not how far apart",
            code="message.bad_wishes",
            hint="give repeat_every, too",
        )
    for step in options.escalate:
        if Identifier.parse(step.receiver).kind == "component":
            raise InvalidInput(
                f"{step.receiver} cannot be asked by escalation",
                code="message.bad_wishes",
                hint="name a peer or a collective",
            )
