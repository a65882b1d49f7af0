"""Ed25519 keys; signing and verifying events. [CH-18]

`cryptography` is imported at the first use of a key, so that programs without signatures start
faster.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from rapport.core.errors import InvalidInput
from rapport.core.event import Event
from rapport.core.signature import (
    SIGNATURE,
    SIGNED_BY,
    UNSIGNED,
    Verdict,
    canonical_form,
    with_signature,
    with_signer,
)
from rapport.kernel.files import create_secret_file, read_secret_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

_PEM_BEGIN = "-----BEGIN"
_KEY_BYTES, _SIGNATURE_BYTES = 32, 64
_FINGERPRINT_DIGITS = 32


class PublicKey:
    """A public key with its name in the site and the source patterns it may sign for."""

    def __init__(self, name: str, raw: bytes, sources: tuple[str, ...] = ("*",)) -> None:
        self.name, self.raw, self.sources = name, raw, sources
        self.fingerprint = fingerprint_of(raw)
        self._loaded: Ed25519PublicKey | None = None

    def speaks_for(self, source: str) -> bool:
        return any(fnmatchcase(source, pattern) for pattern in self.sources)

    def as_text(self) -> str:
        """The key in base64, as in `[access.keys]`."""
        return base64.b64encode(self.raw).decode()

    def is_signature_of(self, signature: bytes, signed: bytes) -> bool:
        """Whether this key signed these bytes; about 0.1 ms."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        if self._loaded is None:
            self._loaded = Ed25519PublicKey.from_public_bytes(self.raw)
        try:
            self._loaded.verify(signature, signed)
        except InvalidSignature:
            return False
        return True


class SigningKey:
    """A private key. Its secret appears in no `repr` and no error."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        self._private = private
        self.public = PublicKey(
            "", private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        )
        self.fingerprint = self.public.fingerprint

    def __repr__(self) -> str:
        return f"SigningKey({self.fingerprint})"

    def sign(self, signed: bytes) -> bytes:
        """The signature, 64 bytes; about 0.03 ms."""
        return self._private.sign(signed)

    @staticmethod
    def new() -> SigningKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return SigningKey(Ed25519PrivateKey.generate())

    @staticmethod
    def from_pem(pem: bytes, *, name: str) -> SigningKey:
        """Reads a PEM text; errors call it `name`."""
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            found = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            found = None
        if not isinstance(found, Ed25519PrivateKey):
            raise InvalidInput(
                f"{name} holds no Ed25519 private key without a password, in PEM",
                code="signature.bad_key",
                hint="make one with: rapport access make-key FILE",
            )
        return SigningKey(found)

    @staticmethod
    def load(path: Path) -> SigningKey:
        """The key in a PEM file; raises InvalidInput."""
        return SigningKey.from_pem(read_secret_file(path), name=str(path))

    def save(self, path: Path) -> None:
        """Writes the key to a new file that only its owner may read, durably."""
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
        )

        pem = self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        create_secret_file(path, pem)


class KeyRing:
    """Public keys by fingerprint; the last one of a fingerprint counts."""

    def __init__(self, keys: Iterable[PublicKey] = ()) -> None:
        self._keys = {key.fingerprint: key for key in keys}

    def find(self, fingerprint: str) -> PublicKey | None:
        return self._keys.get(fingerprint)

    def by_name(self) -> list[PublicKey]:
        return sorted(self._keys.values(), key=lambda key: key.name)

    def with_key(self, key: PublicKey) -> KeyRing:
        return KeyRing([*self._keys.values(), key])


def sign_event(event: Event, key: SigningKey) -> Event:
    """Sets the headers `signedby` and `signature`. Deterministic; about 0.04 ms."""
    prepared = with_signer(event, key.fingerprint)
    return with_signature(prepared, _as_text(key.sign(canonical_form(prepared))))


def verify_event(event: Event, keys: KeyRing) -> Verdict:
    """Verifies the event's signature with these keys; never raises. About 0.12 ms."""
    given = event.headers.get(SIGNATURE)
    if given is None:
        return UNSIGNED
    fingerprint = event.headers.get(SIGNED_BY, "")
    key = keys.find(fingerprint)
    if key is None:
        return Verdict("unknown_key", fingerprint, "no key of this fingerprint is known here")
    signature = _from_text(given)
    if signature is None or not key.is_signature_of(signature, canonical_form(event)):
        return Verdict("bad", key.name, "the event is not what this key signed")
    if not key.speaks_for(event.source):
        why = f"this key does not speak for the source {event.source!r}"
        return Verdict("bad", key.name, why)
    return Verdict("ok", key.name)


def public_key(name: str, text: str, sources: tuple[str, ...] = ("*",)) -> PublicKey:
    """A public key from PEM or from base64 of its 32 bytes; raises InvalidInput."""
    raw = _from_pem(text) if text.lstrip().startswith(_PEM_BEGIN) else _from_base64(text)
    if raw is None or len(raw) != _KEY_BYTES:
        raise InvalidInput(
            f"the key {name!r} is no Ed25519 public key",
            code="signature.bad_key",
            hint="32 bytes in base64, or a file with a PEM: rapport access keys prints them",
        )
    return PublicKey(name, raw, sources)


def fingerprint_of(raw: bytes) -> str:
    """The fingerprint in `signedby`: 128 bits of the key's SHA-256."""
    return f"ed25519.{hashlib.sha256(raw).hexdigest()[:_FINGERPRINT_DIGITS]}"


def _from_pem(text: str) -> bytes | None:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_public_key,
    )

    try:
        found = load_pem_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        return None
    if not isinstance(found, Ed25519PublicKey):
        return None
    return found.public_bytes(Encoding.Raw, PublicFormat.Raw)


def _from_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None


def _as_text(signature: bytes) -> str:
    return base64.urlsafe_b64encode(signature).rstrip(b"=").decode()


def _from_text(text: str) -> bytes | None:
    """The signature's bytes; None unless the text is their canonical encoding."""
    try:
        raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", True)
    except (UnicodeEncodeError, binascii.Error):
        return None
    return raw if len(raw) == _SIGNATURE_BYTES and _as_text(raw) == text else None
