"""How eagerly a network watches its members. [EN-10]"""

from __future__ import annotations

import math

import msgspec

from rapport.core.errors import InvalidInput


class SwimSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes of a network should have the same; times in ms.

    A node sends about two messages per period while nothing happens, however many nodes there are.
    """

    period_ms: float = 1_000.0
    """Every so often one member is probed. Halving it halves detection time and doubles the load.
    """
    ack_ms: float = 250.0
    """How long to wait for an answer before the ping is repeated; longer than a round trip."""
    repeats: int = 1
    """Times an unanswered ping is repeated before others are asked; costs nothing without loss."""
    helpers: int = 3
    """Others that are asked to ping who did not answer."""
    suspicion: float = 1.75
    """A suspected member has at least `suspicion * log10(n)` periods to object, never below two. It
    is counted as dead at the end.
    """
    patience: float = 2.5
    """So many times that long while nobody else has confirmed the suspicion."""
    confirmations: int = 3
    """After so many others said the same, it has only the least time."""
    gossip_ms: float = 200.0
    """While there is news, it is told to `fan_out` others every so often, beside what is sent
    along with pings.
    """
    fan_out: int = 3
    retransmit: int = 4
    """Each news is told `retransmit * log10(n)` times by each who hears it."""
    news_bytes: int = 512
    """Most bytes of news that go with one message."""
    sync_periods: int = 15
    """Every so many periods two members compare all they know; that heals what gossip missed."""
    revisit_periods: int = 5
    """Every so many periods one of the dead is asked whether it is back; that heals partitions."""
    forget_periods: int = 60
    """The dead are remembered for so many periods, then only their addresses are."""
    most_health: int = 8
    """How many times slower a node that does not keep up gets before it accuses others."""
    most_members: int = 10_000
    """Others are not taken in beyond that, so that nobody can fill our memory."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not math.isfinite(getattr(self, name)):
                raise _bad(f"{name} is {getattr(self, name)}", "a finite number")
        waiting = self.ack_ms * (self.repeats + 2)
        if self.period_ms <= 0 or self.ack_ms <= 0 or waiting > self.period_ms:
            raise _bad(
                f"{self.repeats + 1} pings and the asking of others take {waiting:g} ms, "
                f"a period has {self.period_ms:g}",
                "ack_ms * (repeats + 2) must not be above period_ms",
            )
        least_one = (self.fan_out, self.retransmit, self.sync_periods, self.revisit_periods)
        if min(*least_one, self.most_members, self.forget_periods) < 1 or self.gossip_ms <= 0:
            raise _bad(
                "fan_out, retransmit, most_members and all numbers of periods are 1 or more", ""
            )
        if min(self.repeats, self.helpers, self.confirmations, self.most_health) < 0:
            raise _bad("repeats, helpers, confirmations and most_health are not negative", "")
        if self.suspicion <= 0 or self.patience < 1 or self.news_bytes < 128:
            raise _bad(
                "suspicion is above 0, patience 1 or more, news_bytes 128 or more",
                "shorter messages have no room for the name of a node",
            )

    def least_suspicion_ms(self, nodes: int) -> float:
        """What a suspected one has when several say the same."""
        return max(2.0, self.suspicion * math.log10(max(nodes, 1))) * self.period_ms

    def suspicion_ms(self, nodes: int, confirmed: int) -> float:
        """How long a suspected one may object; falls with the logarithm of who confirmed it."""
        least_ms = self.least_suspicion_ms(nodes)
        if confirmed >= self.confirmations:
            return least_ms
        share = math.log(confirmed + 1) / math.log(self.confirmations + 1)
        return least_ms * (self.patience - (self.patience - 1) * share)

    def tellings(self, nodes: int) -> int:
        """How often one node tells a piece of news."""
        return self.retransmit * math.ceil(math.log10(max(nodes, 1) + 1))


def _bad(message: str, hint: str) -> InvalidInput:
    return InvalidInput(message, code="overlay.bad_settings", hint=hint)
