"""The `[adapters.*]` and `[inputs.*]` tables of the site file: settings, and every fault in them.
[CO-4, CO-5, CO-16, UX-2]

```toml
[adapters.mail.sending]   # beside each adapter's own settings
workers = 4               # calls of the adapter at once
deadline = "30s"          # for one call

[inputs.replies]
adapter = "imap"          # the kind; its settings stand beside it
interval = "30s"          # between two pulls, for kinds that are pulled
trusted = true            # the medium itself proves the sender
```
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rapport.communication.adapters.apprise import APPRISE_KEYS, read_apprise
from rapport.communication.adapters.base import read_secret_field
from rapport.communication.adapters.dispatch import DEFAULT_SETTINGS, DispatchSettings
from rapport.communication.adapters.folder import (
    FOLDER_INPUT_KEYS,
    FOLDER_KEYS,
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
from rapport.communication.peers import Peer, address_fault, is_place_name
from rapport.core.errors import Problem
from rapport.kernel.config_fields import Fields, keys_of, suggest
from rapport.kernel.plugins import Plugins
from rapport.kernel.toml import Section, TomlFile

INTERVAL_MS = 60_000
COMMON_KEYS = ("adapter", "interval", "on_request", "trusted")
SENDING = "sending"


def adapter_names(plugins: Plugins) -> tuple[str, ...]:
    """All adapters that a site may name."""
    return tuple(sorted({*BUILT_IN, *plugins.names("adapters")}))


# --- [adapters.*] ---


def read_media(
    file: TomlFile, directory: Path, adapters: Collection[str], problems: list[Problem]
) -> dict[str, Any]:
    """The settings of the built-in adapters by name; reports tables of unknown adapters, too."""
    for name, section in file.section("adapters").sections():
        if name not in adapters:
            message, hint = f"there is no adapter named {name!r}", suggest(name, adapters)
            problems.append(section.problem("", "adapter.unknown", message, hint=hint))
    found = {}
    for name, (keys, read) in _OUTPUTS.items():
        section = file.section("adapters", name)
        fields = Fields(section, problems, known=(*keys, SENDING), strict=True)
        found[name] = read(fields, directory)
    return found


def _mail(table: Fields, directory: Path) -> MailSettings:
    settings = read_mail_settings(table, directory)
    for key, address in (("sender", settings.sender), ("reply_to", settings.reply_to)):
        fault = address_fault(f"mail:{address}", ("mail",)) if address or key == "sender" else None
        if fault is not None:
            table.report(key, fault)
    return settings


def _webhook(table: Fields, directory: Path) -> WebhookSettings:
    return table.settings(WebhookSettings(), secret=read_secret_field("secret", table, directory))


_OUTPUTS: dict[str, tuple[tuple[str, ...], Callable[[Fields, Path], Any]]] = {
    "apprise": (APPRISE_KEYS, read_apprise),
    "folder": (FOLDER_KEYS, read_folders),
    "ftp": (FTP_KEYS, read_ftp),
    "inbox": ((), lambda _table, _directory: None),
    "mail": (MAIL_KEYS, _mail),
    "mqtt": (MQTT_KEYS, read_mqtt),
    "webhook": (keys_of(WebhookSettings), _webhook),
    "ws": (PAGE_KEYS, read_page),
}
"""The keys of each built-in adapter and how they are read."""
BUILT_IN = tuple(_OUTPUTS)


def check_places(
    file: TomlFile, peers: Mapping[str, Peer], media: Mapping[str, Any], problems: list[Problem]
) -> None:
    """Reports addresses that name a folder or server that the site does not declare."""
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


def read_sending(file: TomlFile, problems: list[Problem]) -> dict[str, DispatchSettings]:
    """The tables `[adapters.NAME.sending]` by adapter."""
    found, keys = {}, keys_of(DispatchSettings)
    example = '{ workers = 4, deadline = "30s" }'
    for name, section in file.section("adapters").sections():
        table = Fields(section, problems, strict=True).table(SENDING, keys, example)
        if table is not None:
            found[name] = table.settings(DEFAULT_SETTINGS)
    return found


# --- [inputs.*] ---


class InputConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One `[inputs.NAME]` table."""

    name: str
    adapter: str
    settings: Any
    interval_ms: int | None = None
    """Between two pulls; None = only on request, or notified by the medium."""
    trusted: bool = False
    """Whether the medium itself proves the sender."""
    directory: Path = Path()
    """Of the site, for a plug-in's files."""


class InputTable(msgspec.Struct, frozen=True):
    """The arguments of `InputKind.read`."""

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
    # Brokers identify clients by it: two sites at one broker must not disconnect each other.
    client = f"rapport-{site}-{table.name}" if isinstance(site, str) and site else table.name
    return read_mqtt_input(table.fields, table.directory, client=client, trusted=table.trusted)


def _by(read: Callable[[Fields, Path], Any]) -> Callable[[InputTable], Any]:
    return lambda table: read(table.fields, table.directory)


def _plugin_settings(table: InputTable) -> Any:
    values = table.fields.section.values
    return {key: value for key, value in values.items() if key not in COMMON_KEYS}


KINDS: dict[str, InputKind] = {
    "folder": InputKind(keys=FOLDER_INPUT_KEYS, read=_by(read_folder_input), pulled=True),
    "ftp": InputKind(keys=FTP_INPUT_KEYS, read=_by(read_ftp_input), pulled=True),
    "imap": InputKind(keys=IMAP_KEYS, read=_by(read_imap_input), pulled=True),
    "imap-push": InputKind(keys=IMAP_PUSH_KEYS, read=_by(read_imap_input)),
    "mqtt": InputKind(keys=MQTT_INPUT_KEYS, read=_mqtt_settings),
    "webhook": InputKind(keys=WEBHOOK_INPUT_KEYS, read=_by(read_webhook_input)),
}
"""The built-in kinds by name."""
PLUGIN_KIND = InputKind(keys=(), read=_plugin_settings, pulled=True)
"""A plug-in checks its keys itself; it is not loaded to read the site file."""


def read_inputs(
    file: TomlFile, directory: Path, problems: list[Problem]
) -> tuple[InputConfig, ...]:
    """The `[inputs.*]` tables whose kind is known; secrets are read from below `directory`. For
    kinds that are not built in, the entry points `rapport.inputs` are listed; none is loaded.
    """
    sections = list(file.section("inputs").sections())
    named = [section.values.get("adapter") for _name, section in sections]
    has_others = any(isinstance(each, str) and each not in KINDS for each in named)
    others = Plugins().names("inputs") if has_others else ()
    found = (_read_input(name, section, directory, problems, others) for name, section in sections)
    return tuple(config for config in found if config is not None)


def _read_input(
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
                message = f"{named!r} is notified by its medium and never pulled"
                table.fault(key, "input.not_pulled", message, hint=f"leave {key} out")
        return None
    if not table.flag("on_request"):
        return table.duration_ms("interval", INTERVAL_MS, least=1)
    if table.has("interval"):
        message = "an input that is pulled on request has no interval"
        table.fault("interval", "input.interval_on_request", message, hint="leave one of them out")
    return None
