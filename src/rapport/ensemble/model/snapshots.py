"""What a component publishes: its knowledge as plain data and bytes, within limits. [EN-1]"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput, TooLarge
from rapport.ensemble.model.component import Component
from rapport.ensemble.model.role import plan_of
from rapport.ensemble.protocol import MAX_WORDS

_ENCODE = msgspec.msgpack.Encoder().encode


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """The published knowledge of a component at one time."""

    roles: tuple[str, ...]
    values: dict[str, Any]
    """Plain data: texts, numbers, booleans, lists, dictionaries with texts as keys."""
    body: bytes
    """The values in msgpack."""
    groups: tuple[str, ...] = ()
    """The communication groups it belongs to, each as `Ensemble:value`."""


class WithheldKnowledge(msgspec.Struct, frozen=True, kw_only=True):
    """Knowledge of a component that is not published because it cannot be."""

    component: str
    code: str
    message: str
    hint: str = ""
    since_ms: int = 0
    """Wall clock of the first attempt that failed."""


def snapshot_of(
    component: Component, groups: tuple[str, ...], *, most_bytes: int, most_levels: int
) -> Snapshot:
    """The component's knowledge as it is now; raises InvalidInput for what cannot be published.

    Costs a walk over the values.
    """
    plan, own = plan_of(type(component)), component.__dict__
    values: dict[str, Any] = {}
    for name in plan.published:
        if name not in own:
            raise _not_plain(name, "it was deleted")
        values[name] = _plain(name, own[name], most_levels)
    try:
        body = _ENCODE(values)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _not_plain("a field", str(error)) from None
    if len(body) > most_bytes:
        raise TooLarge(
            f"the knowledge has {len(body)} bytes, more than {most_bytes}",
            code="ensemble.knowledge_too_large",
            hint="publish less: declare what others need not know as Local",
        )
    for what, words in (("roles", plan.roles), ("groups", groups)):
        if len(words) > MAX_WORDS:
            raise TooLarge(
                f"the component has {len(words)} {what}, no message carries more than {MAX_WORDS}",
                code="ensemble.knowledge_too_large",
                hint=f"let it have fewer {what}",
            )
    return Snapshot(plan.roles, values, body, groups)


def _plain(name: str, value: Any, most_levels: int) -> Any:
    if type(value) in (str, int, bool):
        return value
    try:
        plain = msgspec.to_builtins(value, str_keys=True)
    except Exception as error:  # also of the value's own class
        raise _not_plain(name, str(error)) from None
    why = _why_not(plain, most_levels)
    if why:
        raise _not_plain(name, why)
    return plain


def _why_not(value: Any, levels: int) -> str:
    """Why plain data cannot be published; empty if it can."""
    kind = type(value)
    if kind is float:
        return "" if math.isfinite(value) else f"{value} is no number that all can read"
    if kind is dict:
        value = value.values()
    elif kind is not list and kind is not tuple:
        return ""
    if levels <= 0:
        return "it is nested too deeply"
    for part in value:
        kind = type(part)
        if kind is float and math.isfinite(part):
            continue
        if kind is str or kind is int:
            continue
        why = _why_not(part, levels - 1)
        if why:
            return why
    return ""


def _not_plain(name: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"{name} cannot be published: {why}"[:300],
        code="ensemble.knowledge_not_plain",
        hint="knowledge is texts, finite numbers, lists, dictionaries and structs, without cycles",
    )
