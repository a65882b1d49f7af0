"""Peers, collectives and their addresses, and the directory in which they are looked up at sending
time. [CO-3, CO-4, CO-8]

The default directory is the site file; any other one has to fit `PeerDirectory`. The form of an
address is checked before anything runs. Which addresses are used is algorithm 2.1 of the source;
their order is the peer's preference and is kept. The source prefers stateless adapters to stateful
ones for the same address; here a name belongs to one adapter.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from rapport.channel.mqtt.bridge import is_topic
from rapport.communication.delivery_state import CollectiveDelivery, PeerDelivery
from rapport.communication.duty import Roster
from rapport.communication.privacy import PrivacyRule
from rapport.communication.sessions.seals import SEALED_MARK
from rapport.core.errors import InvalidInput, SourceUnavailable
from rapport.core.event import content_id
from rapport.kernel.clock import Clock
from rapport.kernel.config_fields import suggest


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A person or machine that can be reached; `addresses` are in order of preference."""

    name: str
    addresses: tuple[str, ...]
    delivery: PeerDelivery = "at-least-one"
    fallback: bool = False
    """With `preferred`: try the next address when the first failed."""
    fallback_after: int = 0
    """With `fallback`: how long one address has before the next is tried, ms; 0 = the default."""
    privacy: tuple[PrivacyRule, ...] = ()
    """Privacy rules; the first that applies decides."""
    zone: str = ""
    """Time zone in which times are shown; empty = that of the site."""
    language: str = ""
    """Language of times and values in texts; empty = that of the site."""


class Collective(msgspec.Struct, frozen=True, kw_only=True):
    """A group of peers, and how many of them have to be reached."""

    name: str
    members: tuple[str, ...]
    delivery: CollectiveDelivery = "to-any"
    least: int = 0
    """With `at-least`: how many have to be reached."""
    roster: Roster | None = None
    """Who is on duty when; None = messages go to all members."""


