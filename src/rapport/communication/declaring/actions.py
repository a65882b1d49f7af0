"""What the site says about actions: `[actions."phrase"]` and every fault in it. [CO-3, PO-10,
UX-2]"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import cast

from rapport.communication.actions import Action
from rapport.communication.declaring.effects import EFFECT_KEYS, read_effect
from rapport.communication.declaring.waiting import (
    check_least,
    check_waiting,
    read_escalation,
    read_peer_delivery,
    read_receiver,
    read_repeating,
)
from rapport.communication.delivering.tracking import DoneWhen
from rapport.communication.peers import Collective, Peer
from rapport.communication.templates import template_fields
from rapport.core.errors import InvalidInput
from rapport.core.message import Identifier
from rapport.kernel.config_fields import Fields

MESSAGE_KEYS = (
    "send_to",
    "text",
    "urgent",
    "answer_within",
    "escalate_to",
    "done_when",
    "least",
    "repeat_every",
    "repeat_most",
    "peer_delivery",
    "ttl",
)
MOST_ANSWERS = 100_000
ACTION_KEYS = (*MESSAGE_KEYS, *(key for keys in EFFECT_KEYS.values() for key in keys))


def read_action(
    phrase: str,
    table: Fields,
    peers: Mapping[str, Peer],
    collectives: Mapping[str, Collective],
    known: Collection[str] = (),
) -> Action:
    """One `[actions."phrase"]`; what is wrong is among the table's problems. `known` is what its
    texts can name, as far as that is known here.
    """
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
        return _acting(phrase, kind, table, known)
    return _telling(phrase, table, peers, collectives, known)


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


def _acting(phrase: str, kind: str, table: Fields, known: Collection[str]) -> Action:
    return Action(
        phrase=phrase,
        send_to=Identifier("component", phrase),
        text="",
        ttl_ms=table.duration_ms("ttl", 0, least=1),
        effect=read_effect(kind, table, known),
    )


def _telling(
    phrase: str,
    table: Fields,
    peers: Mapping[str, Peer],
    collectives: Mapping[str, Collective],
    known: Collection[str],
) -> Action:
    receiver = None
    if not table.has("send_to"):
        table.fault(
            "send_to",
            "action.no_receiver",
            f"the action {phrase!r} says nothing about whom to tell",
            hint='write send_to = "collective:NAME" or "peer:NAME", or what to do: append, '
            "webhook, set or context",
        )
    elif isinstance(send_to := table.section.values["send_to"], str):
        receiver = read_receiver("send_to", send_to, table, peers, collectives)
    else:
        table.wrong("send_to", "text", 'send_to = "peer:NAME"')
    escalate = read_escalation(table, peers, collectives)
    within = table.duration_ms("answer_within", 0, least=1)
    least = table.number("least", 0, low=1, high=MOST_ANSWERS) if table.has("least") else 0
    every, most = read_repeating(table)
    awaits = bool(within or escalate or least or every)
    done_when = table.choice("done_when", ("sent", "answered"), "answered" if awaits else "sent")
    action = Action(
        phrase=phrase,
        send_to=receiver or Identifier("peer", ""),
        text=_text(phrase, table, known),
        urgent=table.flag("urgent"),
        done_when=cast(DoneWhen, done_when),
        answer_within_ms=within,
        escalate=escalate,
        least=least,
        repeat_every_ms=every,
        repeat_most=most,
        peer_delivery=read_peer_delivery(table),
        ttl_ms=table.duration_ms("ttl", 0, least=1),
    )
    check_waiting(table, action)
    check_least(table, action, collectives)
    return action


def _text(phrase: str, table: Fields, known: Collection[str]) -> str:
    if table.section.values.get("text", "") == "":
        table.fault(
            "text",
            "action.no_text",
            f"the action {phrase!r} has no text",
            hint='write text = "Guest {A} alone in {R}"',
        )
    text = table.text("text", "")
    try:
        template_fields(text, known)
    except InvalidInput as error:
        table.report("text", error)
    return text
