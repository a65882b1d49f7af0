"""What the site says about input adapters: `[inputs.NAME]`, and every fault in it. [CO-5, CO-16,
UX-2]

```toml
[inputs.replies]
adapter = "imap"          # the kind; its settings stand beside it
interval = "30s"          # between two looks, for kinds that are pulled
trusted = true            # the medium itself proves who sends
```

What the site says about how much an adapter does at a time: `[adapters.NAME.sending]`. [CO-4,
UX-2]

```toml
[adapters.mail.sending]
workers = 4            # calls of the adapter at once
deadline = "30s"       # for one call
```

What the site says about adapters: `[adapters.*]`, and every fault in it. [CO-16, UX-2]
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rapport.communication.adapters.apprise import APPRISE_KEYS, read_apprise
from rapport.communication.adapters.dispatch import DEFAULT_SETTINGS, DispatchSettings
from rapport.communication.adapters.folder import (
    FOLDER_INPUT_KEYS,
    FOLDER_KEYS,
    is_place_name,
    read_folder_input,
    read_folders,
)
from rapport.communication.adapters.ftp import FTP_INPUT_KEYS, FTP_KEYS, read_ftp, read_ftp_input
from rapport.communication.adapters.imap import IMAP_KEYS, IMAP_PUSH_KEYS, read_imap_input
from rapport.communication.adapters.inbox import PAGE_KEYS, read_page
from rapport.communication.adapters.input_base import name_fault
from rapport.communication.adapters.mail import MAIL_KEYS, MailSettings, read_mail_settings
from rapport.communication.adapters.mqtt import (
    MQTT_INPUT_KEYS,
    MQTT_KEYS,
    read_mqtt,
    read_mqtt_input,
)
from rapport.communication.adapters.webhook import (
    WEBHOOK_INPUT_KEYS,
    WebhookSettings,
    read_webhook_input,
)
from rapport.communication.addresses import address_fault
from rapport.communication.peers import Peer
from rapport.core.errors import InvalidInput, Problem
from rapport.kernel.fields import Fields, suggest
from rapport.kernel.plugins import Plugins
from rapport.kernel.settings import read_secret
from rapport.kernel.toml import Section, TomlFile

INTERVAL_MS = 60_000
COMMON_KEYS = ("adapter", "interval", "on_request", "trusted")


class InputConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One `[inputs.NAME]` table."""

    name: str
    adapter: str
    settings: Any
    interval_ms: int | None = None
    """Between two looks; None = only on request, or told by the medium."""
    trusted: bool = False
    """Whether the medium itself proves who sends."""
    directory: Path = Path()
    """Of the site, for a plug-in's files."""


class InputTable(msgspec.Struct, frozen=True):
    """What reading the settings of a kind needs."""

    name: str
    fields: Fields
    directory: Path
    trusted: bool


class InputKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of input: the keys of its settings and how they are read."""

    keys: tuple[str, ...]
    read: Callable[[InputTable], Any]
    pulled: bool = False


def _mqtt_settings(table: InputTable) -> Any:
    site = table.fields.section.file.section("site").values.get("name", "")
    # The broker tells clients apart by it: two sites at one broker must not push each other out.
    client = f"rapport-{site}-{table.name}" if isinstance(site, str) and site else table.name
    return read_mqtt_input(table.fields, table.directory, client=client, trusted=table.trusted)


def _webhook_settings(table: InputTable) -> Any:
    return read_webhook_input(table.fields, table.directory)


def _imap_settings(table: InputTable) -> Any:
    return read_imap_input(table.fields, table.directory)


def _folder_settings(table: InputTable) -> Any:
    return read_folder_input(table.fields, table.directory)


def _ftp_settings(table: InputTable) -> Any:
    return read_ftp_input(table.fields, table.directory)


def _plugin_settings(table: InputTable) -> Any:
    values = table.fields.section.values
    return {key: value for key, value in values.items() if key not in COMMON_KEYS}


KINDS: dict[str, InputKind] = {
    "folder": InputKind(keys=FOLDER_INPUT_KEYS, read=_folder_settings, pulled=True),
    "ftp": InputKind(keys=FTP_INPUT_KEYS, read=_ftp_settings, pulled=True),
    "imap": InputKind(keys=IMAP_KEYS, read=_imap_settings, pulled=True),
    "imap-push": InputKind(keys=IMAP_PUSH_KEYS, read=_imap_settings),
    "mqtt": InputKind(keys=MQTT_INPUT_KEYS, read=_mqtt_settings),
    "webhook": InputKind(keys=WEBHOOK_INPUT_KEYS, read=_webhook_settings),
}
"""The built-in kinds by name."""
PLUGIN_KIND = InputKind(keys=(), read=_plugin_settings, pulled=True)
"""Of a package: it knows its keys and whether it is pulled itself, and is not loaded for that."""


def installed_inputs() -> Collection[str]:
    """The kinds that installed packages offer as entry points `rapport.inputs`; loads nothing."""
    return Plugins().names("inputs")


def read_inputs(
    file: TomlFile,
    directory: Path,
    problems: list[Problem],
    *,
    plugged_in: Callable[[], Collection[str]] = installed_inputs,
) -> tuple[InputConfig, ...]:
    """The `[inputs.*]` tables, those without a fault that matters; secrets are read from where they
    are named, below `directory`. `plugged_in` is asked for kinds that are not built in.
    """
    sections = list(file.section("inputs").sections())
    named = [section.values.get("adapter") for _name, section in sections]
    has_others = any(isinstance(each, str) and each not in KINDS for each in named)
    others = plugged_in() if has_others else ()
    found = (_read_one(name, section, directory, problems, others) for name, section in sections)
    return tuple(declared for declared in found if declared is not None)


def _read_one(
    name: str,
    section: Section,
    directory: Path,
    problems: list[Problem],
    others: Collection[str],
) -> InputConfig | None:
    kind_name = section.values.get("adapter")
    kind = None
    if isinstance(kind_name, str):
        kind = KINDS.get(kind_name, PLUGIN_KIND if kind_name in others else None)
    is_known = kind is not None and kind is not PLUGIN_KIND
    known = (*COMMON_KEYS, *kind.keys) if kind is not None and is_known else None
    table = Fields(section, problems, known=known, strict=True)
    if fault := name_fault(name):
        table.report("", fault)
    named = table.filled_text("adapter", example='"imap"')
    if kind is None:
        if named:
            message = f"there is no kind of input named {named[:80]!r}"
            hint = suggest(named, (*KINDS, *others))
            table.fault("adapter", "input.unknown_adapter", message, hint=hint)
        return None
    trusted = table.flag("trusted")
    return InputConfig(
        name=name,
        adapter=named,
        settings=kind.read(InputTable(name, table, directory, trusted)),
        interval_ms=_interval(table, kind, named),
        trusted=trusted,
        directory=directory,
    )


def _interval(table: Fields, kind: InputKind, named: str) -> int | None:
    if not kind.pulled:
        for key in ("interval", "on_request"):
            if table.has(key):
                message = f"{named!r} is told by its medium: there is nothing to look for"
                table.fault(key, "input.not_pulled", message, hint=f"leave {key} out")
        return None
    if not table.flag("on_request"):
        return table.duration_ms("interval", INTERVAL_MS, least=1)
    if table.has("interval"):
        message = "an input that looks on request has no interval"
        table.fault("interval", "input.interval_on_request", message, hint="leave one of them out")
    return None


SENDING = "sending"
_KEYS = ("workers", "batch", "deadline", "in_flight")
_EXAMPLE = '{ workers = 4, deadline = "30s" }'


def read_sending(file: TomlFile, problems: list[Problem]) -> dict[str, DispatchSettings]:
    """By adapter what its table `sending` says; adapters without one have the usual settings."""
    found = {}
    for name, section in file.section("adapters").sections():
        table = Fields(section, problems, strict=True).table(SENDING, _KEYS, _EXAMPLE)
        if table is not None:
            found[name] = _settings(table)
    return found


def _settings(table: Fields) -> DispatchSettings:
    usual = DEFAULT_SETTINGS
    return DispatchSettings(
        workers=table.number("workers", usual.workers, low=1, high=1_000),
        batch=table.number("batch", usual.batch, low=1, high=100_000),
        deadline_ms=table.duration_ms("deadline", usual.deadline_ms, least=1),
        in_flight=table.number("in_flight", usual.in_flight, low=1, high=100_000),
    )


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
