"""The whole of an id of which people have only the beginning. [PO-11, UX-3]"""

from __future__ import annotations

from rapport.channel.channel import Channel, Channels
from rapport.core.errors import InvalidInput, UnknownName

_SHORTEST = 4
_LOOKED_AT = 20_000
"""Of each channel only the newest events: older ones are found by their whole id."""
_PAGE = 5_000
_STAGES = ("detections", "log", "events", "control", "quarantine")
_SHOWN = 5


async def whole_id(channels: Channels, text: str) -> str:
    """The id that is `text` or begins with it; raises UnknownName when there is none, InvalidInput
    when there are several. An exact id costs one look; a beginning reads the newest events.
    """
    if await channels.find_event(text):
        return text
    found: dict[str, None] = {}
    if len(text) >= _SHORTEST:
        for name in sorted(channels.names(), key=_order):
            found |= dict.fromkeys(await _beginning(channels.channel(name), text))
    if not found:
        raise UnknownName("event", text, code="event.unknown")
    if len(found) > 1:
        some = ", ".join(list(found)[:_SHOWN])
        raise InvalidInput(
            f"{len(found)} events have an id that begins with {text!r}",
            code="event.ambiguous",
            hint=f"write more of it: {some}",
        )
    return next(iter(found))


async def _beginning(channel: Channel, text: str) -> list[str]:
    position = max(0, channel.last_position() - _LOOKED_AT)
    found: list[str] = []
    while batch := await channel.read_after(position, limit=_PAGE):
        position = batch[-1].position
        found += [one.event.id for one in batch if one.event.id.startswith(text)]
    return found


def _order(name: str) -> int:
    return _STAGES.index(name) if name in _STAGES else len(_STAGES)
