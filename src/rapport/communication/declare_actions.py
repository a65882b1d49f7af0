"""What the site says about actions: `[actions."phrase"]` and every fault in it. [CO-3, PO-10,
UX-2]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from rapport.communication.actions import Action
from rapport.communication.declare_effects import EFFECT_KEYS, read_effect
from rapport.communication.peers import Collective, Peer
from rapport.communication.templates import template_fields
from rapport.communication.tracking import DoneWhen
from rapport.core.errors import InvalidInput
from rapport.core.message import Identifier
from rapport.kernel.fields import Fields, suggest

MESSAGE_KEYS = (
    "send_to",
    "text",
    "urgent",
    "answer_within",
    "escalate_to",
    "done_when",
    "ttl",
)
ACTION_KEYS = (*MESSAGE_KEYS, *(key for keys in EFFECT_KEYS.values() for key in keys))


def read_action(
    phrase: str,
    table: Fields,
    peers: Mapping[str, Peer],
    collectives: Mapping[str, Collective],
) -> Action:
    """One `[actions."phrase"]`; what is wrong is among the table's problems."""
    kinds = [kind for kind in ("send_to", *EFFECT_KEYS) if table.has(kind)]
    kind = kinds[0] if kinds else "send_to"
    if len(kinds) > 1:
        table.fault(
            kinds[1],
            "action.two_kinds",
            f"an action does one thing, this one has {kinds[0]!r} and {kinds[1]!r}",
            hint="write two phrases in the policy, one for each",
        )
        kind = kinds[0]
    else:
        _check_keys(kind, table)
    if kind in EFFECT_KEYS:
        return _acting(phrase, kind, table)
    return _telling(phrase, table, peers, collectives)


def _check_keys(kind: str, table: Fields) -> None:
    """Keys that mean something, but nothing for this kind of action."""
    known = MESSAGE_KEYS if kind == "send_to" else (*EFFECT_KEYS[kind], "ttl")
    for key in table.section.values:
        if key in ACTION_KEYS and key not in known:
            table.fault(
                key,
                "action.misplaced_key",
                f"{key!r} means nothing for an action with {kind!r}",
                hint=f"known here: {', '.join(known)}",
            )


def _acting(phrase: str, kind: str, table: Fields) -> Action:
    return Action(
        phrase=phrase,
        send_to=Identifier("component", phrase),
        text="",
        ttl_ms=table.duration_ms("ttl", 0, least=1),
        effect=read_effect(kind, table),
    )


def _telling(
    phrase: str,
    table: Fields,
    peers: Mapping[str, Peer],
    collectives: Mapping[str, Collective],
) -> Action:
    receiver = None
    if not table.has("send_to"):
        table.fault(
            "send_to",
            "action.no_receiver",
            f"the action {phrase!r} says nothing about whom to tell",
            hint='write send_to = "collective:NAME" or "peer:NAME", or what to do: append, '
            "webhook or set",
        )
    elif isinstance(send_to := table.section.values["send_to"], str):
        receiver = _receiver("send_to", send_to, table, peers, collectives)
    else:
        table.wrong("send_to", "text", 'send_to = "peer:NAME"')
    escalate_to = [
        _receiver("escalate_to", entry, table, peers, collectives)
        for entry in table.texts("escalate_to", ())
    ]
    within = table.duration_ms("answer_within", 0, least=1)
    default = "answered" if within or escalate_to else "sent"
    done_when = cast(DoneWhen, table.choice("done_when", ("sent", "answered"), default))
    _check_waiting(table, done_when, within, bool(escalate_to))
    action = Action(
        phrase=phrase,
        send_to=receiver or Identifier("peer", ""),
        text=_text(phrase, table),
        urgent=table.flag("urgent"),
        done_when=done_when,
        answer_within_ms=within,
        escalate_to=tuple(entry for entry in escalate_to if entry is not None),
        ttl_ms=table.duration_ms("ttl", 0, least=1),
    )
    return action


def _check_waiting(table: Fields, done_when: str, within: int, escalates: bool) -> None:
    if done_when == "answered" and escalates and not within:
        table.fault(
            "escalate_to",
            "action.no_deadline",
            "nothing says how long to wait for an answer before asking the next",
            hint='add answer_within = "60s"',
        )
    if done_when == "sent" and within:
        table.fault(
            "answer_within",
            "action.answer_not_awaited",
            'with done_when = "sent" nobody waits for an answer',
            hint='leave answer_within out, or write done_when = "answered"',
        )


def _text(phrase: str, table: Fields) -> str:
    if table.section.values.get("text", "") == "":
        table.fault(
            "text",
            "action.no_text",
            f"the action {phrase!r} has no text",
            hint='write text = "Guest {A} alone in {R}"',
        )
    text = table.text("text", "")
    try:
        template_fields(text)
    except InvalidInput as error:
        table.report("text", error)
    return text


def _receiver(
    key: str,
    text: str,
    table: Fields,
    peers: Mapping[str, Peer],
    collectives: Mapping[str, Collective],
) -> Identifier | None:
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
