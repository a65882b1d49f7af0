"""What the site says about adapters: `[adapters.*]`, and every fault in it. [CO-16, UX-2]"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from rapport.communication.adapters.files.settings import (
    FOLDER_KEYS,
    FTP_KEYS,
    is_place_name,
    read_folders,
    read_ftp,
)
from rapport.communication.adapters.mail.settings import MAIL_KEYS, read_mail_settings
from rapport.communication.adapters.mqtt.settings import MQTT_KEYS, read_mqtt
from rapport.communication.adapters.notify.settings import APPRISE_KEYS, read_apprise
from rapport.communication.adapters.outgoing.declare_sending import SENDING
from rapport.communication.adapters.settings import MailSettings, WebhookSettings
from rapport.communication.adapters.web.settings import PAGE_KEYS, read_page
from rapport.communication.addresses import address_fault
from rapport.communication.peers import Peer
from rapport.core.errors import InvalidInput, Problem
from rapport.kernel.config_fields import Fields, suggest
from rapport.kernel.settings import read_secret
from rapport.kernel.toml import TomlFile

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
    mail = _fields(file, "mail", MAIL_KEYS, problems)
    webhook = _fields(file, "webhook", WEBHOOK_KEYS, problems)
    return _mail(mail, directory), _webhook(webhook, directory)


def read_media(file: TomlFile, directory: Path, problems: list[Problem]) -> dict[str, Any]:
    """The settings of the built-in adapters that are not mail or webhook, by name."""

    def fields(name: str, known: Collection[str]) -> Fields:
        return _fields(file, name, known, problems)

    fields("inbox", ())
    return {
        "apprise": read_apprise(fields("apprise", APPRISE_KEYS), directory),
        "folder": read_folders(fields("folder", FOLDER_KEYS), directory),
        "ftp": read_ftp(fields("ftp", FTP_KEYS), directory),
        "mqtt": read_mqtt(fields("mqtt", MQTT_KEYS), directory),
        "ws": read_page(fields("ws", PAGE_KEYS)),
    }


def _fields(file: TomlFile, name: str, known: Collection[str], problems: list[Problem]) -> Fields:
    section = file.section("adapters", name)
    return Fields(section, problems, known=(*known, SENDING), strict=True)


def check_places(
    file: TomlFile, peers: Mapping[str, Peer], media: Mapping[str, Any], problems: list[Problem]
) -> None:
    """Addresses must name a folder or server that the site declares."""
    declared = {"folder": media["folder"].folders, "ftp": media["ftp"].servers}
    for name, peer in peers.items():
        for address in peer.addresses:
            adapter, _, place = address.partition(":")
            if adapter in declared and is_place_name(place) and place not in declared[adapter]:
                problems.append(
                    file.problem(
                        ("peers", name, "addresses"),
                        "peer.unknown_place",
                        f"the site declares no {adapter} named {place!r}",
                        hint=suggest(place, declared[adapter]) or f"add it to [adapters.{adapter}]",
                    )
                )


def _mail(table: Fields, directory: Path) -> MailSettings:
    settings = read_mail_settings(table, directory)
    for key, address in (("sender", settings.sender), ("reply_to", settings.reply_to)):
        fault = address_fault(f"mail:{address}", ("mail",)) if address or key == "sender" else None
        if fault is not None:
            table.report(key, fault)
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
