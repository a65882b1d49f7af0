"""What a person says about being reached: rules as values, what they are asked about, and what
they can say. [CO-9]

Rules are data: they stand in the site file and in the directory's records, and go over the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from rapport.communication.privacy.hours import LocalTimes
from rapport.core.message import Identifier

RuleAction = Literal["allow", "hold", "refuse"]

RecentSends = Callable[[int], Sequence[int]]
"""How many are wanted to the times (ms UTC) of the last messages to the person, newest first."""


class PrivacyRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Says something about a message for which all of its conditions hold; empty = any.

    Texts are patterns in which `*` stands for anything; of several one has to fit.
    """

    then: RuleAction = "refuse"
    types: tuple[str, ...] = ()
    subtypes: tuple[str, ...] = ()
    senders: tuple[str, ...] = ()
    """Identifiers: `component:policy`, `peer:*`."""
    urgent: bool | None = None
    """Only for messages that are urgent, or only for those that are not; None = for both."""
    when: LocalTimes | None = None
    at_most: int = 0
    """Holds while so many messages went out within `per_ms`; 0 = does not count."""
    per_ms: int = 0
    until: int | None = None
    """A hold lasts until local clocks show this minute of the day after the message was sent."""
    hold_ms: int = 0
    """A hold lasts so long after the message was sent."""
    zone: str = "UTC"
    """Of `when` and `until`: where the person is."""
    ask: str = ""
    """The function that decides instead of `then`: `module:function` or a plug-in's name."""
    reason: str = ""
    """What the sender of a refused message is told; empty = what the rule is about."""


class PrivacyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule may look at; all that a verdict depends on besides the rules."""

    type: str
    subtype: str
    sender: Identifier | str
    urgent: bool
    now_ms: int
    peer: str = ""
    sent_ms: int = 0
    """When the sender sent it; 0 = now. A hold that counts from it would then never end."""
    recent: RecentSends | None = None
    """None: nobody counts, and a rule that needs it refuses."""


class Allowed(msgspec.Struct, frozen=True, tag="allowed"):
    """Send it now."""


class Hold(msgspec.Struct, frozen=True, tag="hold"):
    """Keep it, and ask again at `until` (ms UTC)."""

    until: int
    reason: str = "quiet hours"


class Refuse(msgspec.Struct, frozen=True, tag="refuse"):
    """Do not send it; the sender is told."""

    reason: str


Verdict = Allowed | Hold | Refuse


def fits_pattern(pattern: str, text: str) -> bool:
    """Whether the text is the pattern, in which `*` stands for anything; takes linear time.

    >>> fits_pattern("component:ads-*", "component:ads-7"), fits_pattern("TASK", "TASKS")
    (True, False)
    """
    first, *others = pattern.split("*")
    if not others:
        return pattern == text
    if not text.startswith(first):
        return False
    position = len(first)
    for part in others[:-1]:
        position = text.find(part, position)
        if position < 0:
            return False
        position += len(part)
    return len(text) - position >= len(others[-1]) and text.endswith(others[-1])
