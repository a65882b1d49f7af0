"""The Message-ID of a mail that goes out, which a reply or a bounce names again: whose mail it was,
and the proof that who names it has seen it. [CO-11, CO-16]

`<KEY.MESSAGE.PEER.TOKEN@rapport.invalid>`: everything is in the id itself, so that no table of sent
mails has to be kept, and any node that knows the secret can read it.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

import msgspec

from rapport.communication.adapters.base import Delivery

DOMAIN = "rapport.invalid"
"""A name that is never anybody's (RFC 2606)."""


_LONGEST = 400
"""A mail server may cut lines at 998 characters, and References holds several ids."""

_OURS = re.compile(
    r"([A-Za-z0-9_-]{1,64})\.([A-Za-z0-9_%~-]{1,300})\.([A-Za-z0-9_%~-]{1,300})\.([0-9A-Za-z]{1,64})"
    rf"@{re.escape(DOMAIN)}\Z"
)


class SentMail(msgspec.Struct, frozen=True):
    """What a Message-ID of ours says. Nothing of it is proven before the token was checked."""

    key: str
    message: str
    peer: str
    token: str


def message_id(delivery: Delivery, token: str) -> str:
    """The Message-ID in angle brackets, the same for every attempt. Without a token, or with names
    too long for it, only the key: replies are then known by the answer link that they quote.
    """
    whole = f"{delivery.key}.{_name(delivery.message)}.{_name(delivery.peer)}.{token}@{DOMAIN}"
    if not token or len(whole) > _LONGEST or read_message_id(whole) is None:
        return f"<{delivery.key}@{DOMAIN}>"
    return f"<{whole}>"


def read_message_id(text: str) -> SentMail | None:
    """What an id of ours says, None for all others."""
    found = _OURS.match(text.strip().strip("<>"))
    if found is None:
        return None
    key, message, peer, token = found.groups()
    try:
        return SentMail(
            key, unquote(message, errors="strict"), unquote(peer, errors="strict"), token
        )
    except UnicodeDecodeError:
        return None


def _name(text: str) -> str:
    """The name without dots and without anything that a mail header could stumble over."""
    return quote(text, safe="", errors="replace").replace(".", "%2E")
