"""What a node's shell needs to know of its part in groups, client or grouper. [EN-7]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rapport.ensemble.messages import Outgoing, Published
from rapport.kernel.clock import Now
from rapport.transport.base import Address, Sender


class GroupSide(Protocol):
    """One side of the groups, beside a gossip machine whose `recipients` it is.

    The shell asks `is_of_groupers` of every `Published` that came over IP. One that is goes to
    `received` alone; any other to the gossip machine first, and then each newer version that this
    one took (its `changed`, so those put together from parts as well) to `received`. The shell
    calls `tick` when due and sends and clears the `outbox`, what is not `is_of_groupers` by
    `GossipMachine.send`. On a node without radio the strategy is `retransmission.BesideGroups`.
    """

    outbox: list[Outgoing]

    def received(self, message: Published, sender: Sender, now: Now) -> None:
        """Knowledge came over IP."""

    def to_publish(self, component: str, now: Now) -> list[Address]:
        """Where the knowledge of a component of this node goes; for no component, where headers
        and pulls go.
        """

    def to_pass_on(self, message: Published, now: Now) -> list[Address]:
        """Where gossip passes others' knowledge on to."""

    def tick(self, now: Now) -> None:
        """Does what is due."""

    def next_due_ms(self) -> float | None:
        """The steady time of the next tick that may do something; none: nothing is due."""

    def heard(self, address: Address, now: Now) -> None:
        """The membership knows that the node there is alive."""

    def gone(self, address: Address) -> None:
        """The membership knows that the node there is dead."""

    def know_groupers(self, addresses: Sequence[Address]) -> None:
        """The membership knows these groupers to be alive, and no others."""

    def leave(self, now: Now) -> None:
        """Says good-bye, so that others take over at once."""
