"""What is handed to consumers that read in their own interpretation. [ME-9, CH-12]"""

from __future__ import annotations

from collections.abc import Sequence

from rapport.channel.requests.request import interpretation_of
from rapport.channel.requests.source import ChannelFollower, FollowedSet
from rapport.core.event import StoredEvent
from rapport.node.node import Node

INTERCEPTED = "(intercepted)"
"""Stamp of events of root that passed interceptors; no interpretation has such a name."""


class Wording:
    """In whose words a subscription is served; nothing is done for who reads root."""

    def __init__(self, node: Node, channel: str, identity: str, following: ChannelFollower) -> None:
        self._node, self._channel, self._identity = node, channel, identity
        self._following = following
        self.interpretation = interpretation_of(following.query)

    @property
    def is_shared(self) -> bool:
        """Whether others who follow the same are given the same; not while interceptors are at
        work, which come and go and may look at who reads.
        """
        return not self._following.is_intercepted

    @property
    def stamp(self) -> str:
        """The interpretation with its present version; empty for root. Equal stamps promise equal
        texts for equal events.
        """
        if not self.interpretation:
            return INTERCEPTED if self._following.is_intercepted else ""
        return self._node.outgoing.transformer_for(self.interpretation).stamp

    async def said(self, followed: FollowedSet) -> Sequence[StoredEvent]:
        """The events of a set as they are handed over; raises what `Outgoing.view` raises."""
        return await in_words(
            self._node,
            self._channel,
            self._following.given(followed),
            self.interpretation,
            self._identity,
        )


async def in_words(
    node: Node, channel: str, stored: Sequence[StoredEvent], interpretation: str, identity: str
) -> Sequence[StoredEvent]:
    """Events of a channel in an interpretation, as they are without one."""
    if not interpretation:
        return stored
    return await node.outgoing.view(channel, stored, interpretation, identity=identity)
