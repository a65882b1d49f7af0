"""What the parts of a broker's machine share. [CX-5, CX-7]"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from rapport.context.broker.agenda import Agenda
from rapport.context.broker.effects import Effect
from rapport.context.broker.settings import BrokerSettings
from rapport.context.messages import Message, Question
from rapport.context.ownership import Ownership
from rapport.context.table import Held, Records, key_of
from rapport.core.context_record import EntityRef
from rapport.kernel.chance import Chance
from rapport.overlay.membership import Membership
from rapport.transport.base import Address, Now

Allows = Callable[[str, str, EntityRef | None, str], bool]
"""`(identity, right, entity, scope)`; rights are read, write, take_over and control (without
entity).
"""


def everybody_may(identity: str, right: str, entity: EntityRef | None, scope: str) -> bool:
    """No rights are declared."""
    return True


class Workplace:
    """One broker's place, table, memory of what is to be sent and done."""

    __slots__ = (
        "address",
        "agenda",
        "allows",
        "chance",
        "counts",
        "effects",
        "membership",
        "outbox",
        "ownership",
        "settings",
        "table",
    )

    def __init__(
        self,
        address: Address,
        settings: BrokerSettings,
        chance: Chance,
        allows: Allows,
        former: Sequence[Address] = (),
        outbox: list[tuple[Message, Address]] | None = None,
    ) -> None:
        self.address, self.settings, self.chance, self.allows = address, settings, chance, allows
        self.table = Records(settings.table)
        self.ownership = Ownership(settings.table.own_records)
        self.membership = Membership(
            address, settings.membership, chance, former=former, watching=settings.monitors
        )
        self.agenda = Agenda()
        self.outbox: list[tuple[Message, Address]] = [] if outbox is None else outbox
        self.effects: list[Effect] = []
        self.counts: defaultdict[str, int] = defaultdict(int)
        """What happened how often, for metrics."""

    def answer(
        self, question: Question, without: tuple[Address, ...], now: Now, *, fresh: bool = False
    ) -> Held | None:
        """What is here for a question from elsewhere; copies of what `without` held are not, nor
        any copy when it is to be `fresh`, but what stands in this broker's own name is.
        """
        if fresh:
            return self.table.answer_own(key_of(question), now.wall_ms)
        held = self.table.answer(key_of(question), now.wall_ms)
        if not without or held is None or held.holder not in without:
            return held
        others = tuple(one for one in without if one != self.address)
        return self.table.answer_without(key_of(question), now.wall_ms, others)

    def send(self, message: Message, to: Address) -> None:
        """Puts a message into the outbox."""
        self.outbox.append((message, to))
