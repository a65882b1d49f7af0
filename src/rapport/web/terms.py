"""What is handed to consumers that read in their own interpretation. [ME-9, CH-12]"""

from __future__ import annotations

from collections.abc import Sequence

from rapport.channel.following import Followed, Following
from rapport.channel.own_requests import interpretation_of
from rapport.core.event import StoredEvent
from rapport.node.node import Node


class Wording:
    """In whose words a subscription is served; nothing is done for who reads root."""

    def __init__(self, node: Node, channel: str, identity: str, following: Following) -> None:
        self._node, self._channel, self._identity = node, channel, identity
        self.interpretation = interpretation_of(following.query)

    @property
    def stamp(self) -> str:
        """The interpretation with its present version; empty for root. Equal stamps promise equal
        texts for equal events.
        """
        if not self.interpretation:
            return ""
        return self._node.outgoing.speech(self.interpretation).stamp

    async def said(self, followed: Followed) -> Sequence[StoredEvent]:
        """The events of a set as they are handed over; raises what `Outgoing.view` raises."""
        return await in_words(
            self._node, self._channel, followed.chosen.events, self.interpretation, self._identity
        )


async def in_words(
    node: Node, channel: str, stored: Sequence[StoredEvent], interpretation: str, identity: str
) -> Sequence[StoredEvent]:
    """Events of a channel in an interpretation, as they are without one."""
    if not interpretation:
        return stored
    return await node.outgoing.view(channel, stored, interpretation, identity=identity)
