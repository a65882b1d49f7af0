"""What the lines below an action mean: whom to tell, what to say, and for how long. [PO-3, PO-10,
CO-8]

Names are checked where peers and collectives are known, by the site.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from rapport.core.errors import nearest_names
from rapport.policy.language.cursor import Cursor, SyntaxFault
from rapport.policy.language.durations import Timing, read_duration
from rapport.policy.language.faults import Faults
from rapport.policy.language.tokens import tokenize_line
from rapport.policy.language.tree import Action, Delivery, Place

Reach = Literal["anybody", "everybody"]

_ANSWER = Timing("a time to answer", "policy.bad_duration", "answer within 60 s")
_UNTIL = Timing("a duration", "policy.bad_duration", "until 30 min")
LINES = (
    "to guards",
    "then security-leads",
    "first answer wins",
    "everybody",
    "everybody answers",
    "answer within 60 s",
    "urgent",
    "not urgent",
    'say "guest {A} is alone in {R}"',
    "until 30 min",
)
"""An example of each line there is."""


class Receiver(msgspec.Struct, frozen=True):
    """A peer or a collective; `kind` is empty where the policy does not say which."""

    kind: Literal["", "peer", "collective"]
    name: str
    place: Place


class DeliveryBlock(msgspec.Struct, kw_only=True):
    """What a policy says about one of its actions; None and empty where it leaves it to the
    site.
    """

    to: Receiver | None = None
    then: list[Receiver] = []
    reach: Reach | None = None
    awaits_answer: bool = False
    answer_within_ms: int | None = None
    urgent: bool | None = None
    say: str | None = None
    say_place: Place | None = None
    until_ms: int | None = None

    def receivers(self) -> list[Receiver]:
        """Everybody it names."""
        return [*([self.to] if self.to is not None else []), *self.then]


def read_delivery(action: Action, faults: Faults) -> DeliveryBlock:
    """The lines below an action; faults are noted and reading goes on with the next line."""
    block, said = DeliveryBlock(), dict[str, Place]()
    for line in action.delivery:
        try:
            _read_line(line, block, said, faults)
        except SyntaxFault as fault:
            faults.add(fault.code, fault.message, fault.place, hint=fault.hint)
    return block


def _read_line(
    line: Delivery, block: DeliveryBlock, said: dict[str, Place], faults: Faults
) -> None:
    # Blanks in front keep the columns of the tokens those of the policy.
    shifted = " " * (line.place.column - 1) + line.text
    before = faults.count
    tokens = tokenize_line(shifted, line.place.line, faults)
    if faults.count != before or not tokens:
        return
    cursor = Cursor(tokens)
    for words, read in _READERS.items():
        if cursor.reads(*words):
            for _word in words:
                cursor.take()
            key = read(cursor, block)
            _check_end(cursor, words)
            _note_once(key, line.place, said)
            return
    raise _unknown(line)


def _note_once(key: str, place: Place, said: dict[str, Place]) -> None:
    if key in said and key != "then":
        raise SyntaxFault(
            "policy.delivery_twice",
            f"line {said[key].line} says already what this line says",
            place,
            "leave one out",
        )
    said[key] = place


def _unknown(line: Delivery) -> SyntaxFault:
    beginnings = [" ".join(words) for words in _READERS]
    written = " ".join(line.text.lower().split()[:2])
    near = nearest_names(written, beginnings, limit=1)
    near = near or nearest_names(written.split()[0], beginnings, limit=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(LINES)}"
    message = "this says nothing about how to deliver the action above"
    return SyntaxFault("policy.unknown_delivery", message, line.place, hint)


def _check_end(cursor: Cursor, words: tuple[str, ...]) -> None:
    more = cursor.peek()
    if more is None:
        return
    hint = f"{' '.join(words)!r} ends before it; put more into a line of its own"
    if (more.kind == "mark" and more.text == ",") or more.text.lower() == "and":
        hint = "name one; several under one name are a collective of the site"
    raise cursor.fault("policy.delivery_too_long", f"{more.text!r} is too much here", hint=hint)


# --- one function per line; each gives the key under which it may stand once ---


def _to(cursor: Cursor, block: DeliveryBlock) -> str:
    block.to = _receiver(cursor, "to guards")
    return "to"


def _then(cursor: Cursor, block: DeliveryBlock) -> str:
    block.then.append(_receiver(cursor, "then security-leads"))
    return "then"


def _receiver(cursor: Cursor, example: str) -> Receiver:
    kind: Literal["", "peer", "collective"] = ""
    if cursor.peek(1) is not None and (cursor.reads("peer") or cursor.reads("collective")):
        kind = "peer" if cursor.take().text.lower() == "peer" else "collective"
    token = cursor.take_if("word") or cursor.take_if("text")
    if token is None:
        message = "nothing says who is told"
        raise cursor.fault("policy.no_receiver", message, hint=f"such as: {example}")
    return Receiver(kind, token.text, token.place)


def _first_answer(_cursor: Cursor, block: DeliveryBlock) -> str:
    block.reach, block.awaits_answer = "anybody", True
    return "reach"


def _everybody(_cursor: Cursor, block: DeliveryBlock) -> str:
    block.reach = "everybody"
    return "reach"


def _everybody_answers(_cursor: Cursor, block: DeliveryBlock) -> str:
    block.reach, block.awaits_answer = "everybody", True
    return "reach"


def _answer_within(cursor: Cursor, block: DeliveryBlock) -> str:
    block.answer_within_ms, block.awaits_answer = read_duration(cursor, _ANSWER), True
    return "answer within"


def _urgent(_cursor: Cursor, block: DeliveryBlock) -> str:
    block.urgent = True
    return "urgent"


def _not_urgent(_cursor: Cursor, block: DeliveryBlock) -> str:
    block.urgent = False
    return "urgent"


def _say(cursor: Cursor, block: DeliveryBlock) -> str:
    token = cursor.take_if("text")
    if token is None or not token.text.strip():
        message = "nothing says what is said"
        place = token.place if token is not None else cursor.place()
        hint = 'write it in quotes: say "guest {A} is alone in {R}"'
        raise SyntaxFault("policy.no_text", message, place, hint)
    block.say, block.say_place = token.text, token.place
    return "say"


def _until(cursor: Cursor, block: DeliveryBlock) -> str:
    block.until_ms = read_duration(cursor, _UNTIL)
    return "until"


def _at_least(cursor: Cursor, block: DeliveryBlock) -> str:
    """`at least 1 answer` is the first answer; more cannot be counted yet."""
    place = cursor.last_place()
    number = cursor.take_if("number")
    counted = cursor.reads("answer") or cursor.reads("answers")
    if number is not None and number.text == "1" and counted:
        cursor.take()
        return _first_answer(cursor, block)
    raise SyntaxFault(
        "policy.delivery_unsupported",
        "counting answers comes with the delivery policy AT_LEAST",
        number.place if number is not None else place,
        "until then write 'first answer wins' or 'everybody answers'",
    )


def _repeat(cursor: Cursor, _block: DeliveryBlock) -> str:
    raise SyntaxFault(
        "policy.delivery_unsupported",
        "repeating until somebody answers comes with the delivery policies of messages",
        cursor.last_place(),
        "until then write 'answer within 60 s' and 'then NAME'",
    )


_READERS: dict[tuple[str, ...], Callable[[Cursor, DeliveryBlock], str]] = {
    ("first", "answer", "wins"): _first_answer,
    ("everybody", "answers"): _everybody_answers,
    ("everybody",): _everybody,
    ("answer", "within"): _answer_within,
    ("at", "least"): _at_least,
    ("not", "urgent"): _not_urgent,
    ("urgent",): _urgent,
    ("repeat",): _repeat,
    ("until",): _until,
    ("then",): _then,
    ("say",): _say,
    ("to",): _to,
}
"""By the words a line begins with; longer ones first."""
