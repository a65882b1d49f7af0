"""What the site does for a policy's action phrase, and the message it becomes. [CO-1, PO-10,
design 21]"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from rapport.communication.delivering.tracking import CollectiveDelivery, DoneWhen, PeerDelivery
from rapport.communication.effects import Effect, EffectTemplate
from rapport.communication.templates import LONGEST_TEXT, Facts, fill_template, nothing_known
from rapport.core.detection import Detection
from rapport.core.event import Event
from rapport.core.ids import content_id
from rapport.core.message import Identifier, Message
from rapport.core.release import HISTORY, NOTIFY
from rapport.core.times import format_duration, format_time

SENDER = Identifier("component", "policy")


class EscalationStep(msgspec.Struct, frozen=True):
    """Who is asked next, and how long they have to answer; 0 = as long as the action says."""

    receiver: Identifier
    answer_within_ms: int = 0


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One `[actions."phrase"]` of the site file, or what a policy itself says about a phrase."""

    phrase: str
    send_to: Identifier
    """Whom to tell; a component of the phrase's name when `effect` says what is done instead."""
    text: str
    urgent: bool = False
    done_when: DoneWhen = "sent"
    answer_within_ms: int = 0
    """How long a receiver has to answer before the next is asked; 0 = no deadline."""
    escalate: tuple[EscalationStep, ...] = ()
    """Who is asked next, one after the other."""
    repeat_every_ms: int = 0
    """Who has not answered is told again after so long; 0 = not."""
    repeat_most: int = 0
    """How often it is said again; 0 = until the message is done or over."""
    ttl_ms: int = 0
    """After this nobody needs the message any more; 0 = never."""
    reach: CollectiveDelivery | None = None
    """How many of the collective `send_to` have to be reached; None = what it says itself. Who is
    asked next always goes by their own collective."""
    least: int = 0
    """AT_LEAST(k) of the collective `send_to`; 0 = as `reach` or the collective says."""
    peer_delivery: PeerDelivery | None = None
    """By which of their addresses people are told; None = what each of them says."""
    effect: EffectTemplate | None = None

    def texts(self) -> Iterator[tuple[str, str]]:
        """Every text with fields to fill, with the key of the site file it stands at."""
        if self.effect is None:
            yield "text", self.text
        else:
            yield from self.effect.texts()


OwnAction = Callable[[str, str, str], Action | None]
"""Policy, version and phrase to what that policy says about it; None when it says nothing."""


def nothing_said(_policy: str, _version: str, _phrase: str) -> None:
    """Policies leave everything to the site."""


Phrases = Callable[[str, str], Sequence[str]]
"""Policy and version to the phrases of that version's actions."""


def phrases_by(known: Phrases | Mapping[str, Sequence[str]]) -> Phrases:
    """Phrases by policy alone are those of every version."""
    return (lambda policy, _version: known.get(policy, ())) if isinstance(known, Mapping) else known


def same_phrase(text: str) -> str:
    """The phrase as it is compared: blanks and letter case do not matter.

    >>> same_phrase("Raise  alarm")
    'raise alarm'
    """
    return " ".join(text.split()).casefold()


def why_skipped(event: Event, detection: Detection, *, now_ms: int, act_within_ms: int) -> str:
    """Why the actions of a detection are recorded and not carried out; empty: they are. What an
    operator asked for is carried out however old it is.
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
    """How long ago something was, as people say it: two units at most, and none below a second.

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
    facts: Facts = nothing_known,
    *,
    is_late: bool = False,
    effect: Effect | None = None,
    about: str = "",
) -> Message:
    """The message of an action; its id follows from detection, phrase and receiver alone. `about`:
    the id of the event that it is about, where that is not the detection.

    `is_late`: the situation was found long after it was; the text begins with that and with when.
    With an `effect` it says what is done.
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
