"""Which part of a broker's machine takes which message. [CX-2, CX-3, CX-5]"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

from rapport.context.messages import (
    Ask,
    Command,
    Departed,
    Found,
    Have,
    Heard,
    Join,
    Message,
    Notice,
    Noticed,
    Outdated,
    Ping,
    Pong,
    Probe,
    Put,
    Refused,
    Request,
    Status,
    Unwatch,
    Watch,
    Welcome,
)

PLANNED_AS_THEY_COME = frozenset((Ask, Found, Refused, Probe, Have, Request))
"""Most messages are these, and what they give to do later is on the agenda at once."""
TAKERS: Final[dict[type[Message], Callable[[Any], Callable[..., None]]]] = {
    Put: attrgetter("_updates.put"),
    Request: attrgetter("_requests.request"),
    Ask: attrgetter("_walking.asked"),
    Found: attrgetter("_answering.found"),
    Refused: attrgetter("_answering.refused"),
    Heard: attrgetter("_hopping.heard"),
    Probe: attrgetter("_looking.probed"),
    Have: attrgetter("_looking.have"),
    Ping: attrgetter("_neighbourhood.pinged"),
    Pong: attrgetter("_neighbourhood.ponged"),
    Join: attrgetter("_neighbourhood.join_asked"),
    Welcome: attrgetter("_neighbourhood.welcomed"),
    Departed: attrgetter("_neighbourhood.departed"),
    Command: attrgetter("_neighbourhood.commanded"),
    Watch: attrgetter("_watching.watch"),
    Unwatch: attrgetter("_watching.unwatch"),
    Noticed: attrgetter("_watching.noticed"),
    Notice: attrgetter("_following.noticed_change"),
    Status: attrgetter("_following.answered"),
    Outdated: attrgetter("_updates.outdated"),
}
"""Which part takes what. One table for all machines: ten thousand of them have no room for theirs
in a processor's cache.
"""
