"""Reads `[actions."phrase"]` of a site file: receivers, texts, effects, deadlines, repeats.
[CO-3, CO-8, PO-10, UX-2]

Every fault is reported at its place.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, cast

from rapport.channel.validation import check_channel_name, is_reserved
from rapport.communication.actions import MOST_HOPS, Action, EffectTemplate
from rapport.communication.delivery_state import (
    LEAST_REPEAT_MS,
    DoneWhen,
    NextReceiver,
    PeerDelivery,
)
from rapport.communication.peers import Collective, Peer, address_fault
from rapport.communication.people_config import PEER_DELIVERIES
from rapport.communication.texts import template_fields
from rapport.core.context_record import CONTEXT_UPDATE, CONTEXT_UPDATES
from rapport.core.errors import InvalidInput
from rapport.core.event import MAX_NAME
from rapport.core.message import Identifier
from rapport.kernel.config_fields import Fields, suggest
from rapport.kernel.toml import Section

EFFECT_KEYS = {
    "append": ("append", "type", "subject", "data", "most_hops"),
    "webhook": ("webhook", "type", "subject", "data"),
    "set": ("set", "of", "value", "valid", "most_hops"),
    "context": ("context", "most_hops"),
}
"""The keys of each kind of effect, by the key that names the kind."""
_ATTRIBUTE = re.compile(r"[^\W\d][\w-]*\.[^\W\d][\w-]*")
_HIGHEST_HOPS = 100
_CONTEXT_KEYS = ("entity", "scope", "values", "valid")
_CONTEXT_EXAMPLE = '{ entity = "room/{R}", scope = "status", values = { locked = true } }'
DEFAULT_VALID_MS = 3_600_000
"""Default validity of what an action sets."""

_ESCALATE_EXAMPLE = (
    'escalate_to = ["collective:a", { to = "collective:b", answer_within = "5 min" }]'
)
MOST_REPEATS = 1_000
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


def read_effect(kind: str, table: Fields, known: Collection[str] = ()) -> EffectTemplate:
    """Reads the effect of an action; faults are added to the table's problems. `known`: the names
    that its texts can use.
    """
    match kind:
        case "append":
            effect = _append(table)
        case "webhook":
            effect = _webhook(table)
        case "context":
            effect = _context(table)
        case _:
            effect = _set(table)
    _check_texts(effect, table, known)
    return effect


def _append(table: Fields) -> EffectTemplate:
    channel = table.filled_text("append", "", example='"raw.alarms"')
    try:
        if channel:
            check_channel_name(channel)
    except InvalidInput as error:
        table.report("append", error)
    if is_reserved(channel):
        table.fault(
            "append",
            "action.reserved_channel",
            f"only the node itself appends to {channel!r}",
            hint='to be seen by policies, append to a source: "raw.NAME"',
        )
    return EffectTemplate(
        kind="append",
        target=channel,
        type=_type(table, ""),
        subject=table.text("subject", ""),
        data=_data(table),
        most_hops=_most_hops(table),
    )


def _webhook(table: Fields) -> EffectTemplate:
    address = table.filled_text("webhook", "", example='"https://example.org/hook"')
    if address and (fault := address_fault(f"webhook:{address}", ("webhook",))):
        hint = "write it like https://example.org/hook"
        table.fault("webhook", "action.bad_webhook", fault.message, hint=hint)
    return EffectTemplate(
        kind="webhook",
        target=address,
        type=_type(table, "rapport.action"),
        subject=table.text("subject", ""),
        data=_data(table),
    )


def _set(table: Fields) -> EffectTemplate:
    """Sets one attribute, in a scope of its own, so that others stay unchanged."""
    attribute = table.filled_text("set", "", example='"room.alarm"')
    if attribute and not _ATTRIBUTE.fullmatch(attribute):
        table.wrong("set", "concept.attribute", 'set = "room.alarm"')
    concept, _, name = attribute.partition(".")
    key = table.filled_text("of", example='"{R}"')
    if not table.has("value"):
        message = "the attribute has no value"
        table.fault("value", "action.no_value", message, hint="add value = true, or a text")
    values = {name: table.section.values.get("value")}
    return _wish(table, f"{concept}/{key}", name, values, _valid_ms(table))


def _context(table: Fields) -> EffectTemplate:
    """Sets a whole scope of an entity."""
    inner = table.table("context", _CONTEXT_KEYS, _CONTEXT_EXAMPLE)
    if inner is None:
        return _wish(table, "", "", {}, DEFAULT_VALID_MS)
    entity = inner.filled_text("entity", example='"room/{R}"')
    kind, slash, name = entity.partition("/")
    if entity and not (slash and name and kind and "{" not in kind):
        inner.wrong("entity", "type/id", 'entity = "room/{R}"')
    scope = inner.filled_text("scope", example='"status"')
    values = inner.section.values.get("values")
    if not isinstance(values, dict) or not values:
        message = "the entity has no values"
        inner.fault("values", "action.no_value", message, hint="add values = { locked = true }")
        values = {}
    return _wish(table, entity, scope, values, _valid_ms(inner))


def _wish(
    table: Fields, entity: str, scope: str, values: dict[str, Any], valid_ms: int
) -> EffectTemplate:
    """An event for the node's context broker: entity, scope, values and validity."""
    return EffectTemplate(
        kind="append",
        target=CONTEXT_UPDATES,
        type=CONTEXT_UPDATE,
        subject=entity,
        data={"entity": entity, "scope": scope, "values": values, "valid_ms": valid_ms},
        most_hops=_most_hops(table),
    )


