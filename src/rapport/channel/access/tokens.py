"""Tokens that show who a caller is: read from files or environment, kept as digests only. [CH-15]

A token is random and has at least 128 bits, so its SHA-256 cannot be turned back by trying: slow
hashes (argon2) protect secrets that people choose, and would cost every request milliseconds.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from rapport.core.errors import InvalidInput
from rapport.kernel.settings import read_secret

LEAST_CHARACTERS = 22
"""128 bits in base64; what is shorter can have been thought of by a person."""
_MOST_CHARACTERS = 512
_NEW_BYTES = 32


def new_token() -> str:
    """A token of 256 random bits."""
    return secrets.token_urlsafe(_NEW_BYTES)


def check_token(token: str, *, whose: str) -> None:
    """Raises InvalidInput for a token that is too easy to guess or cannot be sent in a header."""
    if len(token) < LEAST_CHARACTERS or len(set(token)) < LEAST_CHARACTERS // 3:
        raise InvalidInput(
            f"the token of {whose} is too short or too regular: a token is random, with at least "
            f"{LEAST_CHARACTERS} characters",
            code="access.weak_token",
            hint="make one with: rapport access token NAME",
        )
    printable = token.isascii() and token.isprintable() and " " not in token
    if len(token) > _MOST_CHARACTERS or not printable:
        raise InvalidInput(
            f"the token of {whose} cannot be sent in a header",
            code="access.weak_token",
            hint=f"at most {_MOST_CHARACTERS} letters, digits and signs, no spaces",
        )


class TokenBook:
    """Whose token is whose. Holds digests; no token can be read from it."""

    def __init__(self, digests: Mapping[bytes, str] | None = None) -> None:
        self._digests = dict(digests or {})

    def __len__(self) -> int:
        return len(self._digests)

    def __repr__(self) -> str:
        return f"TokenBook({len(self)} tokens)"

    def find(self, token: str) -> str | None:
        """The identity whose token this is.

        The time it takes tells nothing about the tokens: only digests are compared, and nobody can
        choose a token so that its digest comes near to another's.
        """
        return self._digests.get(_digest(token))

    def with_token(self, identity: str, token: str) -> TokenBook:
        """A book that has this token too; raises InvalidInput when it is another identity's."""
        digest = _digest(token)
        other = self._digests.get(digest, identity)
        if other != identity:
            raise InvalidInput(
                f"{identity!r} and {other!r} have the same token",
                code="access.shared_token",
                hint="give each its own: rapport access token NAME",
            )
        return TokenBook({**self._digests, digest: identity})


def read_tokens(named: Iterable[tuple[str, str]], directory: Path) -> TokenBook:
    """The tokens of (identity, `file:PATH` or `env:NAME`); raises InvalidInput for one that cannot
    be read, is weak, or is used by two.
    """
    book = TokenBook()
    for identity, place in named:
        token = _read(place, directory)
        check_token(token, whose=f"{identity!r} ({place})")
        book = book.with_token(identity, token)
    return book


def _read(place: str, directory: Path) -> str:
    try:
        return read_secret(place, directory)
    except ValueError as error:
        raise InvalidInput(
            f"{place} holds no text: {type(error).__name__}", code="settings.no_secret"
        ) from None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
