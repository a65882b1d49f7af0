"""The adapters of a site, built in or plugged in; drivers load only when used. [CO-4, UX-9]"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rapport.communication.adapters.base import OutputAdapter
from rapport.communication.adapters.inbox import InboxAdapter
from rapport.core.errors import Unsupported
from rapport.kernel.plugins import Plugins

if TYPE_CHECKING:
    from rapport.communication.declare import Communication

BUILT_IN = ("inbox", "mail", "webhook")

LinkFor = Callable[[str, str], str]
"""Message and peer to the address of the page to answer on; empty text = no link."""


def adapter_names(plugins: Plugins) -> tuple[str, ...]:
    """All adapters that a site may name."""
    return tuple(sorted({*BUILT_IN, *plugins.names("adapters")}))


def make_adapters(
    declared: Communication, link_for: LinkFor, plugins: Plugins
) -> dict[str, OutputAdapter]:
    """One instance of each adapter that the peers need; they are stateless and shared by all peers.

    A plug-in is called with its table of the site file and `link_for`. Raises UnknownName, or
    Unsupported when the extra with a built-in's driver is not installed.
    """
    return {name: _make(name, declared, link_for, plugins) for name in declared.adapters()}


def _make(name: str, declared: Communication, link_for: LinkFor, plugins: Plugins) -> OutputAdapter:
    if name == "inbox":
        return InboxAdapter()
    if name not in BUILT_IN:
        made: OutputAdapter = plugins.get("adapters", name)(
            declared.plugin_settings.get(name, {}), link_for
        )
        return made
    try:
        if name == "mail":
            from rapport.communication.adapters.email import MailAdapter

            return MailAdapter(declared.mail, link_for)
        from rapport.communication.adapters.webhook import WebhookAdapter

        return WebhookAdapter(declared.webhook, link_for)
    except ImportError as error:
        extra = "mail" if name == "mail" else "http"
        raise Unsupported(
            f"the adapter {name}",
            f"this installation ({error.name} is missing)",
            hint=f"install rapport[{extra}]",
        ) from None
