"""What is told of one door: the words and shapes that the framework cannot know. [CH-12, UX-5]"""

from __future__ import annotations

from typing import Any

import msgspec

Members = dict[str, Any]
JSON = "application/json"


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the table says of a door."""

    summary: str
    tag: str
    bodies: dict[str, Members] = {}
    """Schemas of request bodies by media type."""
    example: Any = None
    """Of the first kind of body."""
    answer: Members = {}
    media: tuple[str, ...] = (JSON,)
    parameters: tuple[Members, ...] = ()
    statuses: tuple[str, ...] = ("200",)
