"""Apprise: its hundred services (Telegram, Slack, SMS gateways, ntfy ...) as one medium. [CO-16,
UX-2]

```toml
[adapters.apprise]
timeout = "10s"
[adapters.apprise.targets]              # addresses are apprise:ana, or apprise:URL
ana = "file:ana.apprise"                # holds e.g. tgram://BOTTOKEN/CHAT
hall = "ntfy://ntfy.example.org/hall"   # without a secret it may stand here
```

The library blocks, so it runs in threads of its own with time-outs of its own. It answers only yes
or no, so its last log line is the reason of a failure. Addresses of services hold secrets and are
never shown. The library is imported when an adapter is created: checking a site does not need it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from rapport.communication.adapters.base import Delivery, Failed, Outcome, Sent, adapter
from rapport.communication.peers import is_service_address
from rapport.communication.texts import clean, is_answerable, shown_text
from rapport.core.errors import InvalidInput
from rapport.kernel.config_fields import Fields, keys_of
from rapport.kernel.settings import read_secret


class AppriseSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The `[adapters.apprise]` table; never shown, as addresses of services hold secrets."""

    targets: dict[str, str] = {}
    timeout_ms: Annotated[int, Meta(ge=1)] = 7_000
    """How long connecting may take, and as long again the answer. Twice that should be less than
    the 15 s after which a delivery fails: the library cannot be stopped.
    """
    threads: Annotated[int, Meta(ge=1, le=100)] = 8
    """Services called at the same time; each takes a thread."""

    def __repr__(self) -> str:
        return f"AppriseSettings(targets={sorted(self.targets)}, timeout_ms={self.timeout_ms})"


APPRISE_KEYS = keys_of(AppriseSettings)


def read_apprise(table: Fields, directory: Path) -> AppriseSettings:
    """The `[adapters.apprise]` table; secrets are read from where they are named."""
    targets = table.table("targets", None, '{ ana = "file:ana.apprise" }')
    named = targets.section.values if targets is not None else {}
    found = {name: _target(targets, name, directory) for name in named} if targets else {}
    return table.settings(AppriseSettings(), targets=found)


def _target(targets: Fields, name: str, directory: Path) -> str:
    text = targets.filled_text(name, "", example='"file:ana.apprise"')
    if not text.startswith(("file:", "env:")) or text.startswith("file://"):
        return _checked(targets, name, text)
    try:
        return read_secret(text, directory)
    except InvalidInput as error:
        targets.report(name, error)
        return ""


def _checked(targets: Fields, name: str, text: str) -> str:
    if text and not is_service_address(text):
        targets.fault(
            name,
            "adapter.bad_target",
            "this is not the address of a service",
            hint="such as ntfy://host/topic, or file:PATH or env:NAME of one that holds a secret",
        )
    return text


_LONGEST_REASON = 200
_SHORTEST_SECRET = 4


@adapter("apprise")
class AppriseAdapter:
    """Sends to the service in the peer's address (`apprise:URL`) or to a target of the site
    (`apprise:ana`); each delivery has its own instance of the service.
    """

    name = "apprise"

    def __init__(self, settings: AppriseSettings, link_for: Callable[[str, str], str]) -> None:
        """`link_for(message, peer)` gives the address of the page to answer on; empty = none."""
        import apprise

        self._settings, self._link_for = settings, link_for
        self._asset = apprise.AppriseAsset(
            app_id="Rapport",
            app_desc="Rapport",
            async_mode=False,
            secure_logging=True,
            storage_mode="memory",
            # Its own limit would move the work to threads of its own, whose number has no limit.
            service_timeout=0,
        )
        self._threads = ThreadPoolExecutor(settings.threads, thread_name_prefix="apprise")

    async def send(self, delivery: Delivery) -> Outcome:
        """Accepted by the service = sent. The library gives no cause of a failure, so it is always
        worth a retry, except for an address that it does not know.
        """
        url = self._address(delivery.target)
        if not url:
            return Failed("there is no such target of Apprise", retry=False)
        text = notice(delivery, self._link_for(delivery.message, delivery.peer))
        loop = asyncio.get_running_loop()
        work = partial(self._notify, url, text, is_urgent=delivery.urgent)
        return await loop.run_in_executor(self._threads, work)

    async def close(self) -> None:
        """Running calls end in the background; a second call is no error."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _address(self, target: str) -> str:
        return target if is_service_address(target) else self._settings.targets.get(target, "")

    # --- in a thread ------------------------------------------------------------------------------

    def _notify(self, url: str, text: str, *, is_urgent: bool) -> Outcome:
        import apprise

        service = apprise.Apprise.instantiate(url, asset=self._asset, suppress_exceptions=True)
        if not isinstance(service, apprise.NotifyBase):
            return Failed("the address of the service cannot be used", retry=False)
        seconds = self._settings.timeout_ms / 1_000
        service.socket_connect_timeout = service.socket_read_timeout = seconds
        service.retry = 0  # trying again is the engine's: it remembers over a crash
        sender = apprise.Apprise(asset=self._asset)
        sender.add(service)
        kind = apprise.NotifyType.WARNING if is_urgent else apprise.NotifyType.INFO
        result = sender.notify(body=text, notify_type=kind, body_format=apprise.NotifyFormat.TEXT)
        if result:
            return Sent(str(service.service_name))
        logged = [entry.message for entry in result.logs()]
        return Failed(f"the service did not take it: {_reason(logged, url)}", retry=True)


def notice(delivery: Delivery, link: str) -> str:
    """The text for the person, with the answer link."""
    text = shown_text(delivery.type, delivery.subtype, delivery.text)
    if not link or not is_answerable(delivery.type):
        return text
    ask = "Please answer here" if delivery.wants_answer else "You can answer here"
    return f"{text}\n\n{ask}: {link}"


def _reason(lines: list[str], url: str) -> str:
    """The last log line, without any part of the address that may be a secret."""
    text = clean(lines[-1]) if lines else "it did not say why"
    for part in secret_parts(url):
        text = text.replace(part, "***")
    return text[:_LONGEST_REASON]


def secret_parts(url: str) -> list[str]:
    """The parts of a service's address, longest first.

    >>> secret_parts("tgram://123456:ABCDEF/chat")
    ['123456', 'ABCDEF', 'chat']
    """
    rest = url.partition("://")[2]
    for separator in "/:@?&=#,":
        rest = rest.replace(separator, " ")
    parts = {part for part in rest.split() if len(part) >= _SHORTEST_SECRET}
    return sorted(parts, key=lambda part: (-len(part), part))
