"""What the site says about input adapters: `[inputs.NAME]`, and every fault in it. [CO-5, CO-16,
UX-2]

```toml
[inputs.replies]
adapter = "imap"          # the kind; its settings stand beside it
interval = "30s"          # between two looks, for kinds that are pulled
trusted = true            # the medium itself proves who sends
```
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec

from rapport.communication.adapters.files.settings import (
    FOLDER_INPUT_KEYS,
    FTP_INPUT_KEYS,
    read_folder_input,
    read_ftp_input,
)
from rapport.communication.adapters.incoming.input_base import name_fault
from rapport.communication.adapters.mail.settings import (
    IMAP_KEYS,
    IMAP_PUSH_KEYS,
    read_imap_input,
)
from rapport.communication.adapters.mqtt.settings import MQTT_INPUT_KEYS, read_mqtt_input
from rapport.communication.adapters.web.settings import WEBHOOK_INPUT_KEYS, read_webhook_input
from rapport.core.errors import Problem
from rapport.kernel.fields import Fields, suggest
from rapport.kernel.plugins import Plugins
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
