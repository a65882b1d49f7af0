"""What is held back as people look at it: by source and reason, with a hint over all values.
[ME-11]"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec

from rapport.channel.channel import Channels
from rapport.mediation.holding.held import Held, HeldBack, Wanted
from rapport.mediation.holding.quarantine import QUARANTINE, raw_of_copy
from rapport.mediation.plausibility import plausible_unit

_PAGE = 1_000
_DEEPEST = 20
_UNITS = "unit."
"""Reasons about units: looking at all values tells more than looking at one."""
_Key = tuple[str, str]
"""Source and reason."""


class FieldValues(msgspec.Struct, kw_only=True):
    """The numbers that held events have in a field."""

    field: str
    count: int
    low: float
    high: float
    hint: str = ""


class HeldGroup(msgspec.Struct, kw_only=True):
    """Everything of one source that is held back for one reason."""

    source: str
    reason: str
    count: int = 0
    rejected_again: int = 0
    """Those that a release did not help."""
    first_ms: int = 0
    """When the oldest was held back."""
    last_ms: int = 0
    message: str = ""
    """Of the newest."""
    hint: str = ""
    fields: list[FieldValues] = []
    is_reading: bool = False


async def held_groups(
    channels: Channels, held_back: HeldBack, wanted: Wanted | None = None
) -> list[HeldGroup]:
    """Groups by source and reason; reads the copies of those that are held because of a unit.
    Memory is needed for the groups only.
    """
    groups: dict[_Key, HeldGroup] = {}
    places: list[int] = []
    async for page in held_back.pages(wanted):
        for one in page:
            key = one.source, one.reason
            _take(groups.setdefault(key, HeldGroup(source=one.source, reason=one.reason)), one)
        of_units = [one.position for one in page if one.reason.startswith(_UNITS)]
        if of_units:
            places = [min(of_units + places[:1]), max(of_units + places[1:])]
    if places:
        found = await _field_values(channels, held_back, wanted, *places)
        for key, fields in found.items():
            if key in groups:
                groups[key].fields = fields
                hints = "; ".join(one.hint for one in fields if one.hint)
                groups[key].hint = hints or groups[key].hint
    return [groups[key] for key in sorted(groups)]


def _take(group: HeldGroup, one: Held) -> None:
    group.count += 1
    group.rejected_again += one.state == "rejected again"
    group.first_ms = min(group.first_ms or one.received, one.received)
    if one.received >= group.last_ms:
        group.last_ms, group.message, group.hint = one.received, one.message, one.hint
    group.is_reading = one.is_reading


async def _field_values(
    channels: Channels, held_back: HeldBack, wanted: Wanted | None, first: int, last: int
) -> dict[_Key, list[FieldValues]]:
    """Of every field that a reason about a unit names the numbers in all held events, which stand
    between two positions of `quarantine`.
    """
    found: dict[_Key, dict[str, FieldValues]] = {}
    channel, position = channels.channel(QUARANTINE), first - 1
    while position < last and (batch := await channel.read_after(position, limit=_PAGE)):
        position = batch[-1].position
        for stored in batch:
            one = held_back.newest(stored)
            if one is None or not one.reason.startswith(_UNITS):
                continue
            if wanted is not None and not wanted.fits(one):
                continue
            raw = raw_of_copy(stored.event)
            payload = _payload(raw.data) if raw is not None else None
            for field, value in _numbers(payload):
                if _names(one.message, field):
                    _note(found.setdefault((one.source, one.reason), {}), field, value)
    for fields in found.values():
        for each in fields.values():
            each.hint = range_hint(each)
    return {key: sorted(each.values(), key=lambda one: one.field) for key, each in found.items()}


def range_hint(values: FieldValues) -> str:
    """What unit all values of a field together make likely.

    >>> range_hint(FieldValues(field="relativeHumidity", count=90, low=0.15, high=0.97))
    '90 values of relativeHumidity, always within 0.15..0.97: \
a ratio within 0..1 looks like a fraction: unit = "1"'
    """
    low, high = (plausible_unit(values.field, end) for end in (values.low, values.high))
    said = f"{values.count} values of {values.field}"
    if _unit(low) == _unit(high):
        within = f"always within {values.low:g}..{values.high:g}"
        return f"{said}, {within}: {high}" if high else ""
    # Where the ends look different, the greater one decides: a percentage may be small.
    return f"{said}, up to {values.high:g}: {high}" if high else ""


def _unit(hint: str) -> str:
    return hint.rpartition("unit = ")[2]


@lru_cache(maxsize=4_096)
def _names(message: str, field: str) -> bool:
    """Whether a message speaks of a field."""
    return re.search(rf"(?<![\w.]){re.escape(field)}(?![\w.])", message) is not None


def _note(found: dict[str, FieldValues], field: str, value: float) -> None:
    known = found.get(field)
    if known is None:
        found[field] = FieldValues(field=field, count=1, low=value, high=value)
        return
    known.count += 1
    known.low, known.high = min(known.low, value), max(known.high, value)


def _payload(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _numbers(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, float]]:
    """Every number of a payload with the names that lead to it."""
    if isinstance(value, dict) and depth < _DEEPEST:
        for name, part in value.items():
            yield from _numbers(part, f"{path}.{name}" if path else str(name), depth + 1)
    elif value.__class__ in (int, float):
        yield path, float(value)
