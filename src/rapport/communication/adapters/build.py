"""The built-in adapters, made from what the site declares; drivers are imported only when used.
[CO-4, UX-9]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rapport.communication.adapters.base import OutputAdapter
from rapport.communication.adapters.inbox import InboxAdapter
from rapport.communication.adapters.settings import MailSettings, WebhookSettings
from rapport.core.errors import UnknownName, Unsupported

BUILT_IN = ("inbox", "mail", "webhook")

LinkFor = Callable[[str, str], str]
"""Message and peer to the address of the page to answer on; empty text = no link."""


def make_adapters(
    names: Iterable[str], mail: MailSettings, webhook: WebhookSettings, link_for: LinkFor
) -> dict[str, OutputAdapter]:
    """One instance of each named adapter; they are stateless and shared by all peers.

    Raises UnknownName, or Unsupported when the extra with its driver is not installed.
    """
    return {name: _make(name, mail, webhook, link_for) for name in sorted(set(names))}


def _make(
    name: str, mail: MailSettings, webhook: WebhookSettings, link_for: LinkFor
) -> OutputAdapter:
    if name == "inbox":
        return InboxAdapter()
    try:
        if name == "mail":
            from rapport.communication.adapters.email import MailAdapter

            return MailAdapter(mail, link_for)
        if name == "webhook":
            from rapport.communication.adapters.webhook import WebhookAdapter

            return WebhookAdapter(webhook, link_for)
    except ImportError as error:
        extra = "mail" if name == "mail" else "http"
        raise Unsupported(
            f"the adapter {name}",
            f"this installation ({error.name} is missing)",
            hint=f"install rapport[{extra}]",
        ) from None
    raise UnknownName("adapter", name, BUILT_IN, code="adapter.unknown")
