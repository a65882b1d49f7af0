"""Access control of a running node: tokens, rates, rights. [CH-15]

A token is random and has at least 128 bits, so its SHA-256 cannot be inverted by trying: slow
hashes (argon2) protect secrets that people choose, and would cost every request milliseconds. Rates
are token buckets (pure; time is an argument). A bucket may run into debt: a batch larger than the
rest passes whole and the next one waits until the debt is paid. So every batch can pass, and on
average the rate holds.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from rapport.channel.access.rights import NODE, Access, Rights, access_from_site
from rapport.channel.access.signatures import read_key
from rapport.core.errors import InvalidInput, Problem, SiteError, TooFast
from rapport.kernel.settings import read_secret
from rapport.kernel.toml import TomlFile

LEAST_CHARACTERS = 22
"""128 bits in base64; shorter ones may be guessable."""
_MOST_CHARACTERS = 512
_NEW_BYTES = 32
FAILURES_AT_ONCE = 20
FAILURES_PER_SECOND = 1
"""Failed attempts per address that are answered individually; above that the
address has to wait.
"""
_MOST_ADDRESSES = 10_000


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


class TokenDirectory:
    """Identities by token. Holds digests only."""

    def __init__(self, digests: Mapping[bytes, str] | None = None) -> None:
        self._digests = dict(digests or {})

    def __len__(self) -> int:
        return len(self._digests)

    def __repr__(self) -> str:
        return f"TokenDirectory({len(self)} tokens)"

    def find(self, token: str) -> str | None:
        """The identity of a token. Timing reveals nothing about tokens: only digests are compared,
        and a token cannot be chosen so that its digest is close to another's.
        """
        return self._digests.get(_digest(token))

    def with_token(self, identity: str, token: str) -> TokenDirectory:
        """A book that has this token too; raises InvalidInput when it is another identity's."""
        digest = _digest(token)
        other = self._digests.get(digest, identity)
        if other != identity:
            raise InvalidInput(
                f"{identity!r} and {other!r} have the same token",
                code="access.shared_token",
                hint="give each its own: rapport access token NAME",
            )
        return TokenDirectory({**self._digests, digest: identity})


def read_tokens(named: Iterable[tuple[str, str]], directory: Path) -> TokenDirectory:
    """The tokens of (identity, `file:PATH` or `env:NAME`); raises InvalidInput for one that cannot
    be read, is weak, or is used by two.
    """
    book = TokenDirectory()
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


class Bucket(msgspec.Struct):
    """The rest of an allowance at a time, in thousandths of an event."""

    level: int
    at_ms: int


def full_bucket(burst: int, now_ms: int) -> Bucket:
    """A bucket of which nothing was taken yet."""
    return Bucket(burst * 1_000, now_ms)


def take(bucket: Bucket, count: int, *, rate: int, burst: int, now_ms: int) -> int:
    """Takes `count` and returns 0, or takes nothing and returns the milliseconds to wait.

    A clock that went back pays nothing in and takes nothing out.
    """
    elapsed_ms = max(now_ms - bucket.at_ms, 0)
    bucket.level = min(bucket.level + elapsed_ms * rate, burst * 1_000)
    bucket.at_ms = now_ms
    if bucket.level <= 0:
        return -bucket.level // rate + 1
    bucket.level -= count * 1_000
    return 0


class Rates:
    """The allowances of identities with a `rate`; others are unlimited."""

    def __init__(self, rates: Mapping[str, int]) -> None:
        self._rates = dict(rates)
        self._buckets: dict[str, Bucket] = {}

    def charge(self, identity: str, events: int, now_ms: int) -> None:
        """Counts events against the identity's rate; raises TooFast with the time to wait."""
        rate = self._rates.get(identity)
        if rate is None:
            return
        bucket = self._buckets.setdefault(identity, full_bucket(rate, now_ms))
        wait_ms = take(bucket, events, rate=rate, burst=rate, now_ms=now_ms)
        if wait_ms:
            raise TooFast(
                f"{identity!r} may send {rate} events a second",
                retry_after_seconds=wait_ms / 1_000,
                hint="wait as long as Retry-After demands, or send fewer",
            )


