"""Answers for an adapter that the site no longer has: nothing queued is dropped. [CO-4, CO-10,
CO-17]
"""

from __future__ import annotations

from rapport.communication.adapters.base import Delivery, Failed, Outcome


class AbsentAdapter:
    """Fails every delivery, so that another address or receiver gets it: for good, or for now where
    an application may register the adapter again after a restart.
    """

    def __init__(self, name: str, *, may_return: bool = False) -> None:
        self.name, self._may_return = name, may_return

    async def send(self, delivery: Delivery) -> Outcome:
        """Always a failure."""
        if self._may_return:
            reason = f"adapter.unknown: nobody has registered the adapter {self.name!r} yet"
            return Failed(reason, retry=True, unavailable=True)
        return Failed(
            f"adapter.unknown: the site has no adapter {self.name!r} any more", retry=False
        )

    async def close(self) -> None:
        """Nothing to let go of."""


class OtherEngineAdapter(AbsentAdapter):
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
