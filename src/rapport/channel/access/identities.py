"""Access control of a node: identities, their tokens, rights, rates and quotas of channels. [CH-15,
CH-18]

```toml
[access]
sign = true                             # the node signs its own events

[access.gateway]
token = "file:secrets/gateway.token"    # or env:NAME; tokens = [...] while they are exchanged
publish = ["raw.*"]
subscribe = ["detections", "jobs"]
take = ["jobs"]                         # besides subscribe: taken messages are gone for others
rate = 1000                             # events per second
admin = false

[access.ana]                            # the person of that name logs in to the console
role = "operator"                       # viewer, operator, editor or admin

[access.local]                          # callers on loopback without a token; no rights without it
subscribe = ["*"]

[access.keys]                           # public keys of signers
gateway = "file:gateway.pub"            # PEM or base64
```

A role is a set of rights: a viewer reads every channel, an operator also releases and sends, an
editor also changes policies and interpretations, an admin has every right. An identity with a role
needs no token: the person of that name logs in with a password.

A channel begins with its first event. Its creator is recorded once that event is on disk; channels
of the node itself, and those older than this record, count for no identity's quota.

A token is random and has at least 128 bits, so its SHA-256 cannot be inverted by trying: slow
hashes (argon2) protect secrets that people choose, and would cost every request milliseconds. Rates
are token buckets (pure; time is an argument). A bucket may run into debt: a batch larger than the
rest passes whole and the next one waits until the debt is paid. So every batch can pass, and on
average the rate holds.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, get_args

import msgspec

from rapport.channel.validation import (
    NODE_CHANGING_CHANNELS,
    READER_PREFIX,
    is_node_channel,
)
from rapport.core.errors import (
    InvalidInput,
    NotAllowed,
    Problem,
    SiteError,
    TooFast,
)
from rapport.kernel.config_fields import Fields
from rapport.kernel.settings import read_secret
from rapport.kernel.signing_keys import (
    PublicKey,
    public_key,
)
from rapport.kernel.toml import Section, TomlFile
from rapport.store.base import Change, Put, RecordStore, all_records

Right = Literal["publish", "subscribe", "take"]
Role = Literal["viewer", "operator", "editor", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
"""Each includes the rights of those before it."""
_VERBS: dict[Right, str] = {"publish": "append to", "subscribe": "read", "take": "take from"}

LOCAL = "local"
"""The identity of callers on loopback without a token, as far as the site lets them in."""
NODE = "node"
"""The identity of the node's own token (`[node] token_file`); has every right."""
NOBODY = "nobody"
"""The identity of unauthenticated callers of public endpoints; has no rights, ever."""
KEYS, SIGN = "keys", "sign"
_IDENTITY_KEYS = ("token", "tokens", "publish", "subscribe", "take", "admin", "rate", "role")
_KEY_KEYS = ("key", "sources")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")
_PATTERN = re.compile(r"[a-z0-9._*?-]{1,128}\Z")
_HIGHEST_RATE = 10_000_000
CHANNELS_PER_IDENTITY = 1_000
"""Default of `[channels] channels_per_identity`."""
_TABLE = "channels_begun"
_REMEMBERED = 4_096
"""Most cached decisions; callers may name any number of channels."""
T = TypeVar("T")


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Channels (names or patterns) that an identity may append to, read from and take from."""

    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    take: tuple[str, ...] = ()
    """A taken message is gone for all others, so `subscribe` does not include this right."""
    admin: bool = False
    """May change the node: interpretations, policies, interceptors, links, forgetting."""
    role: Role | Literal[""] = ""
    """What the identity may do in the console; includes the rights of the role."""

    def includes(self, role: Role) -> bool:
        own: Role | Literal[""] = "admin" if self.admin else self.role
        return bool(own) and ROLES.index(own) >= ROLES.index(role)


EVERYTHING = Grant(publish=("*",), subscribe=("*",), take=("*",), admin=True, role="admin")
_NOTHING = Grant()


class Rights:
    """The grants in force; unnamed identities have no rights. Appending to a channel whose events
    change the node needs the `admin` right too, at every endpoint.
    """

    def __init__(self, grants: Mapping[str, Grant]) -> None:
        self._grants = dict(grants)
        self._is_granted = lru_cache(_REMEMBERED)(self._matches)

    def allows(self, identity: str, right: Right, channel: str) -> bool:
        if (
            right == "publish"
            and channel in NODE_CHANGING_CHANNELS
            and not self.allows_admin(identity)
        ):
            return False
        return self._is_granted(identity, right, channel)

    def _matches(self, identity: str, right: Right, channel: str) -> bool:
        patterns = getattr(self._grants.get(identity, _NOTHING), right)
        return any(fnmatchcase(channel, pattern) for pattern in patterns)

    def check(self, identity: str, right: Right, channel: str) -> None:
        """Raises NotAllowed unless the identity has the right on the channel."""
        if not self._is_granted(identity, right, channel):
            raise NotAllowed(
                f"{identity!r} may not {_VERBS[right]} channel {channel!r}",
                code="access.no_right",
                hint=f"the site's [access] gives rights: add {channel!r} to its {right} list",
            )
        if right == "publish" and channel in NODE_CHANGING_CHANNELS:
            self.check_admin(identity)

    def allows_admin(self, identity: str) -> bool:
        return self._grants.get(identity, _NOTHING).admin

    def check_admin(self, identity: str) -> None:
        """Raises NotAllowed unless the identity may change the node itself."""
        if not self.allows_admin(identity):
            raise NotAllowed(
                f"{identity!r} may not change the node",
                code="access.not_admin",
                hint=f"the site's [access] gives the right: admin = true in [access.{identity}]",
            )

    def allows_role(self, identity: str, role: Role) -> bool:
        return self._grants.get(identity, _NOTHING).includes(role)

    def role_of(self, identity: str) -> Role | Literal[""]:
        return next((one for one in reversed(ROLES) if self.allows_role(identity, one)), "")

    def check_role(self, identity: str, role: Role) -> None:
        """Raises NotAllowed unless the identity has the rights of a role."""
        if not self.allows_role(identity, role):
            raise NotAllowed(
                f"{identity!r} may not do this: it needs the role {role}",
                code="access.no_role",
                hint=f'the site\'s [access] gives roles: role = "{role}" in [access.{identity}]',
            )

    def grants(self) -> dict[str, Grant]:
        return dict(sorted(self._grants.items()))


class IdentityConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One identity of a site. Tokens are named, never written out."""

    name: str
    grant: Grant
    tokens: tuple[str, ...] = ()
    rate: int = 0
    """Events per second; 0 = unlimited."""


class KeyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A public key: base64, or `file:PATH` of a PEM or base64 text."""

    name: str
    key: str
    sources: tuple[str, ...] = ("*",)
    """Sources (names or patterns) whose events it may sign."""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """The `[access]` table of a site."""

    identities: dict[str, IdentityConfig] = {}
    keys: dict[str, KeyConfig] = {}
    sign: bool = False

    def rights(self) -> Rights:
        """The rights of each identity. While none is named, local callers have every right."""
        named = {name: one.grant for name, one in self.identities.items()}
        return Rights({**(named or {LOCAL: EVERYTHING}), NODE: EVERYTHING})

    def knows_local(self) -> bool:
        """Whether the site grants rights to callers without a token."""
        return LOCAL in self.identities

    def token_places(self) -> Iterator[tuple[str, str]]:
        """(identity, where its token is) for all tokens."""
        for name, one in self.identities.items():
            for place in one.tokens:
                yield name, place

    def has_people(self) -> bool:
        """Whether people log in by their role."""
        return any(one.grant.role for one in self.identities.values())

    def rates(self) -> dict[str, int]:
        """Events a second of those identities that have a limit."""
        return {name: one.rate for name, one in self.identities.items() if one.rate}


def access_from_site(file: TomlFile) -> tuple[Access, list[Problem]]:
    """The `[access]` table, and all its problems; never raises for a wrong site. Reads no secrets:
    the node's start checks them.
    """
    problems: list[Problem] = []
    section = file.section("access")
    tables = {name: table for name, table in section.sections() if name != KEYS}
    fields = Fields(section, problems, known=(SIGN, KEYS, *tables), strict=True)
    access = Access(
        identities={
            name: _identity(name, table, problems)
            for name, table in tables.items()
            if _is_name(name, fields)
        },
        keys=_keys(fields),
        sign=fields.flag(SIGN),
    )
    return access, problems


def check_identity_name(name: str) -> None:
    """Raises InvalidInput for an invalid name of an identity with a token."""
    is_taken = name in (NODE, NOBODY, LOCAL, KEYS, SIGN) or name.startswith(READER_PREFIX)
    if is_taken or not _NAME.match(name):
        raise InvalidInput(
            f"{name[:80]!r} cannot be the name of an identity",
            code="access.bad_name",
            hint="1 to 64 of a-z, 0-9, '.', '_' and '-'; node, local, nobody, keys, sign and "
            "names beginning with intercept. are reserved",
        )


def _is_name(name: str, fields: Fields) -> bool:
    if name in (NODE, NOBODY) or name.startswith(READER_PREFIX):
        message = f"the name {name!r} is taken"
        hint = (
            "[node] token_file gives the node's own token"
            if name == NODE
            else "choose another name"
        )
        fields.fault(name, "access.bad_name", message, hint=hint)
    elif not _NAME.match(name):
        message = f"{name[:80]!r} cannot be the name of an identity"
        hint = "1 to 64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit"
        fields.fault(name, "access.bad_name", message, hint=hint)
    else:
        return True
    return False


def _identity(name: str, table: Section, problems: list[Problem]) -> IdentityConfig:
    fields = Fields(table, problems, known=_IDENTITY_KEYS, strict=True)
    grant = Grant(
        publish=_patterns(fields, "publish"),
        subscribe=_patterns(fields, "subscribe"),
        take=_patterns(fields, "take"),
        admin=fields.flag("admin"),
    )
    grant = _with_role(grant, fields)
    for channel in NODE_CHANGING_CHANNELS if not grant.admin else ():
        if channel in grant.publish:
            message = f"sending {channel!r} changes the node: this right alone is of no use"
            hint = "admin = true, if it may; or let a link receive the channel"
            fields.fault("publish", "access.useless_right", message, hint=hint, severity="warning")
    if grant.take and not grant.subscribe:
        message = f"taking includes reading, and {name!r} may read no channel"
        hint = "add the channels of its take list to its subscribe list"
        fields.fault("take", "access.useless_right", message, hint=hint, severity="warning")
    return IdentityConfig(
        name=name,
        tokens=_tokens(name, table, problems, needed=not grant.role),
        grant=grant,
        rate=fields.number("rate", 0, low=1, high=_HIGHEST_RATE) if fields.has("rate") else 0,
    )


def _with_role(grant: Grant, fields: Fields) -> Grant:
    text = fields.filled_text("role", example='"operator"') if fields.has("role") else ""
    role = next((one for one in ROLES if one == text), None)
    if text and role is None:
        message, hint = f"{text[:80]!r} is no role", f"one of: {', '.join(ROLES)}"
        fields.fault("role", "access.bad_role", message, hint=hint)
    if role is None:
        return grant
    if role == "admin":
        return EVERYTHING
    return msgspec.structs.replace(grant, subscribe=("*",), role=role)


def _tokens(name: str, table: Section, problems: list[Problem], *, needed: bool) -> tuple[str, ...]:
    """Where the tokens are. Lines of the file are not repeated: they may hold a secret."""
    found: list[Problem] = []
    fields = Fields(table, found)
    both = fields.texts("token", (), example='"file:..."') + fields.texts("tokens", ())
    for place in both:
        if not place.startswith(("file:", "env:")) or place in ("file:", "env:"):
            message = f"a token of {name!r} is written out, or named in no known way"
            hint = 'name it as "file:PATH" or "env:NAME"; rapport access token makes one'
            key = "tokens" if fields.has("tokens") else "token"
            fields.fault(key, "settings.bare_secret", message, hint=hint)
    if name == LOCAL and (fields.has("token") or fields.has("tokens")):
        message = "callers as 'local' need no token"
        hint = "leave the token out, or choose another name"
        fields.fault("", "access.local_token", message, hint=hint)
    elif needed and name != LOCAL and not both and not found:
        message = f"{name!r} has no token, so no caller can use it"
        hint = f"make one: rapport access token {name}"
        fields.fault("", "access.no_token", message, hint=hint)
    problems += [msgspec.structs.replace(problem, excerpt="") for problem in found]
    return both


def _patterns(fields: Fields, key: str) -> tuple[str, ...]:
    patterns = fields.texts(key, (), example='["raw.*"]')
    for pattern in patterns:
        if not _PATTERN.match(pattern):
            message = f"{pattern[:80]!r} cannot be the name or pattern of channels"
            hint = "a-z, 0-9, '.', '_', '-', '*' for anything and '?' for one character"
            fields.fault(key, "access.bad_pattern", message, hint=hint)
        elif key == "publish" and is_node_channel(pattern):
            message = f"only the node itself appends to {pattern!r}: this right is of no use"
            hint = "publish to raw.SOURCE, or to a channel of your own name"
            fields.fault(key, "access.useless_right", message, hint=hint, severity="warning")
    return patterns


def _keys(fields: Fields) -> dict[str, KeyConfig]:
    table = fields.table(KEYS, None, '{ NAME = "file:NAME.pub" }')
    if table is None:
        return {}
    return {
        name: key
        for name, value in table.section.values.items()
        if _is_name(name, table) and (key := _key(table, name, value)) is not None
    }


def _key(table: Fields, name: str, value: Any) -> KeyConfig | None:
    if isinstance(value, dict):
        inner = table.table(name, _KEY_KEYS, "{ ... }")
        if inner is None:
            return None
        key = inner.filled_text("key", example='"file:NAME.pub"')
        sources = inner.texts("sources", ("*",), example='["door-*"]')
        return KeyConfig(name=name, key=key, sources=sources) if key else None
    key = table.filled_text(name, example='"file:NAME.pub"')
    return KeyConfig(name=name, key=key) if key else None


class KnownChannels(Protocol):
    """The channels as a quota uses them."""

    def holds(self, name: str) -> bool:
        """Whether a channel has, or ever had, events."""

    async def look(self, find: Callable[[RecordStore], T]) -> T:
        """Reads records."""

    async def apply(self, changes: Sequence[Change]) -> None:
        """Changes records, all or none; durable when it returns."""


class ChannelQuota:
    """Counts the channels that each identity began. All calls belong to one event loop."""

    def __init__(self, channels: KnownChannels, most: int = CHANNELS_PER_IDENTITY) -> None:
        self._channels, self._most = channels, most
        self._begun: dict[str, set[str]] | None = None
        self._loading = asyncio.Lock()

    @asynccontextmanager
    async def begin(self, identity: str, channel: str) -> AsyncIterator[None]:
        """While inside, the identity appends the first events of a channel; raises NotAllowed when
        it began too many others. Nothing is kept when the append fails.
        """
        own = (await self._all_begun()).setdefault(identity, set())
        if channel in own or self._channels.holds(channel):
            yield
            return
        if len(own) >= self._most:
            raise NotAllowed(
                f"{identity!r} has begun {len(own)} channels; {self._most} are allowed",
                code="channel.too_many_channels",
                hint="put what varies into the event's subject instead of the channel's name, or "
                "raise channels_per_identity in [channels]",
            )
        own.add(channel)  # before the append: others may begin channels meanwhile
        try:
            yield
        finally:
            if not self._channels.holds(channel):
                own.discard(channel)
        if channel in own:
            await self._channels.apply((Put(_TABLE, f"{identity}/{channel}", b""),))

    async def _all_begun(self) -> dict[str, set[str]]:
        async with self._loading:
            if self._begun is None:
                self._begun = await self._channels.look(self._load)
        return self._begun

    def _load(self, records: RecordStore) -> dict[str, set[str]]:
        begun: dict[str, set[str]] = {}
        for key, _value in all_records(records, _TABLE):
            identity, _, channel = key.rpartition("/")
            if self._channels.holds(channel):
                begun.setdefault(identity, set()).add(channel)
        return begun


LEAST_CHARACTERS = 22
"""128 bits in base64; shorter ones may be guessable."""
_MOST_CHARACTERS = 512
_NEW_BYTES = 32
FAILURES_AT_ONCE = 20
FAILURES_PER_SECOND = 1
"""Failures per address that are answered at once; above that the address has to wait."""
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

    def marks(self, identity: str) -> frozenset[str]:
        """A mark of each token of an identity, from which nobody can find the token."""
        own = (digest for digest, name in self._digests.items() if name == identity)
        return frozenset(hashlib.sha256(b"mark" + digest).hexdigest()[:16] for digest in own)

    def mark_of(self, token: str) -> str:
        return hashlib.sha256(b"mark" + _digest(token)).hexdigest()[:16]

    def with_token(self, identity: str, token: str) -> TokenDirectory:
        """The directory with this token too; raises InvalidInput when it is another identity's."""
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
    access: Access
    rights: Rights
    tokens: TokenDirectory
    rates: Rates

    def identify(self, token: str) -> str | None:
        return self.tokens.find(token)

    def is_closed(self) -> bool:
        return len(self.tokens) > 0 or self.access.has_people()

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


_FILE = "file:"


def read_key(declared: KeyConfig, directory: Path) -> PublicKey:
    """A declared key; raises InvalidInput when it cannot be read or is none."""
    text = declared.key
    if text.startswith(_FILE):
        try:
            text = (directory / text.removeprefix(_FILE)).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            raise InvalidInput(
                f"cannot read the key {declared.name!r} from {declared.key}: {why}",
                code="signature.no_key",
            ) from None
    return public_key(declared.name, text, declared.sources)
