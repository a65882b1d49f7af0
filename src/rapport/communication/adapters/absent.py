"""Answers for an adapter that the site no longer has: nothing queued is dropped. [CO-4, CO-10,
CO-17]
"""

from __future__ import annotations

from rapport.communication.adapters.base import Delivery, Failed, Outcome


class AbsentAdapter:
    """Fails every delivery for good, so that another address or receiver gets it."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def send(self, delivery: Delivery) -> Outcome:
        """Always a final failure."""
        return Failed(
            f"adapter.unknown: the site has no adapter {self.name!r} any more", retry=False
        )

    async def close(self) -> None:
        """Nothing to let go of."""


class ElsewhereAdapter(AbsentAdapter):
    """Stands for a medium that another of several engines was given as a class of its own: what
    comes to this one waits for it to be given here, too, or goes to another address.
    """

    async def send(self, delivery: Delivery) -> Outcome:
        """A failure for now."""
        return Failed(
            f"adapter.elsewhere: this engine was not given the adapter {self.name!r}; register it "
            "in every process, or install it as a plug-in (rapport.adapters)",
            retry=True,
            unavailable=True,
        )