class PeerDirectory(Protocol):
    """Looks up peers and collectives at every sending; members may change between two."""

    def peer(self, name: str) -> Peer | None:
        """The peer of that name, or None."""

    def policy_of(self, name: str) -> Collective | None:
        """The delivery policy of a collective, or None; its members may be left out, so that a
        large one costs nothing.
        """

    def member_names(self, name: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """Up to `limit` member names after `after`, sorted by code points, so that a large
        collective is read in slices; none for an unknown collective.
        """


class SiteDirectory:
    def __init__(
        self,
        peers: Mapping[str, Peer],
        collectives: Mapping[str, Collective],
        zone: str = "UTC",
    ) -> None:
        """`zone`: of the rosters without one of their own."""
        self._peers, self._collectives, self.zone = dict(peers), dict(collectives), zone
        self._sorted = {
            name: sorted(set(collective.members)) for name, collective in collectives.items()
        }

    def peer(self, name: str) -> Peer | None:
        return self._peers.get(name)

    def collective(self, name: str) -> Collective | None:
        return self._collectives.get(name)

    def policy_of(self, name: str) -> Collective | None:
        return self._collectives.get(name)

    def member_names(self, name: str, *, after: str = "", limit: int = 1000) -> list[str]:
        return names_after(self._sorted.get(name, ()), after, limit)

    def peer_names(self) -> list[str]:
        """All declared peers, sorted."""
        return sorted(self._peers)

    def collective_names(self) -> list[str]:
        """All declared collectives, sorted."""
        return sorted(self._collectives)

    def collectives_of(self, peer: str) -> list[str]:
        """The declared collectives that name a peer, sorted."""
        return [name for name in sorted(self._sorted) if peer in self._collectives[name].members]


def names_after(names: Sequence[str], after: str, limit: int) -> list[str]:
    """A slice of sorted names.

    >>> names_after(["ana", "ben", "lea"], "ana", 1)
    ['ben']
    """
    start = bisect_right(names, after) if after else 0
    return list(names[start : start + limit])


def adapter_of(address: str) -> str:
    """The adapter's name in an address.

    >>> adapter_of("mail:ana@example.org")
    'mail'
    """
    return address.partition(":")[0]


def shown_address(address: str) -> str:
    """The address as the ledger shows it: of a web address, which may hold
    secrets, only the host and a mark.

    >>> shown_address("mail:ana@example.org")
    'mail:ana@example.org'
    >>> shown_address("webhook:https://user:pass@example.org/hook?key=1").split("#")[0]
    'webhook:https://example.org/'
    """
    adapter, _, rest = address.partition(":")
    if adapter == "apprise" and "://" in rest:
        # In place of the host such an address may have a secret.
        return f"apprise:{rest.partition('://')[0]}://#{content_id(address)[:6]}"
    if "://" not in rest and adapter != "webhook":
        return address
    mark = content_id(address)[:6]
    if "://" not in rest:
        return f"{adapter}:#{mark}"  # not a web address, but it may hold a secret
    try:
        parts = urlsplit(rest)
    except ValueError:
        return f"{adapter}:#{mark}"  # unreadable: any part may be a secret
    host = parts.netloc.rpartition("@")[2]
    return f"{adapter}:{parts.scheme}://{host}/#{mark}"


# --- cache ---


PEER_LIFETIME_MS = 60_000
_NS_PER_MS = 1_000_000
_MOST_PEERS = 100_000
_FAILED_FOR_NS = 1_000 * _NS_PER_MS


class CachedDirectory:
    """Caches the peers of a directory for a lifetime; collectives are always looked up.

    Unknown peers are not cached, so that a new peer is found at once. A failure is cached for a
    moment, so that many messages to one peer do not wait one by one.
    """

    def __init__(
        self,
        directory: PeerDirectory,
        clock: Clock,
        *,
        lifetime_ms: int = PEER_LIFETIME_MS,
        most: int = _MOST_PEERS,
    ) -> None:
        self._directory, self._clock = directory, clock
        self._lifetime_ns, self._most = lifetime_ms * _NS_PER_MS, most
        self._known: dict[str, tuple[int, Peer | SourceUnavailable]] = {}
        """Peers and failures, each with the steady time up to which it counts."""
        self._guard = threading.Lock()
        self._changes = 0
        """Number of invalidations: a look-up that began before one may be stale."""

    def peer(self, name: str) -> Peer | None:
        """The peer as it was at most a lifetime ago, or None."""
        now_ns = self._clock.steady_ns()
        with self._guard:
            until_ns, kept = self._known.get(name, (0, None))
            changes = self._changes
        if kept is not None and now_ns < until_ns:
            if isinstance(kept, SourceUnavailable):
                raise kept.with_traceback(None)  # or the traceback grows with every raise
            return kept
        try:
            found = self._directory.peer(name)
        except SourceUnavailable as error:
            self._keep(name, now_ns + _FAILED_FOR_NS, error, changes)
            raise
        if found is not None:
            self._keep(name, now_ns + self._lifetime_ns, found, changes)
        return found

    def policy_of(self, name: str) -> Collective | None:
        """See PeerDirectory; as it is now."""
        return self._directory.policy_of(name)

    def member_names(self, name: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """See PeerDirectory; as it is now."""
        return self._directory.member_names(name, after=after, limit=limit)

    @property
    def revision(self) -> int:
        """Rises when a peer changes; cached peers are valid until then."""
        return self._changes

    def forget(self, name: str) -> None:
        """Removes a changed peer from the cache."""
        with self._guard:
            self._changes += 1
            self._known.pop(name, None)

    def _keep(
        self, name: str, until_ns: int, known: Peer | SourceUnavailable, changes: int
    ) -> None:
        with self._guard:
            if changes != self._changes:
                return  # the peer may have changed during the look-up
            self._known.pop(name, None)
            while len(self._known) >= self._most:
                del self._known[next(iter(self._known))]  # the oldest
            self._known[name] = until_ns, known


# --- addresses ---


# Deliberately narrow: one plain address, nothing that a mail header could read as more than one.
_MAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})\Z")

LONGEST_TARGET = 100
_LOG_AGAIN_MS = 60_000
_UNSEALED = ("apprise", "folder", "ftp", "inbox", "mail", "ws")
"""People read what these carry: a sealed text would be of no use to them."""


