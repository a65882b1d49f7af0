"""Session tokens and message seals; pure. [CO-11]

A token is `rst1.KEY.CLAIMS.MAC`: the id of the key that signs it, the claims (MessagePack: peer,
session, issued, expires) and HMAC-SHA256 of all before it, the last two in base64url without
padding. The MAC is compared as text, so no letter of a token can be changed.

At login a peer also gets a sealing key. A seal proves its author and that nothing was changed, so a
sealed message needs no token: the seal stands in its place (`session-token` in the JSON of listing
1) and is useless for anything else. `signed` leaves the content readable (HMAC-SHA256); `encrypted`
makes it base64url of AES-256-GCM. Both cover every other field. A seal is `rss1.` and base64url of
a MessagePack array (how, peer, session, nonce, time, proof). It covers canonical JSON: keys sorted,
no blanks, absent fields left out.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from rapport.core.message import Message

SEAL_PREFIX = "rss1."
NONCE_BYTES = 12
FRESH_MS = 300_000
"""How far apart the clocks of both sides may be, transport time included."""
SEALED_MARK = ";sealed"
"""The end of an address whose medium carries sealed contents only."""
_LONGEST_SEAL = 2_048

SealMode = Literal["signed", "encrypted"]
Direction = Literal["from-peer", "to-peer"]
"""Each direction has keys of its own: a seal of ours cannot come back as the peer's."""
SealFault = Literal["seal.malformed", "seal.wrong", "seal.stale"]


