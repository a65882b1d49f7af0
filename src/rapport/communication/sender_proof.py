"""How the sender of a message is proven: session token, seal, answer token, or the medium.
[CO-11]

All three tokens stand in `session-token` and differ in their prefix. An invalid token never counts
as none: the message is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from rapport.communication.answers import is_answer_token
from rapport.communication.sessions.sealing import SEAL_PREFIX, open_message, read_seal
from rapport.communication.sessions.sessions import Checked, Sessions
from rapport.communication.sessions.tokens import TOKEN_PREFIX, to_text
from rapport.core.ids import content_id
from rapport.core.message import Message
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger

Proof = Literal["application", "session", "answer", "medium", "none"]
EXPIRED = "session.expired"

Trusted = Callable[[Message], bool]
"""Whether the medium vouches for the sender of a message."""

_log = get_logger(__name__)


def never(_message: Message) -> bool:
    """The medium vouches for nobody."""
    return False


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

    def __init__(self, sessions: Sessions, secret: bytes, clock: Clock) -> None:
        """`secret`: that of answer links."""
        self._sessions, self._secret, self._clock = sessions, secret, clock

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
        return found

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


def _by_session(message: Message, checked: Checked) -> ProvenMessage:
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
