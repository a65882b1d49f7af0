"""The inbox: a message that stays in the ledger until its reader answers through the door. [CO-16]

Nothing is sent anywhere, so it works without a network; the web page shows `Ledger.inbox(peer)`.
"""

from __future__ import annotations

from collections.abc import Sequence

from rapport.communication.adapters.base import Delivery, Outcome, Sent, adapter


@adapter("inbox")
class InboxAdapter:
    """Takes every delivery: being in the log is being in the inbox."""

    name = "inbox"
    repeatable = True
    """Nothing leaves the node."""
    keeps_order = True

    async def send(self, delivery: Delivery) -> Outcome:
        """Always taken; whether it was read is not known."""
        return Sent(delivery.key)

    async def send_many(self, deliveries: Sequence[Delivery]) -> list[Outcome]:
        """All taken, as by `send`."""
        return [Sent(delivery.key) for delivery in deliveries]

    async def close(self) -> None:
        """Nothing to let go of."""
