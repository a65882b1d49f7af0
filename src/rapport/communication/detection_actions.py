"""Actions of detections: each action phrase of a policy becomes one message, as the policy or the
site declares. The end of a situation stops the messages of its beginning and becomes messages of
its own. [CO-1, CO-7, PO-10, SI-14]

The id of a message or an effect follows from the detection, so that a second attempt is the same
message, the same event and the same call. An event that an action appended has the header
`actionhops`: it keeps policies that feed each other from running for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from rapport.channel.channel import Channels
from rapport.communication.actions import ACTION_HOPS, SENDER, Action, Effect, EffectTemplate
from rapport.communication.content_rules import ContentFault
from rapport.communication.delivery_runner import DeliveryRunner, EngineParts
from rapport.communication.delivery_state import (
    DEFAULT_OPTIONS,
    AddressState,
    CloseMessage,
    DeliveryOptions,
    Member,
)
from rapport.communication.ledger_events import (
    action_event,
    refused_events,
    skipped_events,
    unmapped_event,
)
from rapport.communication.notifications import notify_sender
from rapport.communication.open_situations import EndNotice, OpenSituation
from rapport.communication.records import DeliveryRecord, PartlyHandled
from rapport.communication.texts import (
    DEFAULT_READER,
    LONGEST_TEXT,
    Facts,
    MomentPiece,
    TextPiece,
    TextReader,
    fill_template,
    filled_text,
    no_facts,
    render,
    same_phrase,
    shown_duration,
)
from rapport.communication.transaction import Transaction
from rapport.core.detection import (
    STILL_LASTS,
    Acknowledgement,
    Detection,
    SkippedAction,
    situation_key,
)
from rapport.core.errors import SourceUnavailable
from rapport.core.event import MAX_NAME, Event, content_id
from rapport.core.message import Identifier, Message
from rapport.core.release import HISTORY, LATE, NOTIFY
from rapport.core.times import format_duration, format_time
from rapport.kernel.telemetry import get_logger

_SITUATION_ENDED = "the situation ended"
_log = get_logger(__name__)


class DetectionActions:
    """Begins the messages of detections; a detection makes each message once."""

    def __init__(
        self, transaction: Transaction, runner: DeliveryRunner, parts: EngineParts
    ) -> None:
        self._transaction, self._runner, self._parts = transaction, runner, parts
        self._situations = runner.situations

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
        situation = None if skipped else self._situation(detection, event)
        if situation is not None and situation.end is not None:
            skipped = "not carried out: the situation has ended"
        key = situation.key if situation is not None else ""
        begun: list[str] = []

        def act(phrase: str) -> None:
            if skipped:
                self._skip(phrase, detection, event, now_ms, skipped)
                return
            action = self._mapped_action(phrase, detection, event, now_ms)
            if action is None:
                return
            effect = self._effect(action, detection, now_ms, hops)
            begun.append(
                self._begin(
                    action, detection, event, now_ms, effect, since_ms or now_ms, situation=key
                )
            )

        waiting = self._each(self._parts.phrases_of(detection.policy, detection.version), act)
        if situation is not None:
            kept = {*situation.messages, *filter(self._has_record, begun)}
            self._situations.save(
                replace(situation, messages=tuple(sorted(kept)), is_waiting=waiting is not None)
            )
        _raise_waiting(waiting)

    def _each(self, phrases: Sequence[str], act: Callable[[str], None]) -> SourceUnavailable | None:
        """Acts for each phrase; one whose receiver cannot be looked up now changes nothing, and its
        error is returned.
        """
        waiting: SourceUnavailable | None = None
        for phrase in phrases:
            mark = self._transaction.mark()
            try:
                act(phrase)
            except SourceUnavailable as error:
                self._transaction.roll_back(mark)
                waiting = error
        return waiting

    def _has_record(self, key: str) -> bool:
        return self._runner.records.get(key) is not None

    # --- situations ---

    def _situation(self, detection: Detection, event: Event) -> OpenSituation | None:
        """The record of the situation that begins; None for a policy without a situation."""
        if self._parts.end_phrases_of(detection.policy, detection.version) is None:
            return None
        key = situation_key(detection.policy, detection.bindings, detection.time)
        known = self._situations.get(key)
        return known or OpenSituation(key=key, policy=detection.policy, detection=event.id)

    def end(self, event: Event, now_ms: int, *, hops: int = 0, since_ms: int = 0) -> None:
        """Stops the asking about a situation that ended, and tells the receivers that its `actions
        when cleared` name and everybody who was notified of the beginning. The end of a beginning
        that was not acted on is recorded.

        Raises InvalidInput; PartlyHandled as `handle` does.
        """
        ended = Detection.from_event(event)
        phrases = self._parts.phrases_for(ended)
        situation = self._situations.find(ended.policy, ended.bindings, ended.began or 0)
        skipped = why_end_skipped(event, was_acted_on=situation is not None)
        if skipped or situation is None:
            for phrase in phrases:
                self._skip(phrase, ended, event, now_ms, skipped)
            return
        notified = {peer for key in situation.messages for peer in self._runner.notified(key)}
        reason = f"{_SITUATION_ENDED}: {ended.reason}" if ended.reason else _SITUATION_ENDED
        for key in situation.messages:
            close = CloseMessage("ended", reason)
            self._runner.close(key, close, now_ms=now_ms, cause=event.id)
        waiting = self._tell_end(event, ended, situation, phrases, notified, now_ms, hops, since_ms)
        _raise_waiting(waiting)

    def _tell_end(
        self,
        event: Event,
        ended: Detection,
        situation: OpenSituation,
        phrases: Sequence[str],
        notified: set[str],
        now_ms: int,
        hops: int,
        since_ms: int,
    ) -> SourceUnavailable | None:
        """Begins the messages of an end. Somebody who was notified and is not among the named
        receivers gets the text of the first action that tells somebody.
        """
        told: set[str] = set()
        begun: list[str] = []
        first: list[ActionMessage] = []
        is_late = (since_ms or now_ms) - ended.time > self._parts.act_within_ms

        def act(phrase: str) -> None:
            action = self._mapped_action(phrase, ended, event, now_ms)
            if action is None:
                return
            effect = self._effect(action, ended, now_ms, hops)
            if effect is None:
                members = notified & {*self._runner.member_names(action.send_to, now_ms)}
                if members and action.send_to.kind == "collective":
                    action = replace(action, reach="to-all-members", least=0)
            key = self._begin(
                action,
                ended,
                event,
                now_ms,
                effect,
                since_ms or now_ms,
                conversation=situation.detection,
                is_late=is_late,
            )
            if effect is None:
                told.update(members)
                begun.append(key)
                first.append(self._message(action, ended, event, is_late=is_late))

        waiting = self._each(phrases, act)
        message = None
        if first:
            message = replace(
                first[0].message, id="", receiver=None, conversation=situation.detection
            )
        notice = EndNotice(
            detection=event.id,
            time=ended.time,
            message=message,
            pieces=first[0].pieces if first else (),
            messages=tuple(begun),
        )
        after = replace(situation, end=notice)
        for peer in sorted(notified - told) if waiting is None else ():
            self._notify_person(after, notice, peer, now_ms)
        left = tuple(filter(self._has_record, situation.messages))
        self._situations.save(replace(after, messages=left))
        return waiting

    def notify_late(self, record: DeliveryRecord, peer: str, now_ms: int) -> None:
        """Notifies a person of an end that a medium gave the beginning only after it."""
        situation = self._situations.get(record.situation)
        notice = situation.end if situation is not None else None
        if situation is None or notice is None:
            return
        if any(self._runner.records.member(key, peer) for key in notice.messages):
            return
        self._notify_person(situation, notice, peer, now_ms)

    def _notify_person(
        self, situation: OpenSituation, notice: EndNotice, peer: str, now_ms: int
    ) -> None:
        if notice.message is None:
            return
        to, id = Identifier("peer", peer), content_id("end", notice.detection, peer)
        if self._runner.records.get(id) is not None:
            return
        message = replace(notice.message, id=id, receiver=to)
        about = Detection(policy=situation.policy, time=notice.time, bindings={}, causes=())
        logged = action_event(message, about, notice.detection, "queued", now_ms=now_ms)
        self._transaction.emit("log", logged)
        self._runner.begin(
            message,
            to,
            DEFAULT_OPTIONS,
            key=id,
            sender=str(SENDER),
            time=notice.time,
            sent=now_ms,
            expires=now_ms + message.ttl if message.ttl else 0,
            now_ms=now_ms,
            cause=notice.detection,
            policy=situation.policy,
            detection=notice.detection,
            pieces=notice.pieces,
        )

    def acknowledge(self, event: Event, now_ms: int) -> None:
        """Somebody looks after a situation: nobody is asked any more, and the end is still told.
        Does nothing for one that is not open. Raises InvalidInput.
        """
        acknowledgement = Acknowledgement.from_event(event)
        situation = self._situations.find(
            acknowledgement.policy, acknowledgement.bindings, acknowledgement.began
        )
        if situation is None or situation.end is not None:
            return
        close = CloseMessage("done", f"{acknowledgement.by} looks after it")
        for key in situation.messages:
            self._runner.close(key, close, now_ms=now_ms, cause=event.id)
        self._situations.save(replace(situation, acknowledged_by=acknowledgement.by))

    # --- actions ---

    def _mapped_action(
        self, phrase: str, detection: Detection, event: Event, now_ms: int
    ) -> Action | None:
        """The action of a phrase; notes in the ledger that there is none."""
        action = self._action(phrase, detection)
        if action is None:
            line = unmapped_event(event.id, detection.policy, phrase, now_ms=now_ms)
            self._transaction.emit("log", line)
        return action

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
        declared = self._parts.own_actions(detection.policy, detection.version)
        own = declared.begin if detection.began is None else declared.end
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
        message = message_for(
            action, detection, self._parts.facts, effect=effect, reader=self._parts.reader
        ).message
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

    def _message(
        self,
        action: Action,
        detection: Detection,
        event: Event,
        *,
        effect: Effect | None = None,
        is_late: bool = False,
    ) -> ActionMessage:
        return message_for(
            action,
            detection,
            self._parts.facts,
            is_late=is_late,
            effect=effect,
            about=event.id,
            reader=self._parts.reader,
        )

    def _begin(
        self,
        action: Action,
        detection: Detection,
        event: Event,
        now_ms: int,
        effect: Effect | None,
        since_ms: int,
        *,
        situation: str = "",
        conversation: str = "",
        is_late: bool = False,
    ) -> str:
        """Begins the message of an action and returns its id. `situation`: key of the one that
        begins; `conversation`: that of the beginning, for an end.
        """
        is_late = is_late or LATE in event.headers or event.type == STILL_LASTS
        made = self._message(action, detection, event, effect=effect, is_late=is_late)
        message = made.message
        if self._runner.records.get(message.id) is not None:
            return message.id
        misfit = self._parts.contents.fault(message)
        if misfit is not None and is_late:
            # Content for machines has no room for the remark that it is late.
            made = self._message(action, detection, event, effect=effect)
            message = made.message
            misfit = self._parts.contents.fault(message)
        message = replace(message, conversation=conversation or message.conversation)
        if misfit is not None:
            self._refuse(message, misfit, detection, event, now_ms)
            return message.id
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
            situation=situation,
            pieces=made.pieces,
            effect=effect,
            only=only,
        )
        return message.id

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


def _raise_waiting(waiting: SourceUnavailable | None) -> None:
    if waiting is not None:
        raise PartlyHandled(waiting.message, code=waiting.code, hint=waiting.hint) from waiting


# --- messages and effects of a detection ---


def _options(action: Action) -> DeliveryOptions:
    within = action.answer_within_ms
    return DeliveryOptions(
        done_when=action.done_when,
        answer_within=within,
        reach=action.reach,
        least=action.least,
        escalate=tuple(
            replace(step, answer_within=step.answer_within or within) for step in action.escalate
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
    when, age = format_time(detection.time), shown_duration(now_ms - detection.time)
    limit = format_duration(act_within_ms)
    return f"not carried out: detected for {when}, {age} ago, limit {limit}"


def why_end_skipped(event: Event, *, was_acted_on: bool) -> str:
    """Why the end of a situation is recorded and not told; empty = it is sent, at any age: a person
    who was notified of the beginning is notified of the end.
    """
    if HISTORY in event.headers and NOTIFY not in event.headers:
        return f"not carried out: found in imported history, for {format_time(event.time)}"
    return "" if was_acted_on else "not carried out: nothing was done when the situation began"


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
        if pieces:
            pieces = ("LATE, for ", MomentPiece(detection.time), ": ", *pieces)
            text = render(pieces, reader)[:LONGEST_TEXT]
        else:
            text = f"LATE, for {format_time(detection.time)}: {text}"[:LONGEST_TEXT]
    return ActionMessage(message_saying(action, text, about or detection.id()), pieces)


def message_saying(action: Action, text: str, detection_id: str = "") -> Message:
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