def _valid_ms(table: Fields) -> int:
    return table.duration_ms("valid", DEFAULT_VALID_MS, least=1)


def _type(table: Fields, default: str) -> str:
    kind = table.filled_text("type", default or None, example='"alarm.raised"')
    if len(kind) > MAX_NAME or not kind.isprintable():
        table.wrong("type", f"a name of at most {MAX_NAME} characters", 'type = "alarm.raised"')
    return kind


def _data(table: Fields) -> Any:
    data = table.section.values.get("data")
    if data is not None and not isinstance(data, dict):
        table.wrong("data", "a table", 'data = { guest = "{A}" }')
    return data


def _most_hops(table: Fields) -> int:
    return table.number("most_hops", MOST_HOPS, low=1, high=_HIGHEST_HOPS)


def _check_texts(effect: EffectTemplate, table: Fields, known: Collection[str]) -> None:
    for key, text in effect.texts():
        try:
            template_fields(text, known)
        except InvalidInput as error:
            table.report(key, error)
            return


def read_receiver(
    key: str,
    text: str,
    table: Fields,
    peers: Mapping[str, Peer],
    collectives: Mapping[str, Collective],
) -> Identifier | None:
    """The receiver at a key; None when it is invalid."""
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
            "a component cannot be the receiver of an action",
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
) -> tuple[NextReceiver, ...]:
    """Reads `escalate_to`: names, or tables with the time to answer."""
    given = table.section.values.get("escalate_to", [])
    found = []
    for entry in given if isinstance(given, list) else [given]:
        name, within = _step(entry, table)
        if name is None:
            continue
        receiver = read_receiver("escalate_to", name, table, peers, collectives)
        if receiver is not None:
            found.append(NextReceiver(str(receiver), within))
    return tuple(found)


def _step(entry: object, table: Fields) -> tuple[str | None, int]:
    """Name and time of one entry; None when its fault is reported."""
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
    """Interval of repeats, 0 = none, and their number, 0 = without end."""
    every = table.duration_ms("repeat_every", 0, least=1)
    if 0 < every < LEAST_REPEAT_MS:
        table.fault(
            "repeat_every",
            "action.repeat_too_fast",
            "it is repeated faster than anybody can answer",
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
    """Which addresses of a peer are used; None = as each peer says."""
    if not table.has("peer_delivery"):
        return None
    return cast(PeerDelivery, table.choice("peer_delivery", PEER_DELIVERIES, "at-least-one"))


def check_waiting(table: Fields, action: Action) -> None:
    """Reports deadlines and repeats that do not fit together."""
    within, every = action.answer_within_ms, action.repeat_every_ms
    if action.done_when == "answered" and action.escalate and not within:
        table.fault(
            "escalate_to",
            "action.no_deadline",
            "there is no time to wait for an answer before the escalation",
            hint='add answer_within = "60s"',
        )
    for key, is_given in (("answer_within", within), ("repeat_every", every)):
        if action.done_when == "sent" and is_given:
            table.fault(
                key,
                "action.answer_not_awaited",
                'with done_when = "sent" no answer is awaited',
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
    """Warns when fewer people can be asked than have to answer; members may join at run time."""
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
    known = collectives.get(receiver.name) if receiver.kind == "collective" else None
    return len(set(known.members)) if known is not None else 1


def read_action(
    phrase: str,
    table: Fields,
    peers: Mapping[str, Peer],
    collectives: Mapping[str, Collective],
    known: Collection[str] = (),
) -> Action:
    """Reads one `[actions."phrase"]`; faults are added to the table's problems. `known`: the names
    that its texts can use, as far as they are known.
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
        return _effect_action(phrase, kind, table, known)
    return _message_action(phrase, table, peers, collectives, known)


def _check_keys(kind: str, table: Fields) -> None:
    """Reports keys that belong to another kind of action."""
    known = MESSAGE_KEYS if kind == "send_to" else (*EFFECT_KEYS[kind], "ttl")
    for key in table.section.values:
        if key in ACTION_KEYS and key not in known:
            table.fault(
                key,
                "action.misplaced_key",
                f"{key!r} means nothing for an action with {kind!r}",
                hint=f"known here: {', '.join(known)}",
            )


def _effect_action(phrase: str, kind: str, table: Fields, known: Collection[str]) -> Action:
    return Action(
        phrase=phrase,
        send_to=Identifier("component", phrase),
        text="",
        ttl_ms=table.duration_ms("ttl", 0, least=1),
        effect=read_effect(kind, table, known),
    )


def _message_action(
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
            f"the action {phrase!r} has no receiver",
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
