"""Actions of a site: a phrase of a policy becomes a message or an effect. [CO-1, PO-10]

An effect speaks to machines: it appends an event, calls a web address, or sets context, which is an
event for the node's context broker. The site declares templates; with a detection they become one
effect whose id follows from the detection, so that a second attempt is the same event and the same
call. An event that an action appended has the header `actionhops`: it keeps policies that feed each
other from running for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.delivery_state import CollectiveDelivery, DoneWhen, PeerDelivery
from rapport.communication.peers import shown_address
from rapport.communication.rendering import DEFAULT_READER, TextPiece, TextReader
from rapport.communication.texts import (
    LONGEST_TEXT,
    Facts,
    fill_template,
    filled_text,
    no_facts,
)
from rapport.core.detection import Detection
from rapport.core.event import MAX_NAME, Event
from rapport.core.ids import content_id
from rapport.core.message import Identifier, Message
from rapport.core.release import HISTORY, NOTIFY
from rapport.core.times import format_duration, format_time

EffectKind = Literal["append", "webhook"]
"""Both are also names of the adapters that carry them out."""

MOST_HOPS = 5
"""Actions that may follow from each other before one is refused, by default."""

SENDER = Identifier("component", "policy")
Phrases = Callable[[str, str], Sequence[str]]
"""Policy and version to the phrases of that version's actions."""
EndPhrases = Callable[[str, str], Sequence[str] | None]
"""Policy and version to the phrases of `actions when cleared`, None without a situation."""
ACTION_HOPS = "actionhops"


class EffectTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of an effect; texts in `subject` and `data` name fields of the detection."""

    kind: EffectKind
    target: str
    """A channel or a web address."""
    type: str
    subject: str = ""
    data: Any = None
    """None = the detection itself."""
    most_hops: int = MOST_HOPS

    @property
    def address(self) -> str:
        """Adapter and target, as deliveries name them."""
        return f"{self.kind}:{self.target}"

    def texts(self) -> Iterator[tuple[str, str]]:
        """Every text with fields to fill, with its key in the site file."""
        yield "subject", self.subject
        yield from (("data", text) for text in _texts(self.data))


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """An effect of one detection, ready to be carried out."""

    kind: EffectKind
    id: str
    target: str
    type: str
    subject: str
    time: int
    """When the action was begun, the same for every attempt. Not the time of the situation: other
    policies have decided that time already, so that an event of it would come too late for them."""
    data: str
    """JSON."""
    hops: int = 0
    """How many actions led here, this one included."""
    most_hops: int = MOST_HOPS

    def shown(self) -> str:
        """The effect in one line; web addresses without secrets."""
        if self.kind == "webhook":
            return f"call {shown_address(f'webhook:{self.target}').partition(':')[2]}"
        about = f" about {self.subject}" if self.subject else ""
        return f"append {self.type}{about} to {self.target}"


def effect_of(
    template: EffectTemplate,
    phrase: str,
    detection: Detection,
    facts: Facts,
    *,
    now_ms: int,
    hops: int = 0,
) -> Effect:
    """The effect for one detection; `hops` is how many actions led to it."""
    detection_id = detection.id()
    found = template.data is None
    data = _as_found(detection) if found else _filled(template.data, detection, facts)
    return Effect(
        kind=template.kind,
        id=content_id("action", detection_id, phrase, template.address),
        target=template.target,
        type=template.type,
        subject=fill_template(template.subject, detection, facts)[:MAX_NAME],
        time=now_ms,
        data=msgspec.json.encode(data).decode(),
        hops=hops + 1,
        most_hops=template.most_hops,
    )


def _as_found(detection: Detection) -> dict[str, Any]:
    return {
        "policy": detection.policy,
        "time": detection.time,
        "detection": detection.id(),
        "bindings": detection.bindings,
    }


def _filled(value: Any, detection: Detection, facts: Facts) -> Any:
    """Texts with their fields filled in; everything else unchanged."""
    match value:
        case str():
            return fill_template(value, detection, facts)
        case dict():
            return {key: _filled(item, detection, facts) for key, item in value.items()}
        case list():
            return [_filled(item, detection, facts) for item in value]
        case _:
            return value


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for item in value.values():
                yield from _texts(item)
        case list():
            for item in value:
                yield from _texts(item)


class EscalationStep(msgspec.Struct, frozen=True):
    """The next receiver and its time to answer; 0 = that of the action."""

    receiver: Identifier
    answer_within_ms: int = 0


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One `[actions."phrase"]` of the site file, or the declaration of a policy."""

    phrase: str
    send_to: Identifier
    """The receiver; for an `effect` a component with the name of the phrase."""
    text: str
    urgent: bool = False
    done_when: DoneWhen = "sent"
    answer_within_ms: int = 0
    """Time of a receiver to answer before the escalation; 0 = no deadline."""
    escalate: tuple[EscalationStep, ...] = ()
    """The next receivers, one after the other."""
    repeat_every_ms: int = 0
    """Interval of repeats to members that do not answer; 0 = none."""
    repeat_most: int = 0
    """How often it is repeated; 0 = until the message is closed."""
    ttl_ms: int = 0
    """Time to live of the message; 0 = for ever."""
    reach: CollectiveDelivery | None = None
    """Delivery policy for the collective `send_to`; None = its own. Receivers of an escalation
    always use their own.
    """
    least: int = 0
    """AT_LEAST(k) of the collective `send_to`; 0 = as `reach` or the collective says."""
    peer_delivery: PeerDelivery | None = None
    """Which addresses of a peer are used; None = as each peer says."""
    effect: EffectTemplate | None = None

    def texts(self) -> Iterator[tuple[str, str]]:
        """Every text with fields to fill, with its key in the site file."""
        if self.effect is None:
            yield "text", self.text
        else:
            yield from self.effect.texts()


