"""What media said of plain deliveries: a line of the ledger, or a case when it failed.
[CO-8, CO-10]
"""

from __future__ import annotations

from rapport.communication.adapters.base import Delivery
from rapport.communication.adapters.outcome_events import OutcomeData
from rapport.communication.delivering.case_records import Case, Letter
from rapport.communication.delivering.cases import Cases
from rapport.communication.delivering.plain import PlainLane
from rapport.communication.delivering.plain_lines import plain_line
from rapport.communication.delivering.telling import tell_sender
from rapport.communication.delivering.tracking import Member, Retry, Stage, Tracking, Try
from rapport.communication.delivering.transaction import Transaction
from rapport.core.message import CONTROL


class PlainOutcomes:
    """Takes outcomes of which nothing is known but the delivery itself."""

    def __init__(
        self, transaction: Transaction, cases: Cases, lane: PlainLane, retry: Retry
    ) -> None:
        self._transaction, self._cases, self._lane, self._retry = transaction, cases, lane, retry

    def take(self, data: OutcomeData, delivery: Delivery, now_ms: int) -> bool:
        """Whether that was all; False when a case hears of it like of any other."""
        if data.state == "failed":
            self._adopt(delivery)
            return False
        self._transaction.emit_early("log", plain_line(data, delivery, now_ms))
        if delivery.acknowledge and data.state in ("handed", "confirmed"):
            sender = "" if delivery.type == CONTROL else delivery.sender
            tell_sender(self._transaction, sender, data.message, "ack", "", now_ms=now_ms)
        return True

    def _adopt(self, delivery: Delivery) -> None:
        """Makes a case of it, as if it had been one all the time."""
        key = delivery.case or delivery.message
        if self._cases.records.case(key) is not None:
            return
        self._lane.recent.discard(delivery.message)
        entry = Try(address=delivery.address, state="queued", attempt=delivery.attempt)
        stage = Stage(f"peer:{delivery.peer}", "to-all-members", spreading=False, asked=1)
        tracking = Tracking(
            message=key,
            urgent=delivery.urgent,
            acknowledge=delivery.acknowledge,
            retry=self._retry,
            stages=[stage],
        )
        case = Case(
            tracking=tracking,
            message=delivery.message,
            sender="" if delivery.type == CONTROL else delivery.sender,
            routed=bool(delivery.case),
        )
        records = self._cases.records
        records.save_letter(key, _letter(delivery))
        records.save_case(None, case)
        records.save_member(key, None, Member(peer=delivery.peer, tries=[entry]))


def _letter(delivery: Delivery) -> Letter:
    return Letter(
        text=delivery.text,
        time=delivery.time,
        sent=delivery.time,
        sender=delivery.sender,
        rule_sender=delivery.rule_sender,
        type=delivery.type,
        subtype=delivery.subtype,
        conversation=delivery.conversation,
        refers_to=delivery.refers_to,
        language=delivery.language,
    )