class Seal(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The data beside a sealed content."""

    how: SealMode
    peer: str
    session: str
    nonce: bytes
    time_ms: int
    proof: bytes = b""
    """The HMAC of a signed content; an encrypted one has its proof at its end."""


def sealing_key(secret: bytes, session: str, peer: str) -> bytes:
    """The key of one session, derived from the node's secret: nothing to store."""
    return derived_key(secret, f"rapport seal 1 {session} {peer}")


def seal_content(
    key: bytes, fields: Mapping[str, Any], content: str, seal: Seal, way: Direction
) -> tuple[str, str]:
    """(content, seal) for transport, with all of `fields` covered. `seal` has a nonce that was
    never used with this key, and no proof yet.
    """
    covered = _covered(fields, seal)
    if seal.how == "encrypted":
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        box = AESGCM(derived_key(key, f"encrypted {way}"))
        return to_text(box.encrypt(seal.nonce, content.encode(), covered)), write_seal(seal)
    proof = _proof(key, way, covered, content)
    return content, write_seal(msgspec.structs.replace(seal, proof=proof))


def open_content(
    key: bytes, fields: Mapping[str, Any], content: str, seal: Seal, way: Direction
) -> str | None:
    """The content that was sealed with these fields; None when anything was changed."""
    covered = _covered(fields, msgspec.structs.replace(seal, proof=b""))
    if seal.how == "signed":
        is_right = hmac.compare_digest(_proof(key, way, covered, content), seal.proof)
        return content if is_right else None
    raw = from_text(content)
    return None if raw is None or seal.proof else _decrypted(key, raw, seal.nonce, covered, way)


def seal_message(key: bytes, message: Message, seal: Seal, way: Direction) -> Message:
    """The message for transport: content sealed, the seal in place of the token."""
    content, text = seal_content(key, _fields(message), message.content, seal, way)
    return msgspec.structs.replace(message, content=content, session_token=text)


def open_message(
    key: bytes, message: Message, seal: Seal, way: Direction, now_ms: int
) -> Message | SealFault:
    """The message that was sealed, without its seal. An old seal is refused, so receivers need to
    remember seals for `FRESH_MS` only.
    """
    if abs(now_ms - seal.time_ms) > FRESH_MS:
        return "seal.stale"
    content = open_content(key, _fields(message), message.content, seal, way)
    if content is None:
        return "seal.wrong"
    return msgspec.structs.replace(message, content=content, session_token="")


def seal_text(key: bytes, message: str, peer: str, text: str, seal: Seal) -> str:
    """The text of a delivery for transport: the seal, a full stop, the sealed text."""
    about = {"message": message, "peer": peer}
    content, written = seal_content(key, about, text, seal, "to-peer")
    return f"{written}.{content}"


def open_text(key: bytes, message: str, peer: str, text: str, now_ms: int) -> str | None:
    """For receivers: the text sealed for this peer with this message, not long ago; None for any
    other.
    """
    prefix, _, rest = text.partition(".")
    written, _, content = rest.partition(".")
    seal = read_seal(f"{prefix}.{written}")
    if seal is None or abs(now_ms - seal.time_ms) > FRESH_MS:
        return None
    return open_content(key, {"message": message, "peer": peer}, content, seal, "to-peer")


def write_seal(seal: Seal) -> str:
    """The seal as text; always the same."""
    return SEAL_PREFIX + to_text(msgspec.msgpack.encode(seal))


def read_seal(text: str) -> Seal | None:
    """The seal that `write_seal` wrote; None for any other text."""
    if not text.startswith(SEAL_PREFIX) or len(text) > _LONGEST_SEAL:
        return None
    raw = from_text(text[len(SEAL_PREFIX) :])
    if raw is None:
        return None
    try:
        seal = msgspec.msgpack.decode(raw, type=Seal)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    is_ours = msgspec.msgpack.encode(seal) == raw and len(seal.nonce) == NONCE_BYTES
    return seal if is_ours else None


def split_sealed(address: str) -> tuple[str, bool]:
    """An address without its mark, and whether it had one.

    >>> split_sealed("webhook:https://example.org/hook;sealed")
    ('webhook:https://example.org/hook', True)
    """
    bare = address.removesuffix(SEALED_MARK)
    return bare, bare != address


def _fields(message: Message) -> dict[str, Any]:
    """All fields of listing 1 but content and token."""
    bare = msgspec.structs.replace(message, content="", session_token="")
    fields: dict[str, Any] = msgspec.json.decode(bare.to_json())
    return fields


def _covered(fields: Mapping[str, Any], seal: Seal) -> bytes:
    described = {
        "how": seal.how,
        "nonce": to_text(seal.nonce),
        "peer": seal.peer,
        "session": seal.session,
        "time": seal.time_ms,
    }
    return msgspec.json.encode({"fields": dict(fields), "seal": described}, order="sorted")


def _decrypted(key: bytes, raw: bytes, nonce: bytes, covered: bytes, way: Direction) -> str | None:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        return AESGCM(derived_key(key, f"encrypted {way}")).decrypt(nonce, raw, covered).decode()
    except (InvalidTag, UnicodeDecodeError):
        return None


def _proof(key: bytes, way: Direction, covered: bytes, content: str) -> bytes:
    # The length keeps the two parts apart.
    body = len(covered).to_bytes(8, "big") + covered + content.encode()
    return hmac.digest(derived_key(key, f"signed {way}"), body, hashlib.sha256)


def derived_key(secret: bytes, purpose: str) -> bytes:
    """A key of 32 bytes for one purpose: HKDF-SHA256 (RFC 5869) without a salt."""
    extracted = hmac.digest(bytes(32), secret, hashlib.sha256)
    return hmac.digest(extracted, purpose.encode() + b"\x01", hashlib.sha256)


TOKEN_PREFIX = "rst1."
LONGEST_TOKEN = 2_048
INVALID = "session.invalid"
"""The only code for callers, whatever is wrong with a token."""


TokenFault = Literal[
    "session.malformed",
    "session.forged",
    "session.of_another_peer",
    "session.ended",
    "session.expired",
]
"""The fault of a token, for the node's own log only."""


class TokenClaims(msgspec.Struct, frozen=True, array_like=True):
    """The content of a token. Times are ms UTC."""

    peer: str
    session: str
    issued_ms: int
    expires_ms: int


_decode = msgspec.msgpack.Decoder(TokenClaims).decode


def write_token(claims: TokenClaims, key: str, secret: bytes) -> str:
    """The token of these claims, signed with the key of that id, a word without dots."""
    body = f"{TOKEN_PREFIX}{key}.{to_text(msgspec.msgpack.encode(claims))}"
    return f"{body}.{_mac(secret, body)}"


def read_token(token: str, secret_of: Callable[[str], bytes | None]) -> TokenClaims | TokenFault:
    """The claims of a token that one of our keys signed; `secret_of` finds a key by its id. Does
    not check the time (`claims.expires_ms`). Takes the same time for every wrong MAC.
    """
    parts = token.split(".")
    if len(parts) != 4 or not token.startswith(TOKEN_PREFIX) or len(token) > LONGEST_TOKEN:
        return "session.malformed"
    secret, body = secret_of(parts[1]), token[: -len(parts[3]) - 1]
    if secret is None or not body.isascii():
        return "session.forged"
    if not hmac.compare_digest(_mac(secret, body).encode(), parts[3].encode("utf-8", "replace")):
        return "session.forged"
    raw = from_text(parts[2])
    try:
        return _decode(raw or b"")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "session.malformed"  # signed by us, but by another version


def key_of(token: str) -> str | None:
    """The id of the key that a token names; None for text that is no token."""
    parts = token.split(".", 2)
    return parts[1] if len(parts) == 3 and token.startswith(TOKEN_PREFIX) else None


def to_text(raw: bytes) -> str:
    """Bytes as base64url without padding.

    >>> to_text(b"\\xff\\xfe")
    '__4'
    """
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def from_text(text: str) -> bytes | None:
    """The bytes that `to_text` wrote; None for any other text."""
    try:
        raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", True)
    except (UnicodeEncodeError, binascii.Error):
        return None
    return raw if to_text(raw) == text else None


def _mac(secret: bytes, body: str) -> str:
    return to_text(hmac.digest(secret, body.encode(), hashlib.sha256))
