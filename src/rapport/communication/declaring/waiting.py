"""Who is asked and who next, how long they have to answer and how often they are told again: what
an action of the site says about it, and every fault. [CO-8, PO-10, UX-2]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from rapport.communication.actions import Action, EscalationStep
from rapport.communication.declaring.people import PEER_DELIVERIES
from rapport.communication.delivering.tracking import PeerDelivery
from rapport.communication.delivering.wishes import LEAST_REPEAT_MS
from rapport.communication.peers import Collective, Peer
from rapport.core.errors import InvalidInput
from rapport.core.message import Identifier
from rapport.kernel.config_fields import Fields, suggest
from rapport.kernel.toml import Section

_ESCALATE_EXAMPLE = (
    'escalate_to = ["collective:a", { to = "collective:b", answer_within = "5 min" }]'
)
MOST_REPEATS = 1_000


def read_receiver(
    key: str,
    text: str,
    table: Fields,
    peers: Mapping[str, Peer],
    collectives: Mapping[str, Collective],
) -> Identifier | None:
    """Who is named at a key; None when that is no name."""
    try:
        receiver = Identifier.parse(text)
    except InvalidInput as error:
        table.report(key, error)
        return None
    known: Mapping[str, object] = peers if receiver.kind == "peer" else collectives
    if receiver.kind == "component":
        table.fault(
            key,
            "action.bad_receiver",
            "an action tells people: a component cannot be its receiver",
            hint="write peer:NAME or collective:NAME",
        )
    elif receiver.name not in known:
        table.fault(
            key,
            "action.unknown_receiver",
            f"there is no {receiver.kind} named {receiver.name!r}",
            hint=suggest(receiver.name, known),
        )
    return receiver


def read_escalation(
    table: Fields, peers: Mapping[str, Peer], collectives: Mapping[str, Collective]
) -> tuple[EscalationStep, ...]:
    """`escalate_to`: names, or tables that say how long the named ones have to answer."""
    given = table.section.values.get("escalate_to", [])
    found = []
    for entry in given if isinstance(given, list) else [given]:
        name, within = _step(entry, table)
        if name is None:
            continue
        receiver = read_receiver("escalate_to", name, table, peers, collectives)
        if receiver is not None:
            found.append(EscalationStep(receiver, within))
    return tuple(found)


def _step(entry: object, table: Fields) -> tuple[str | None, int]:
    """Name and time of one entry; None when the fault is told already."""
    if isinstance(entry, str):
        return entry, 0
    if not isinstance(entry, dict):
        table.wrong("escalate_to", "a list of names or tables", _ESCALATE_EXAMPLE)
        return None, 0
    section = Section(table.section.file, (*table.section.path, "escalate_to"), entry)
    step = Fields(section, table.problems, known=("to", "answer_within"), strict=True)
    name = step.filled_text("to", example='"collective:NAME"')
    return name or None, step.duration_ms("answer_within", 0, least=1)


def read_repeating(table: Fields) -> tuple[int, int]:
    """How often who has not answered is told again, and how many times; 0 = not, without end."""
    every = table.duration_ms("repeat_every", 0, least=1)
    if 0 < every < LEAST_REPEAT_MS:
        table.fault(
            "repeat_every",
            "action.repeat_too_fast",
            "nobody can answer faster than it is repeated",
            hint='write repeat_every = "2 min"; at least 1 s',
        )
        every = LEAST_REPEAT_MS
    if not table.has("repeat_most"):
        return every, 0
    if not table.has("repeat_every"):
        table.fault(
            "repeat_most",
            "action.nothing_repeated",
            "'repeat_most' only means something with 'repeat_every'",
            hint='add repeat_every = "2 min"',
        )
    return every, table.number("repeat_most", 5, low=1, high=MOST_REPEATS)


def read_peer_delivery(table: Fields) -> PeerDelivery | None:
    """By which of their addresses people are told; None when the action leaves it to them."""
    if not table.has("peer_delivery"):
        return None
    return cast(PeerDelivery, table.choice("peer_delivery", PEER_DELIVERIES, "at-least-one"))


def check_waiting(table: Fields, action: Action) -> None:
    """Notes deadlines and repetitions that do not fit together."""
    within, every = action.answer_within_ms, action.repeat_every_ms
    if action.done_when == "answered" and action.escalate and not within:
        table.fault(
            "escalate_to",
            "action.no_deadline",
            "nothing says how long to wait for an answer before asking the next",
            hint='add answer_within = "60s"',
        )
    for key, is_given in (("answer_within", within), ("repeat_every", every)):
        if action.done_when == "sent" and is_given:
            table.fault(
                key,
                "action.answer_not_awaited",
                'with done_when = "sent" nobody waits for an answer',
                hint=f'leave {key} out, or write done_when = "answered"',
            )
    if within and every >= within and not action.escalate:
        table.fault(
            "repeat_every",
            "action.repeat_too_late",
            "the time to answer is over before anything is repeated",
            hint=f'repeat sooner than answer_within = "{table.text("answer_within", "")}"',
            severity="warning",
        )


def check_least(table: Fields, action: Action, collectives: Mapping[str, Collective]) -> None:
    """Fewer people than have to answer; a warning, as members may join at run time."""
    most = people_behind(action.send_to, collectives)
    if action.least > most:
        table.fault(
            "least",
            "action.least_too_many",
            f"{action.least} have to answer, but only {most} can be asked",
            hint="ask a larger collective, or for fewer",
            severity="warning",
        )


def people_behind(receiver: Identifier, collectives: Mapping[str, Collective]) -> int:
    """How many people a name stands for."""
    known = collectives.get(receiver.name) if receiver.kind == "collective" else None
    return len(set(known.members)) if known is not None else 1
