"""The delivery lines below an action: receivers, text, answers, repetition and duration. [PO-3,
PO-10, CO-8]

The site checks names, because it knows peers and collectives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from rapport.core.errors import nearest_names
from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.language.lexer import SyntaxFault, Token, TokenCursor, tokenize_line
from rapport.policy.language.quantities import Timing, read_duration
from rapport.policy.language.tree import Action, Delivery, SourceSpan

Reach = Literal["anybody", "everybody"]
Ways = Literal["preferred", "all", "any"]
_MOST_ANSWERS = 100_000
_MOST_REPEATS = 1_000
_LEAST_REPEAT_MS = 1_000
_ANSWER = Timing("a time to answer", "policy.bad_duration", "answer within 60 s")
_UNTIL = Timing("a duration", "policy.bad_duration", "until 30 min")
_THEN = Timing("a time to answer", "policy.bad_duration", "then next-town within 10 min")
_REPEAT = Timing("a duration", "policy.bad_duration", "repeat every 2 min")
LINES = (
    "to guards",
    "then security-leads",
    "then next-town within 10 min",
    "first answer wins",
    "any 3 answer",
    "at least 3",
    "everybody",
    "everybody answers",
    "answer within 60 s",
    "repeat every 2 min",
    "repeat every 2 min at most 5 times",
    "by their preferred way",
    "on all channels",
    "on any channel",
    "urgent",
    "not urgent",
    'say "guest {A} is alone in {R}"',
    "until 30 min",
)
"""An example of each line."""


class Receiver(msgspec.Struct, frozen=True):
    """A peer or a collective; `kind` is empty where the policy does not say which."""

    kind: Literal["", "peer", "collective"]
    name: str
    place: SourceSpan


class Escalation(msgspec.Struct, frozen=True):
    """The next receiver when the one before did not answer, and the time to answer; 0 = that of the
    action.
    """

    receiver: Receiver
    within_ms: int = 0


class DeliveryBlock(msgspec.Struct, kw_only=True):
    """The delivery options of one action; None and empty values are left to the site."""

    to: Receiver | None = None
    then: list[Escalation] = []
    reach: Reach | None = None
    least: int = 0
    """Number of answers needed; 0 where `reach` or the site decides."""
    reach_place: SourceSpan | None = None
    awaits_answer: bool = False
    answer_within_ms: int | None = None
    urgent: bool | None = None
    say: str | None = None
    say_place: SourceSpan | None = None
    until_ms: int | None = None
    repeat_every_ms: int | None = None
    repeat_most: int = 0
    """Maximum number of repetitions; 0 = until the message is done or expired."""
    repeat_place: SourceSpan | None = None
    ways: Ways | None = None
    """Which addresses of a receiver are used."""

    def receivers(self) -> list[Receiver]:
        first = [self.to] if self.to is not None else []
        return [*first, *(each.receiver for each in self.then)]


def read_delivery(action: Action, faults: Diagnostics) -> DeliveryBlock:
    """Parses the lines below an action; reports faults and continues with the next line."""
    block, places = DeliveryBlock(), dict[str, SourceSpan]()
    for line in action.delivery:
        try:
            _read_line(line, block, places, faults)
        except SyntaxFault as fault:
            faults.add(fault.code, fault.message, fault.place, hint=fault.hint)
    return block


def _read_line(
    line: Delivery, block: DeliveryBlock, places: dict[str, SourceSpan], faults: Diagnostics
) -> None:
    # Leading blanks keep the columns of the policy.
    shifted = " " * (line.place.column - 1) + line.text
    before = faults.count
    tokens = tokenize_line(shifted, line.place.line, faults)
    if faults.count != before or not tokens:
        return
    cursor = TokenCursor(tokens)
    for words, read in _READERS.items():
        if cursor.reads(*words):
            for _word in words:
                cursor.take()
            key = read(cursor, block)
            block.reach_place = line.place if key == "reach" else block.reach_place
            _check_end(cursor, words)
            if key in places and key != "then":
                message = f"line {places[key].line} already sets this"
                raise SyntaxFault("policy.delivery_twice", message, line.place, "leave one out")
            places[key] = line.place
            return
    raise _unknown(line)


def _unknown(line: Delivery) -> SyntaxFault:
    beginnings = [" ".join(words) for words in _READERS]
    written = " ".join(line.text.lower().split()[:2])
    near = nearest_names(written, beginnings, limit=1)
    near = near or nearest_names(written.split()[0], beginnings, limit=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(LINES)}"
    message = "this is not a delivery line"
    return SyntaxFault("policy.unknown_delivery", message, line.place, hint)


def _check_end(cursor: TokenCursor, words: tuple[str, ...]) -> None:
    more = cursor.peek()
    if more is None:
        return
    hint = f"{' '.join(words)!r} ends before it; put more into a line of its own"
    if (more.kind == "mark" and more.text == ",") or more.text.lower() == "and":
        hint = "name one; several under one name are a collective of the site"
    raise cursor.fault("policy.delivery_too_long", f"{more.text!r} is too much here", hint=hint)


# --- one function per line; each returns the key that may occur once ---


def _setting(key: str, **values: object) -> Callable[[TokenCursor, DeliveryBlock], str]:
    """A line without arguments, which sets fixed values."""

    def read(_cursor: TokenCursor, block: DeliveryBlock) -> str:
        for name, value in values.items():
            setattr(block, name, value)
        return key

    return read


def _to(cursor: TokenCursor, block: DeliveryBlock) -> str:
    block.to = _receiver(cursor, "to guards")
    return "to"


def _then(cursor: TokenCursor, block: DeliveryBlock) -> str:
    receiver, within_ms = _receiver(cursor, "then security-leads"), 0
    if cursor.reads("within"):
        cursor.take()
        within_ms, block.awaits_answer = read_duration(cursor, _THEN), True
    block.then.append(Escalation(receiver, within_ms))
    return "then"


def _receiver(cursor: TokenCursor, example: str) -> Receiver:
    kind: Literal["", "peer", "collective"] = ""
    if cursor.peek(1) is not None and (cursor.reads("peer") or cursor.reads("collective")):
        kind = "peer" if cursor.take().text.lower() == "peer" else "collective"
    token = cursor.take_if("word") or cursor.take_if("text")
    if token is None:
        message = "the receiver is missing"
        raise cursor.fault("policy.no_receiver", message, hint=f"such as: {example}")
    return Receiver(kind, token.text, token.place)


def _at_least(cursor: TokenCursor, block: DeliveryBlock) -> str:
    """`at least 3 answer`; `any 3` and `at least 3` are the same: numbers count answers."""
    place = cursor.place()
    number = cursor.take_if("number")
    wanted = _whole_number(number)
    if not 0 < wanted <= _MOST_ANSWERS:
        message = "the number is missing" if number is None else f"{number.text} is no number here"
        hint = "write a whole number from 1, such as: at least 3 answer"
        raise SyntaxFault("policy.bad_count", message, place, hint)
    block.least, block.awaits_answer = wanted, True
    if cursor.reads("answer") or cursor.reads("answers"):
        cursor.take()
    return "reach"


def _answer_within(cursor: TokenCursor, block: DeliveryBlock) -> str:
    block.answer_within_ms, block.awaits_answer = read_duration(cursor, _ANSWER), True
    return "answer within"


def _say(cursor: TokenCursor, block: DeliveryBlock) -> str:
    token = cursor.take_if("text")
    if token is None or not token.text.strip():
        message = "the text is missing"
        place = token.place if token is not None else cursor.place()
        hint = 'write it in quotes: say "guest {A} is alone in {R}"'
        raise SyntaxFault("policy.no_text", message, place, hint)
    block.say, block.say_place = token.text, token.place
    return "say"


def _until(cursor: TokenCursor, block: DeliveryBlock) -> str:
    block.until_ms = read_duration(cursor, _UNTIL)
    return "until"


def _repeat(cursor: TokenCursor, block: DeliveryBlock) -> str:
    block.repeat_place, block.awaits_answer = cursor.place(), True
    block.repeat_every_ms = read_duration(cursor, _REPEAT)
    if block.repeat_every_ms < _LEAST_REPEAT_MS:
        message = "it is repeated too soon to be answered"
        raise SyntaxFault(
            "policy.bad_repeat", message, block.repeat_place, "repeat every 1 s or more"
        )
    if cursor.reads("at", "most"):
        cursor.take()
        cursor.take()
        block.repeat_most = _times(cursor)
    return "repeat"


def _times(cursor: TokenCursor) -> int:
    place, number = cursor.place(), cursor.take_if("number")
    wanted = _whole_number(number)
    if not 0 < wanted <= _MOST_REPEATS or not (cursor.reads("times") or cursor.reads("time")):
        message = "how often it is repeated cannot be read"
        hint = f"write: at most 5 times; up to {_MOST_REPEATS}"
        raise SyntaxFault("policy.bad_repeat", message, place, hint)
    cursor.take()
    return wanted


def _whole_number(token: Token | None) -> int:
    return int(token.text) if token is not None and token.text.isdigit() else 0


def _half_a_repeat(cursor: TokenCursor, _block: DeliveryBlock) -> str:
    message = "the interval is missing"
    hint = "write: repeat every 2 min"
    raise SyntaxFault("policy.bad_repeat", message, cursor.last_place(), hint)


_READERS: dict[tuple[str, ...], Callable[[TokenCursor, DeliveryBlock], str]] = {
    ("first", "answer", "wins"): _setting("reach", reach="anybody", awaits_answer=True),
    ("everybody", "answers"): _setting("reach", reach="everybody", awaits_answer=True),
    ("everybody",): _setting("reach", reach="everybody"),
    ("answer", "within"): _answer_within,
    ("by", "their", "preferred", "way"): _setting("ways", ways="preferred"),
    ("by", "preferred", "way"): _setting("ways", ways="preferred"),
    ("on", "all", "channels"): _setting("ways", ways="all"),
    ("on", "any", "channel"): _setting("ways", ways="any"),
    ("at", "least"): _at_least,
    ("any",): _at_least,
    ("not", "urgent"): _setting("urgent", urgent=False),
    ("urgent",): _setting("urgent", urgent=True),
    ("repeat", "every"): _repeat,
    ("repeat",): _half_a_repeat,
    ("until",): _until,
    ("then",): _then,
    ("say",): _say,
    ("to",): _to,
}
"""By the first words of a line; longer ones first."""
