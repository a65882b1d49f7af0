"""Apprise: its hundred services (Telegram, Slack, SMS gateways, ntfy ...) as one medium. [CO-16]

The only home of the library. It blocks, so it runs in threads of its own with time-outs of its own;
it says only yes or no, so what it logged meanwhile is the reason. Addresses of services hold
secrets: none is shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import apprise

from rapport.communication.adapters.base import Delivery, Failed, Outcome, Sent, adapter
from rapport.communication.adapters.notify.settings import AppriseSettings, is_service_address
from rapport.communication.presentation import is_answerable, shown_text
from rapport.communication.templates import clean

_LONGEST_REASON = 200
_SHORTEST_SECRET = 4


@adapter("apprise")
class AppriseAdapter:
    """Sends to the service in the peer's address (`apprise:URL`) or to a named target of the site
    (`apprise:ana`); stateless, each delivery has its own instance of the service.
    """

    name = "apprise"

    def __init__(self, settings: AppriseSettings, link_for: Callable[[str, str], str]) -> None:
        """`link_for(message, peer)` gives the address of the page to answer on; empty = none."""
        self._settings, self._link_for = settings, link_for
        self._asset = apprise.AppriseAsset(
            app_id="Rapport",
            app_desc="Rapport",
            async_mode=False,
            secure_logging=True,
            storage_mode="memory",
            # Its own limit would move the work to threads of its own, whose number nobody limits.
            service_timeout=0,
        )
        self._threads = ThreadPoolExecutor(settings.threads, thread_name_prefix="apprise")

    async def send(self, delivery: Delivery) -> Outcome:
        """Taken by the service = sent. The library does not tell why it failed, so trying again is
        always worth it, except for an address that it does not know.
        """
        url = self._address(delivery.target)
        if not url:
            return Failed("there is no such target of Apprise", retry=False)
        text = notice(delivery, self._link_for(delivery.message, delivery.peer))
        loop = asyncio.get_running_loop()
        work = partial(self._notify, url, text, is_urgent=delivery.urgent)
        return await loop.run_in_executor(self._threads, work)

    async def close(self) -> None:
        """Lets what is on its way end, in the background; a second call is no error."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _address(self, target: str) -> str:
        return target if is_service_address(target) else self._settings.targets.get(target, "")

    # --- in a thread ------------------------------------------------------------------------------

    def _notify(self, url: str, text: str, *, is_urgent: bool) -> Outcome:
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
    """What the person reads."""
    text = shown_text(delivery.type, delivery.subtype, delivery.text)
    if not link or not is_answerable(delivery.type):
        return text
    ask = "Please answer here" if delivery.wants_answer else "You can answer here"
    return f"{text}\n\n{ask}: {link}"


def _reason(lines: list[str], url: str) -> str:
    """The last line, without any part of the address that may be a secret."""
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
