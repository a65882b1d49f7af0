"""What the site says about adapters: `[adapters.*]`, and every fault in it. [CO-16, UX-2]"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from rapport.communication.adapters.settings import MailSettings, WebhookSettings
from rapport.communication.addresses import address_fault
from rapport.core.errors import InvalidInput, Problem
from rapport.kernel.fields import Fields, suggest
from rapport.kernel.settings import read_secret
from rapport.kernel.toml import TomlFile

MAIL_KEYS = ("host", "port", "sender", "user", "password", "starttls", "timeout")
WEBHOOK_KEYS = ("secret", "timeout")


def read_adapters(
    file: TomlFile, directory: Path, adapters: Collection[str], problems: list[Problem]
) -> tuple[MailSettings, WebhookSettings]:
    """The `[adapters.*]` tables; secrets are read from where they are named."""
    for name, section in file.section("adapters").sections():
        if name not in adapters:
            problems.append(
                section.problem(
                    "",
                    "adapter.unknown",
                    f"there is no adapter named {name!r}",
                    hint=suggest(name, adapters),
                )
            )
    mail = Fields(file.section("adapters", "mail"), problems, known=MAIL_KEYS, strict=True)
    webhook = Fields(file.section("adapters", "webhook"), problems, known=WEBHOOK_KEYS, strict=True)
    return _mail(mail, directory), _webhook(webhook, directory)


def _mail(table: Fields, directory: Path) -> MailSettings:
    sender = table.text("sender", MailSettings().sender)
    if fault := address_fault(f"mail:{sender}", ("mail",)):
        table.report("sender", fault)
    settings = MailSettings(
        host=table.text("host", MailSettings().host),
        port=table.number("port", MailSettings().port, low=1, high=65_535),
        sender=sender,
        user=table.text("user", ""),
        password=_secret("password", table, directory),
        starttls=table.flag("starttls"),
        timeout_ms=table.duration_ms("timeout", MailSettings().timeout_ms, least=1),
    )
    return settings


def _webhook(table: Fields, directory: Path) -> WebhookSettings:
    settings = WebhookSettings(
        secret=_secret("secret", table, directory),
        timeout_ms=table.duration_ms("timeout", WebhookSettings().timeout_ms, least=1),
    )
    return settings


def _secret(key: str, table: Fields, directory: Path) -> str:
    text = table.text(key, "")
    if not text:
        return ""
    try:
        return read_secret(text, directory)
    except InvalidInput as error:
        table.report(key, error)
        return ""
