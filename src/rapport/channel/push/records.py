"""Push subscriptions as the records keep them. [CH-2]"""

from __future__ import annotations

from typing import Literal

import msgspec

from rapport.core.errors import Corrupt
from rapport.store.base import RecordStore

TABLE = "pushes"
_PAGE = 500

Form = Literal["json", "soap", "soap12"]
"""How batches are written: as our JSON, or as a SOAP call of either version."""


class Push(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription that is pushed. New fields have a default.

    All that is needed to go on after a kill: the token names the set that is sent next, and the
    same token always names the same messages.
    """

    session: str
    """Also its id: every token of the session leads to it."""
    channel: str
    identity: str
    address: str
    form: Form
    token: str
    """The set to be sent, or the one that was (`sent`)."""
    sent: bool
    """Whether the token's set is over with: what comes next is the set after it."""
    until_ms: int
    """When the lease runs out."""
    take: bool = False
    """Messages leave the channel once the receiver has them."""
    batches: int = 0
    messages: int = 0
    """What was received so far."""


def load_pushes(records: RecordStore) -> list[Push]:
    """All subscriptions; raises Corrupt when one cannot be read."""
    found: list[Push] = []
    after = ""
    while page := records.find(TABLE, after=after, limit=_PAGE):
        found += [_decode(key, raw) for key, raw in page]
        after = page[-1][0]
    return found


def save_push(records: RecordStore, push: Push) -> None:
    """Durable when it returns."""
    records.put(TABLE, push.session, msgspec.msgpack.encode(push))


def forget_push(records: RecordStore, session: str) -> None:
    """Durable when it returns."""
    records.delete(TABLE, session)


def _decode(key: str, raw: bytes) -> Push:
    try:
        return msgspec.msgpack.decode(raw, type=Push)
    except msgspec.DecodeError as error:
        raise Corrupt(
            f"the push subscription {key!r} cannot be read: {error}", code="push.bad_record"
        ) from None