class FailedAttempts:
    """Failed authentications per address; bounded, the least recent is forgotten first."""

    def __init__(self, most_addresses: int = _MOST_ADDRESSES) -> None:
        self._most = most_addresses
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def note(self, address: str, now_ms: int) -> None:
        """Counts a failure; raises TooFast when the address fails too often."""
        bucket = self._buckets.setdefault(address, full_bucket(FAILURES_AT_ONCE, now_ms))
        self._buckets.move_to_end(address)
        while len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        wait_ms = take(bucket, 1, rate=FAILURES_PER_SECOND, burst=FAILURES_AT_ONCE, now_ms=now_ms)
        if wait_ms:
            raise TooFast(
                "too many attempts without a valid token",
                code="access.too_many_failures",
                retry_after_seconds=wait_ms / 1_000,
                hint="request a token from the operator of the node",
            )


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """Identities, their rights and rates."""

    access: Access
    rights: Rights
    tokens: TokenDirectory
    rates: Rates

    def identify(self, token: str) -> str | None:
        """The identity of a token; None for an unknown one."""
        return self.tokens.find(token)

    def is_closed(self) -> bool:
        """Whether callers have to authenticate."""
        return len(self.tokens) > 0

    def with_node_token(self, token: str) -> Admission:
        """The same, with the node's own token; "" = it has none."""
        if not token:
            return self
        return msgspec.structs.replace(self, tokens=self.tokens.with_token(NODE, token))


def open_admission(access: Access, directory: Path) -> Admission:
    """Reads the tokens that the site names; raises InvalidInput for one that is missing or weak."""
    return Admission(
        access=access,
        rights=access.rights(),
        tokens=read_tokens(access.token_places(), directory),
        rates=Rates(access.rates()),
    )


def load_access(file: TomlFile) -> Access:
    """The `[access]` table; raises SiteError with all problems."""
    access, problems = access_from_site(file)
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        raise SiteError(errors)
    return access


def read_node_token(token_file: str, directory: Path) -> str:
    """The node's own token; "" when it has none. Raises InvalidInput for a weak one."""
    if not token_file:
        return ""
    token = read_secret(f"file:{token_file}", directory)
    check_token(token, whose=f"the node ({token_file})")
    return token


def check_access(file: TomlFile, directory: Path) -> list[Problem]:
    """All that is wrong with `[access]`, and warnings for secrets and keys that are not here: a
    site may be checked on a machine that has none of them.
    """
    access, problems = access_from_site(file)
    problems += _taking_problems(file, access)
    for name, place in access.token_places():
        if place.startswith(("file:", "env:")):
            problems += _token_problems(file, directory, name, place)
    for name, declared in access.keys.items():
        try:
            read_key(declared, directory)
        except InvalidInput as error:
            missing = error.code == "signature.no_key"
            problems.append(
                file.problem(
                    ("access", "keys", name),
                    error.code,
                    error.message,
                    hint=error.hint,
                    severity="warning" if missing else "error",
                )
            )
    return problems


def _taking_problems(file: TomlFile, access: Access) -> list[Problem]:
    """A hint for sites from before taking had a right of its own."""
    grants = [one.grant for one in access.identities.values()]
    if not any(grant.subscribe for grant in grants) or any(grant.take for grant in grants):
        return []
    return [
        file.problem(
            ("access",),
            "access.nobody_takes",
            "no identity may take messages: to read does not include it",
            hint='taking needs take = ["CHANNEL"] besides subscribe; ignore this otherwise',
            severity="hint",
        )
    ]


def _token_problems(file: TomlFile, directory: Path, name: str, place: str) -> list[Problem]:
    try:
        read_tokens([(name, place)], directory)
    except InvalidInput as error:
        problem = file.problem(
            ("access", name),
            error.code,
            error.message,
            hint=error.hint or f"make one: rapport access token {name}",
            severity="warning" if error.code == "settings.no_secret" else "error",
        )
        return [msgspec.structs.replace(problem, excerpt="")]
    return []


OPEN_TO_ALL = open_admission(Access(), Path())
"""The admission of a node without `[access]`: local callers have every right."""
