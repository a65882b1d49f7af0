"""What a node without radio passes on by gossip when it is in groups. [EN-5, EN-7]"""

from __future__ import annotations

from rapport.ensemble.gossip.strategies import KEEP, Strategy
from rapport.ensemble.messages import Headers, Published
from rapport.transport.base import Now, Sender


class BesideGroups:
    """A strategy that is asked only of knowledge without a group. What has one goes from its node
    to all members of the group, and from a grouper to the next by the key, whatever the strategy
    of the node: so each version is passed on at most once (rule 13).
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self.listens, self.needs_headers = strategy.listens, strategy.needs_headers

    def decide(self, message: Published, sender: Sender, now: Now) -> float | None:
        """As the strategy does, without groups."""
        return KEEP if message.groups else self._strategy.decide(message, sender, now)

    def repeated(self, message: Published, sender: Sender, now: Now) -> None:
        """The strategy hears of what it decides on."""
        if not message.groups:
            self._strategy.repeated(message, sender, now)

    def decide_again(self, message: Published, now: Now) -> bool:
        """Only ever asked of what it waits for."""
        return self._strategy.decide_again(message, now)

    def greeting(self, headers: Headers, now: Now) -> Headers | None:
        """As the strategy does."""
        return self._strategy.greeting(headers, now)

    def greeted(self, headers: Headers, now: Now) -> None:
        """As the strategy does."""
        self._strategy.greeted(headers, now)
