"""Whether a person may be told now: what their privacy policies say about a message. [CO-9]

Joins the pure rules with what they need to know: the message, the directory of now, and when the
person was told before.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rapport.communication.delivering.case_records import Letter
from rapport.communication.delivering.transaction import Transaction
from rapport.communication.peers import PeerDirectory
from rapport.communication.privacy.functions import NO_FUNCTIONS, PrivacyFunctions
from rapport.communication.privacy.verdict import (
    Allowed,
    Hold,
    PrivacyFacts,
    Refuse,
    Verdict,
    most_counted,
    verdict,
)
from rapport.core.errors import SourceUnavailable

_TABLE = "communication.recent"
_LOOK_AGAIN_MS = 60_000
ALLOWED = Allowed()
_GONE = Refuse("peer.unknown")
"""Of somebody who was there when the message began: what they wanted is not known any more."""


class _Recent(msgspec.Struct):
    """When a person was told, newest first; as many as their rules look at."""

    times: list[int]


class Judging:
    """Verdicts about members. Who has no privacy policy costs one look into the directory."""

    def __init__(
        self,
        transaction: Transaction,
        directory: PeerDirectory,
        functions: PrivacyFunctions = NO_FUNCTIONS,
    ) -> None:
        self._transaction, self._directory, self._functions = transaction, directory, functions

    def verdict(
        self,
        name: str,
        letter_of: Callable[[], Letter],
        urgent: bool,
        now_ms: int,
        *,
        is_retry: bool = False,
    ) -> Verdict:
        """Whether a message may go to a peer now; `letter_of` is asked only where a rule is.
        `is_retry`: it was allowed before and did not get there, so it is counted already, and goes
        on to who was asked and is gone.
        """
        try:
            peer = self._directory.peer(name)
        except SourceUnavailable:
            # Nobody knows what this person allows: better late than against their will.
            return Hold(now_ms + _LOOK_AGAIN_MS, "people.directory_failed")
        if peer is not None and not peer.privacy:
            return ALLOWED
        letter = letter_of()
        if letter.effect is not None:
            return ALLOWED
        if peer is None:
            return ALLOWED if is_retry else _GONE
        facts = PrivacyFacts(
            type=letter.type,
            subtype=letter.subtype,
            sender=letter.rule_sender or letter.sender,
            urgent=urgent,
            now_ms=now_ms,
            peer=peer.name,
            sent_ms=letter.sent,
            recent=lambda count: () if is_retry else self._times(name)[:count],
        )
        return verdict(peer.privacy, facts, self._functions)

    def told(self, name: str, now_ms: int) -> None:
        """Somebody is told a message now; remembered where a rule counts."""
        try:
            peer = self._directory.peer(name)
        except SourceUnavailable:
            return  # it was there for the verdict; the message goes, only uncounted
        most = most_counted(peer.privacy) if peer is not None and peer.privacy else 0
        if most:
            times = [now_ms, *self._times(name)][:most]
            self._transaction.put(_TABLE, name, _Recent(times))

    def _times(self, name: str) -> list[int]:
        kept = self._transaction.get_struct(_TABLE, name, _Recent)
        return kept.times if kept else []
