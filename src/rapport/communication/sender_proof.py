"""How the sender of a message is proven: session token, seal, answer token, or the medium.
[CO-11]

All three tokens stand in `session-token` and differ in their prefix. An invalid token never counts
as none: the message is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Literal

import msgspec

from rapport.communication.answers import is_answer_token
from rapport.communication.ledger_events import PROOF as PROOF
from rapport.communication.sessions.seals import (
    SEAL_PREFIX,
    TOKEN_PREFIX,
    open_message,
    read_seal,
    to_text,
)
from rapport.communication.sessions.sessions import Sessions, TokenCheck
from rapport.core.ids import content_id
from rapport.core.message import Message
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger

Proof = Literal["application", "session", "answer", "medium", "none"]
EXPIRED = "session.expired"
ANSWER_OVER = "answer.link_over"
"""The message that an answer token proves was closed too long ago."""

ClosedBefore = Callable[[Collection[str], int], Awaitable[Collection[str]]]
"""Messages and a time (ms UTC) to those of them that ended before it; see `Ledger`."""

Trusted = Callable[[Message], bool]
"""Whether the medium vouches for the sender of a message."""

_log = get_logger(__name__)


def never(_message: Message) -> bool:
    """The medium vouches for nobody."""
    return False


async def none_closed(_messages: Collection[str], _time_ms: int) -> Collection[str]:
    """Without a ledger no message is known to have ended."""
    return ()


class ProvenMessage(msgspec.Struct, frozen=True, gc=False):
    """A message without its token, and the proof of its sender or the fault of the token."""

    message: Message
    proof: Proof = "none"
    fault: str = ""
    unique: str = ""
    """The id that a seal gives the message: the same seal is the same message."""
    session: str = ""


class SenderProofs:
    """Checks the tokens of messages."""

    def __init__(
        self, sessions: Sessions, secret: bytes, clock: Clock, *, answer_links_ms: int
    ) -> None:
        """`secret`: that of answer links; `answer_links_ms`: how long an answer token proves
        something after its message was closed, the same as for the link.
        """
        self._sessions, self._secret, self._clock = sessions, secret, clock
        self._answer_links_ms = answer_links_ms
        self.closed_before: ClosedBefore = none_closed

    async def of(self, messages: Sequence[Message], trusted: Trusted) -> list[ProvenMessage]:
        """The proof of each message of a peer; tokens of a batch are checked together."""
        tokens = [m.session_token for m in messages if m.session_token.startswith(TOKEN_PREFIX)]
        checked = iter(await self._sessions.check(tokens) if tokens else ())
        found = []
        for message in messages:
            token = message.session_token
            if not token:
                proof: Proof = "medium" if vouches(trusted, message) else "none"
                found.append(ProvenMessage(message, proof))
            elif token.startswith(TOKEN_PREFIX):
                found.append(_by_session(message, next(checked)))
            elif token.startswith(SEAL_PREFIX):
                found.append(await self._by_seal(message))
            else:
                found.append(self._by_answer(message))
        return await self._without_old_answers(found)

    async def _without_old_answers(self, found: list[ProvenMessage]) -> list[ProvenMessage]:
        """One look at the ledger for all answer tokens of the batch."""
        answered = {one.message.refers_to for one in found if one.proof == "answer"}
        if not answered:
            return found
        over = await self.closed_before(answered, self._clock.now_ms() - self._answer_links_ms)
        return [
            ProvenMessage(one.message, fault=ANSWER_OVER)
            if one.proof == "answer" and one.message.refers_to in over
            else one
            for one in found
        ]

    def _by_answer(self, message: Message) -> ProvenMessage:
        peer, bare = message.sender.name, _bare(message)
        if not is_answer_token(self._secret, message.refers_to, peer, message.session_token):
            return ProvenMessage(bare, fault="session.malformed")
        return ProvenMessage(bare, "answer")

    async def _by_seal(self, message: Message) -> ProvenMessage:
        seal = read_seal(message.session_token)
        if seal is None:
            return ProvenMessage(_bare(message), fault="seal.malformed")
        if seal.peer != message.sender.name:
            return ProvenMessage(_bare(message), fault="session.of_another_peer")
        found = await self._sessions.sealing(seal.peer, seal.session)
        if found is None:
            return ProvenMessage(_bare(message), fault="session.ended")
        opened = open_message(found[1], message, seal, "from-peer", self._clock.now_ms())
        if not isinstance(opened, Message):
            return ProvenMessage(_bare(message), fault=opened)
        unique = content_id("sealed", seal.session, to_text(seal.nonce))
        return ProvenMessage(opened, "session", unique=unique, session=seal.session)


def _by_session(message: Message, checked: TokenCheck) -> ProvenMessage:
    bare = _bare(message)
    if checked.session is None:
        return ProvenMessage(bare, fault=checked.fault or "session.ended")
    if checked.session.peer != message.sender.name:
        return ProvenMessage(bare, fault="session.of_another_peer")
    return ProvenMessage(bare, "session", fault=checked.fault or "", session=checked.session.id)


def vouches(trusted: Trusted, message: Message) -> bool:
    """Whether the medium vouches for the sender."""
    try:
        return trusted(message) is True
    except Exception as error:
        # Code of an adapter: a failure is no trust.
        _log.error("trust check failed", error=repr(error)[:200])
        return False


def _bare(message: Message) -> Message:
    return msgspec.structs.replace(message, session_token="")
