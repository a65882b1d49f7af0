"""What a policy says about one of its actions, as values; `delivery.py` reads them from its lines.
[PO-3, PO-10, CO-8]"""

from __future__ import annotations

from typing import Literal

import msgspec

from rapport.policy.language.tree import Place

Reach = Literal["anybody", "everybody"]
Ways = Literal["preferred", "all", "any"]


class Receiver(msgspec.Struct, frozen=True):
    """A peer or a collective; `kind` is empty where the policy does not say which."""

    kind: Literal["", "peer", "collective"]
    name: str
    place: Place


class Escalation(msgspec.Struct, frozen=True):
    """Who is asked when the one before did not answer, and how long they have; 0 = as long as the
    action says."""

    receiver: Receiver
    within_ms: int = 0


class DeliveryBlock(msgspec.Struct, kw_only=True):
    """What a policy says about one of its actions; None and empty where it leaves it to the
    site.
    """

    to: Receiver | None = None
    then: list[Escalation] = []
    reach: Reach | None = None
    least: int = 0
    """How many it takes; 0 where `reach` says it, or the site."""
    reach_place: Place | None = None
    awaits_answer: bool = False
    answer_within_ms: int | None = None
    urgent: bool | None = None
    say: str | None = None
    say_place: Place | None = None
    until_ms: int | None = None
    repeat_every_ms: int | None = None
    repeat_most: int = 0
    """How often it is said again; 0 = until the message is done or over."""
    repeat_place: Place | None = None
    ways: Ways | None = None
    """By which of their addresses people are told."""

    def receivers(self) -> list[Receiver]:
        """Everybody it names."""
        first = [self.to] if self.to is not None else []
        return [*first, *(each.receiver for each in self.then)]