def address_fault(address: str, adapters: Collection[str]) -> InvalidInput | None:
    """The fault of an address, or None."""
    adapter, rest = adapter_of(address), address.partition(":")[2]
    if ":" not in address:
        return InvalidInput(
            f"{address!r} names no adapter",
            code="peer.bad_address",
            hint="write mail:..., webhook:... or inbox:",
        )
    if adapter not in adapters:
        return InvalidInput(
            f"there is no adapter named {adapter!r}",
            code="adapter.unknown",
            hint=suggest(adapter, adapters),
        )
    if address.endswith(SEALED_MARK) and adapter in _UNSEALED:
        return InvalidInput(
            f"the {adapter} adapter carries no sealed texts",
            code="peer.cannot_seal",
            hint=f"webhook: and mqtt: do; leave {SEALED_MARK} out, or use one of them",
        )
    if adapter == "mail" and not _MAIL.match(rest):
        return _bad(address, "mail:someone@example.org")
    if adapter == "webhook" and not _is_web_address(rest):
        return _bad(address, "webhook:https://example.org/hook")
    if adapter in ("inbox", "ws") and rest:
        return _bad(address, f"{adapter}:")
    if adapter in ("folder", "ftp") and not is_place_name(rest):
        return _bad(address, f"{adapter}:NAME, a {adapter} that the site declares")
    if adapter == "mqtt" and not is_topic(rest):
        return _bad(address, "mqtt:panels/ana/show")
    if adapter == "apprise" and not (is_service_address(rest) or _is_target(rest)):
        return _bad(address, "apprise:ntfy://example.org/topic, or apprise:NAME of a target")
    return None


def _is_target(text: str) -> bool:
    return 0 < len(text) <= LONGEST_TARGET and text.isprintable() and "://" not in text


def _is_web_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port_fits = parts.port is None or 0 < parts.port < 65_536
    except ValueError:
        return False
    return (
        parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and port_fits
        and text.isprintable()
        and " " not in text
    )


def _bad(address: str, example: str) -> InvalidInput:
    # The adapter only: the rest may hold a secret, and its place is named anyway.
    return InvalidInput(
        f"the {adapter_of(address)} address cannot be used",
        code="peer.bad_address",
        hint=f"write it like {example}",
    )


def is_place_name(text: str) -> bool:
    """Whether it can name a folder or server in an address: never a path.

    >>> is_place_name("alarms"), is_place_name("../etc")
    (True, False)
    """
    plain = text.replace("-", "").replace("_", "")
    return 0 < len(text) <= 64 and plain.isascii() and plain.isalnum()


def is_service_address(text: str) -> bool:
    """Whether the text has the form of an Apprise address; the library checks the rest."""
    scheme, mark, rest = text.partition("://")
    is_scheme = scheme.isascii() and scheme.replace("+", "a").isalnum() and scheme.islower()
    return bool(mark) and is_scheme and bool(rest) and text.isprintable() and " " not in text


class Selection(msgspec.Struct, frozen=True):
    """The addresses to use, in order, and the names of unregistered adapters."""

    usable: tuple[str, ...]
    unknown: tuple[str, ...] = ()


def select_addresses(
    addresses: Sequence[str],
    delivery: PeerDelivery,
    registered: Collection[str],
    *,
    fallback: bool = False,
) -> Selection:
    """The addresses that a registered adapter serves; with `preferred` the first only, unless the
    peer wants the next ones tried when it fails. Addresses without an adapter are no error.

    >>> select_addresses(["fax:1", "mail:a@b", "inbox:"], "preferred", {"mail", "inbox"})
    Selection(usable=('mail:a@b',), unknown=('fax',))
    """
    usable: list[str] = []
    unknown: list[str] = []
    for address in addresses:
        name = address.partition(":")[0]
        if name not in registered:
            unknown.append(name)
            continue
        usable.append(address)
        if delivery == "preferred" and not fallback:
            break
    return Selection(tuple(usable), tuple(unknown))


class UnknownAdapterLog:
    """When missing adapters were last logged: each once a minute at most."""

    def __init__(self) -> None:
        self._logged_ms: dict[str, int] = {}

    def to_log(self, names: Iterable[str], now_ms: int) -> list[str]:
        """Those that are to be logged now."""
        found = []
        for name in dict.fromkeys(names):
            last_ms = self._logged_ms.get(name)
            # A clock that was set back does not keep us silent.
            if last_ms is None or not last_ms <= now_ms < last_ms + _LOG_AGAIN_MS:
                self._logged_ms[name] = now_ms
                found.append(name)
        return found
