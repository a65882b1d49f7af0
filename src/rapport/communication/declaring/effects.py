"""What the site says about actions that do something: `append`, `webhook`, `set`, `context`, and
every fault in them. [PO-10, UX-2]"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from rapport.channel.validation import check_channel_name, is_reserved
from rapport.communication.addresses import address_fault
from rapport.communication.effects import MOST_HOPS, EffectTemplate
from rapport.communication.templates import template_fields
from rapport.core.context_record import CONTEXT_UPDATE, CONTEXT_UPDATES
from rapport.core.errors import InvalidInput
from rapport.core.event import MAX_NAME
from rapport.kernel.config_fields import Fields

EFFECT_KEYS = {
    "append": ("append", "type", "subject", "data", "most_hops"),
    "webhook": ("webhook", "type", "subject", "data"),
    "set": ("set", "of", "value", "valid", "most_hops"),
    "context": ("context", "most_hops"),
}
"""By the key that says what kind it is, all that the kind knows."""
_ATTRIBUTE = re.compile(r"[^\W\d][\w-]*\.[^\W\d][\w-]*")
_HIGHEST_HOPS = 100
_CONTEXT_KEYS = ("entity", "scope", "values", "valid")
_CONTEXT_EXAMPLE = '{ entity = "room/{R}", scope = "status", values = { locked = true } }'
DEFAULT_VALID_MS = 3_600_000
"""So long is true what an action sets, unless it says another time."""


def read_effect(kind: str, table: Fields, known: Collection[str] = ()) -> EffectTemplate:
    """The effect of an action; what is wrong is among the table's problems. `known` is what its
    texts can name.
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
    """One attribute of something: a scope of its own, so that others stay as they are."""
    attribute = table.filled_text("set", "", example='"room.alarm"')
    if attribute and not _ATTRIBUTE.fullmatch(attribute):
        table.wrong("set", "concept.attribute", 'set = "room.alarm"')
    concept, _, name = attribute.partition(".")
    key = table.filled_text("of", example='"{R}"')
    if not table.has("value"):
        message = "nothing says what the attribute is set to"
        table.fault("value", "action.no_value", message, hint="add value = true, or a text")
    values = {name: table.section.values.get("value")}
    return _wish(table, f"{concept}/{key}", name, values, _valid_ms(table))


def _context(table: Fields) -> EffectTemplate:
    """A whole scope of an entity."""
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
        message = "nothing says what is true of the entity"
        inner.fault("values", "action.no_value", message, hint="add values = { locked = true }")
        values = {}
    return _wish(table, entity, scope, values, _valid_ms(inner))


def _wish(
    table: Fields, entity: str, scope: str, values: dict[str, Any], valid_ms: int
) -> EffectTemplate:
    """An event for the node's context broker: what is to be true of whom, and for how long."""
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
