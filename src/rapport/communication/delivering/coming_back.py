"""What comes back about messages: outcomes of media, answers that doors took. [CO-8, CO-10]"""

from __future__ import annotations

from rapport.communication.adapters.outcome_events import OutcomeData
from rapport.communication.arriving.answers import AnswerData, is_answer_token
from rapport.communication.delivering.cases import Cases
from rapport.communication.delivering.declining import Declines
from rapport.communication.delivering.plain_lines import came_back_line
from rapport.communication.delivering.plain_outcomes import PlainOutcomes
from rapport.communication.delivering.receiving import answered_line
from rapport.communication.delivering.steps import LATEST_ATTEMPT, Answer
from rapport.communication.delivering.telling import PROOF, tell_sender
from rapport.communication.delivering.told_before import ToldBefore
from rapport.communication.delivering.transaction import Transaction
from rapport.communication.ledger import refused_answer_event
from rapport.core.errors import InvalidInput
from rapport.core.event import MAX_NAME, Event


class ComingBack:
    """Passes it on to the case it is about; where there is none, says what can be said."""

    def __init__(
        self,
        transaction: Transaction,
        cases: Cases,
        plain: PlainOutcomes,
        told_before: ToldBefore,
        declines: Declines,
        secret: bytes,
    ) -> None:
        """`secret`: that of answer links."""
        self._transaction, self._cases, self._plain = transaction, cases, plain
        self._told_before, self._declines, self._secret = told_before, declines, secret

    def take_outcome(self, data: OutcomeData, now_ms: int, cause: str) -> None:
        """Raises InvalidInput for what no line could be about."""
        _check_name(data.message)
        if data.delivery is not None and self._plain.take(data, data.delivery, now_ms):
            return
        known = self._cases.hear_outcome(data, now_ms=now_ms, cause=cause)
        if not known and data.attempt == LATEST_ATTEMPT:
            sender, reason = self._told_before.sender(data.message), data.reason
            self._transaction.emit("log", came_back_line(data, cause, now_ms))
            tell_sender(self._transaction, sender, data.message, "error", reason, now_ms=now_ms)

    def take_answer(self, event: Event, now_ms: int) -> None:
        """Raises InvalidInput for an event that is no answer."""
        data: AnswerData = event.payload_as(AnswerData)
        message, peer = data.message, data.peer
        # The door checked the token and kept it out of the event; what has neither is forged.
        is_proven = event.headers.get(PROOF) == "answer"
        if not is_proven and not is_answer_token(self._secret, message, peer, data.token):
            line = refused_answer_event(
                message, peer, "the token is wrong", cause=event.id, now_ms=now_ms
            )
            self._transaction.emit("log", line)
            return
        answer = Answer(peer, data.text, data.declined or self._declines.says(data.text))
        if not self._cases.hear_answer(message, answer, now_ms=now_ms, cause=event.id):
            # The token proves that they were asked; nothing else is remembered of it.
            self._transaction.emit("log", answered_line(message, answer, event.id, now_ms))


def _check_name(message: str) -> None:
    """Raises InvalidInput for what cannot be the id of a message: no line could be about it."""
    if len(message) > MAX_NAME or not message.isprintable():
        raise InvalidInput(
            f"{message[:40]!r} cannot be the id of a message",
            code="event.bad_data",
            hint=f"at most {MAX_NAME} characters that can be printed",
        )
