"""The adapters of a site, built in or plugged in; drivers load only when used. [CO-4, UX-9]"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from rapport.communication.adapters.base import OutputAdapter, is_stateful
from rapport.communication.adapters.outgoing.instances import Instances
from rapport.communication.adapters.web.inbox import InboxAdapter
from rapport.communication.adapters.web.page import OpenPages, PageAdapter
from rapport.core.errors import Unsupported
from rapport.kernel.clock import Clock, SystemClock
from rapport.kernel.plugins import Plugins

if TYPE_CHECKING:
    from rapport.communication.config import CommunicationConfig

BUILT_IN = ("apprise", "folder", "ftp", "inbox", "mail", "mqtt", "webhook", "ws")
_EXTRAS = {"apprise": "notify", "mqtt": "mqtt"}

MAILBOXES = ("imap", "imap-push")
"""Kinds of inputs that read replies to mails."""
ZoneOf = Callable[[str], Awaitable[str]]
LinkFor = Callable[[str, str], str]
"""Message and peer to the address of the page to answer on; empty text = no link."""


def _nothing(_message: str, _peer: str) -> str:
    return ""


async def _utc(_peer: str) -> str:
    return "UTC"


def adapter_names(plugins: Plugins) -> tuple[str, ...]:
    """All adapters that a site may name."""
    return tuple(sorted({*BUILT_IN, *plugins.names("adapters")}))


class Surroundings(msgspec.Struct, frozen=True):
    """What adapters need beside their settings."""

    link_for: LinkFor
    proof_for: LinkFor
    """Message and peer to the token that proves an answer."""
    pages: OpenPages
    clock: Clock
    zone_of: ZoneOf
    """Peer to the zone on whose clock they read times."""


def make_adapters(
    declared: CommunicationConfig,
    link_for: LinkFor,
    plugins: Plugins,
    *,
    proof_for: LinkFor = _nothing,
    pages: OpenPages | None = None,
    clock: Clock | None = None,
    zone_of: ZoneOf = _utc,
) -> dict[str, OutputAdapter]:
    """One instance of each adapter that the peers need, shared by all unless it is stateful.

    A plug-in is called with its table of the site file and `link_for`, a stateful one for each peer
    and with the peer's address, too. Raises UnknownName, or
    Unsupported when the extra with a built-in's driver is not installed.
    """
    around = Surroundings(
        link_for, proof_for, pages or OpenPages(), clock or SystemClock(), zone_of
    )
    return {name: _make(name, declared, around, plugins) for name in declared.adapters()}


def _make(
    name: str, declared: CommunicationConfig, around: Surroundings, plugins: Plugins
) -> OutputAdapter:
    if name not in BUILT_IN:
        return _plugged_in(name, declared.plugin_settings.get(name, {}), around, plugins)
    try:
        return _built_in(name, declared, around)
    except ImportError as error:
        raise Unsupported(
            f"the adapter {name}",
            f"this installation ({error.name} is missing)",
            hint=f"pip install 'rapport[{_EXTRAS.get(name, 'all')}]'",
        ) from None


def _plugged_in(
    name: str, settings: dict[str, Any], around: Surroundings, plugins: Plugins
) -> OutputAdapter:
    make = partial(plugins.get("adapters", name), settings, around.link_for)
    if is_stateful(make.func):
        return Instances(name, make, around.clock)
    made: OutputAdapter = make()
    return made


def _built_in(name: str, declared: CommunicationConfig, around: Surroundings) -> OutputAdapter:
    """Drivers load here, for adapters that are used."""
    match name:
        case "inbox":
            return InboxAdapter()
        case "ws":
            return PageAdapter(around.pages, declared.media["ws"], around.clock)
        case "mail":
            from rapport.communication.adapters.mail.email import MailAdapter

            return MailAdapter(
                declared.mail,
                around.link_for,
                around.proof_for,
                clock=around.clock,
                zone_of=around.zone_of,
                reads_replies=any(one.adapter in MAILBOXES for one in declared.inputs),
            )
        case "folder":
            from rapport.communication.adapters.files.folder_out import FolderAdapter

            return FolderAdapter(declared.media["folder"], around.proof_for)
        case "ftp":
            from rapport.communication.adapters.files.ftp import FtpAdapter

            return FtpAdapter(declared.media["ftp"], around.proof_for)
        case "mqtt":
            from rapport.communication.adapters.mqtt.outgoing import MqttAdapter

            return MqttAdapter(declared.media["mqtt"], around.proof_for, around.clock)
        case "apprise":
            from rapport.communication.adapters.notify.apprise import AppriseAdapter

            return AppriseAdapter(declared.media["apprise"], around.link_for)
        case _:
            from rapport.communication.adapters.web.webhook import WebhookAdapter

            return WebhookAdapter(declared.webhook, around.link_for, around.clock)
