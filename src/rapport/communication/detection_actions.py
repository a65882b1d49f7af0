"""Actions of detections: each action phrase of a policy becomes one message, as the policy or the
site declares. [CO-1, CO-7, PO-10]

The id of a message or an effect follows from the detection, so that a second attempt is the same
message, the same event and the same call. An event that an action appended has the header
`actionhops`: it keeps policies that feed each other from running for ever.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.actions import ACTION_HOPS, SENDER, Action, Effect, EffectTemplate
from rapport.communication.content_rules import ContentFault
from rapport.communication.delivery_runner import DeliveryRunner, EngineParts
from rapport.communication.delivery_state import (
    AddressState,
    DeliveryOptions,
    Member,
    NextReceiver,
)
from rapport.communication.ledger_events import (
    action_event,
    refused_events,
    skipped_events,
    unmapped_event,
)
from rapport.communication.notifications import notify_sender
from rapport.communication.records import PartlyHandled
from rapport.communication.texts import LONGEST_TEXT, Facts, fill_template, no_facts, same_phrase
from rapport.communication.transaction import Transaction
from rapport.core.detection import STILL_LASTS, Detection, SkippedAction
from rapport.core.errors import SourceUnavailable
from rapport.core.event import MAX_NAME, Event, content_id
from rapport.core.message import Message
from rapport.core.release import HISTORY, LATE, NOTIFY
from rapport.core.times import format_duration, format_time
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)


class DetectionActions:
    """Begins the messages of detections; a detection makes each message once."""

    def __init__(
        self, transaction: Transaction, runner: DeliveryRunner, parts: EngineParts
    ) -> None:
        self._transaction, self._runner, self._parts = transaction, runner, parts

    def handle(
        self,
        event: Event,
        now_ms: int,
        *,
        hops: int = 0,
        since_ms: int = 0,
        any_age: bool = False,
    ) -> None:
        """Carries out the actions of one detection, or records that it is too old for that. `hops`:
        how many actions led to it; `since_ms`: when it was first tried, if before now; `any_age`:
        an operator asks for it, however old it is.

        Raises InvalidInput; PartlyHandled when a receiver cannot be looked up now: the other
        actions stay, and are not carried out twice.
        """
        detection = Detection.from_event(event)
        skipped = ""
        if not any_age:
            skipped = why_skipped(
                event, detection, now_ms=since_ms or now_ms, act_within_ms=self._parts.act_within_ms
            )
        waiting: SourceUnavailable | None = None
        for phrase in self._parts.phrases_of(detection.policy, detection.version):
            mark = self._transaction.mark()
            try:
                if skipped:
                    self._skip(phrase, detection, event, now_ms, skipped)
                else:
                    self._act(phrase, detection, event, now_ms, hops, since_ms or now_ms)
            except SourceUnavailable as error:
                self._transaction.roll_back(mark)
                waiting = error
        if waiting is not None:
            raise PartlyHandled(waiting.message, code=waiting.code, hint=waiting.hint) from waiting

    def _act(
        self,
        phrase: str,
        detection: Detection,
        event: Event,
        now_ms: int,
        hops: int,
        since_ms: int,
    ) -> None:
        action = self._action(phrase, detection)
        if action is None:
            line = unmapped_event(event.id, detection.policy, phrase, now_ms=now_ms)
            self._transaction.emit("log", line)
        else:
            effect = self._effect(action, detection, now_ms, hops)
            self._begin(action, detection, event, now_ms, effect, since_ms)

    def record_skipped(self, event: Event, now_ms: int) -> None:
        """Records an action that the policy engine did not carry out; raises InvalidInput."""
        skipped = SkippedAction.from_event(event)
        detection = skipped.detection
        reason = too_old_text(detection, skipped.found_ms, skipped.limit_ms)
        action = Action(phrase=skipped.phrase, send_to=SENDER, text=skipped.phrase)
        message = message_saying(action, action.text, detection.id())
        for line in skipped_events(message, detection, event.id, reason, now_ms=now_ms):
            self._transaction.emit("log", line)

    def _action(self, phrase: str, detection: Detection) -> Action | None:
        own = self._parts.own_actions(detection.policy, detection.version)
        named = same_phrase(phrase)
        return own.get(named) or self._parts.actions.get(named)

    def _skip(
        self, phrase: str, detection: Detection, event: Event, now_ms: int, reason: str
    ) -> None:
        """Records an action that is not carried out."""
        action = self._action(phrase, detection)
        if action is None:
            return
        effect = self._effect(action, detection, now_ms, 0)
        message = message_for(action, detection, self._parts.facts, effect=effect)
        if self._runner.records.get(message.id) is None:
            for line in skipped_events(message, detection, event.id, reason, now_ms=now_ms):
                self._transaction.emit("log", line)

    def _effect(
        self, action: Action, detection: Detection, now_ms: int, hops: int
    ) -> Effect | None:
        if action.effect is None:
            return None
        return effect_of(
            action.effect, action.phrase, detection, self._parts.facts, now_ms=now_ms, hops=hops
        )

    def _begin(
        self,
        action: Action,
        detection: Detection,
        event: Event,
        now_ms: int,
        effect: Effect | None,
        since_ms: int,
    ) -> None:
        is_late = LATE in event.headers or event.type == STILL_LASTS
        about, facts = event.id, self._parts.facts
        message = message_for(action, detection, facts, is_late=is_late, effect=effect, about=about)
        if self._runner.records.get(message.id) is not None:
            return
        misfit = self._parts.contents.fault(message)
        if misfit is not None and is_late:
            # Content for machines has no room for the remark that it is late.
            message = message_for(action, detection, facts, effect=effect, about=about)
            misfit = self._parts.contents.fault(message)
        if misfit is not None:
            self._refuse(message, misfit, detection, event, now_ms)
            return
        logged = action_event(message, detection, event.id, "queued", now_ms=now_ms)
        self._transaction.emit("log", logged)
        only = None
        if effect is not None and action.effect is not None:
            only = Member(peer=str(action.send_to), tries=[AddressState(action.effect.address)])
        self._runner.begin(
            message,
            action.send_to,
            _options(action),
            key=message.id,
            sender=str(SENDER),
            time=detection.time,
            sent=now_ms,
            expires=since_ms + action.ttl_ms if action.ttl_ms else 0,
            now_ms=now_ms,
            cause=event.id,
            policy=detection.policy,
            detection=event.id,
            effect=effect,
            only=only,
        )

    def _refuse(
        self,
        message: Message,
        misfit: ContentFault,
        detection: Detection,
        event: Event,
        now_ms: int,
    ) -> None:
        """Records an action whose content does not fit the schema of its type, and notifies."""
        place = f"policy {detection.policy!r}, action {message.subtype!r}"
        _log.error(
            "content of an action refused",
            code=misfit.code,
            policy=detection.policy,
            action=message.subtype,
            place=misfit.place,
            error=misfit.message,
            hint=misfit.hint,
        )
        reason = f"{misfit.code}: {place}: {misfit.message}"
        for line in refused_events(message, detection, event.id, reason, now_ms=now_ms):
            self._transaction.emit("log", line)
        notify_sender(self._transaction, str(SENDER), message.id, "comerror", reason, now_ms=now_ms)


# --- messages and effects of a detection ---


def _options(action: Action) -> DeliveryOptions:
    within = action.answer_within_ms
    return DeliveryOptions(
        done_when=action.done_when,
        answer_within=within,
        reach=action.reach,
        least=action.least,
        escalate=tuple(
            NextReceiver(str(step.receiver), step.answer_within_ms or within)
            for step in action.escalate
        ),
        repeat_every=action.repeat_every_ms,
        repeat_most=action.repeat_most,
        peer_delivery=action.peer_delivery,
    )


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


def message_for(
    action: Action,
    detection: Detection,
    facts: Facts = no_facts,
    *,
    is_late: bool = False,
    effect: Effect | None = None,
    about: str = "",
) -> Message:
    """The message of an action; its id follows from detection, phrase and receiver alone. `about`:
    the id of the event that it concerns, where that is not the detection.

    `is_late`: the situation was found long after it occurred; the text begins with its time. The
    text of an `effect` describes it.
    """
    text = effect.shown() if effect else fill_template(action.text, detection, facts)
    if is_late:
        text = f"LATE, for {format_time(detection.time)}: {text}"[:LONGEST_TEXT]
    return message_saying(action, text, about or detection.id())


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