OwnAction = Callable[[str, str, str], Action | None]
"""Policy, version and phrase to the action that the policy declares, or None."""


def no_own_action(_policy: str, _version: str, _phrase: str) -> None:
    """Policies declare no actions of their own."""


def same_phrase(text: str) -> str:
    """The phrase as it is compared: blanks and letter case do not matter.

    >>> same_phrase("Raise  alarm")
    'raise alarm'
    """
    return " ".join(text.split()).casefold()


def why_skipped(event: Event, detection: Detection, *, now_ms: int, act_within_ms: int) -> str:
    """Why the actions of a detection are recorded and not carried out; empty = they are carried
    out. Those that an operator asks for are carried out at any age.
    """
    if NOTIFY in event.headers:
        return ""
    when = format_time(detection.time)
    if HISTORY in event.headers:
        return f"not carried out: found in imported history, for {when}"
    if now_ms - detection.time <= act_within_ms:
        return ""
    return too_old_text(detection, now_ms, act_within_ms)


def too_old_text(detection: Detection, now_ms: int, act_within_ms: int) -> str:
    """Why the actions of a detection that is too old are not carried out."""
    when, age = format_time(detection.time), shown_age(now_ms - detection.time)
    limit = format_duration(act_within_ms)
    return f"not carried out: detected for {when}, {age} ago, limit {limit}"


def why_end_skipped(event: Event, *, was_acted_on: bool) -> str:
    """Why the end of a situation is recorded and not told; empty = it is told, at any age:
    whoever was notified of the beginning is told of the end.
    """
    if HISTORY in event.headers and NOTIFY not in event.headers:
        return f"not carried out: found in imported history, for {format_time(event.time)}"
    return "" if was_acted_on else "not carried out: nothing was done when the situation began"


def shown_age(age_ms: int) -> str:
    """An age in words: two units at most, none below a second.

    >>> shown_age(11_100_000), shown_age(601_000), shown_age(22_500_000_000)
    ('3 h 5 min', '10 min 1 s', '260 d 10 h')
    """
    left, parts = age_ms // 1_000, []
    for seconds, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        count, left = divmod(left, seconds)
        parts.append(f"{count} {unit}" if count else "")
    first = next((place for place, part in enumerate(parts) if part), len(parts) - 1)
    return " ".join(part for part in parts[first : first + 2] if part) or "0 s"


class ActionMessage(msgspec.Struct, frozen=True):
    """The message of an action, and the pieces of its text for readers in other zones."""

    message: Message
    pieces: tuple[TextPiece, ...] = ()


def message_for(
    action: Action,
    detection: Detection,
    facts: Facts = no_facts,
    *,
    is_late: bool = False,
    effect: Effect | None = None,
    about: str = "",
    reader: TextReader = DEFAULT_READER,
) -> ActionMessage:
    """The message of an action as the site's `reader` sees it; its id follows from detection,
    phrase and receiver alone. `about`: the id of the event that it concerns, where that is not the
    detection.

    `is_late`: the situation was found long after it occurred; the text begins with its time. The
    text of an `effect` describes it.
    """
    pieces: tuple[TextPiece, ...] = ()
    if effect is not None:
        text = effect.shown()
    else:
        text, pieces = filled_text(action.text, detection, facts, reader)
    if is_late:
        remark = f"LATE, for {format_time(detection.time)}: "
        text = f"{remark}{text}"[:LONGEST_TEXT]
        pieces = (remark, *pieces) if pieces else ()
    return ActionMessage(message_saying(action, text, about or detection.id()), pieces)


def message_saying(action: Action, text: str, detection_id: str = "") -> Message:
    """The message of an action with that content."""
    return Message(
        type="NOTIFICATION" if action.effect is None else "ACTION",
        subtype=action.phrase,
        sender=SENDER,
        id=content_id("message", detection_id, action.phrase, str(action.send_to)),
        receiver=action.send_to,
        conversation=detection_id,
        content=text,
        ttl=action.ttl_ms,
        urgent=action.urgent,
    )


async def hops_before(channels: Channels, detection: Event) -> int:
    """The most actions that led to one of a detection's causes; one look-up for each."""
    found = [await channels.find_event(id) for id in detection.causes()]
    return max((hops_of(stored.event) for held in found for _, stored in held), default=0)


def hops_of(event: Event) -> int:
    """The number in the header; 0 when it is absent or no number.

    >>> hops_of(Event("s", "1", "t", "", 0, headers={"actionhops": "2"}))
    2
    """
    text = event.headers.get(ACTION_HOPS, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
