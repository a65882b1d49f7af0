"""Sources that speak of no concept: `[sources.NAME]` with `into`. [ME-5]

Their events become values of a type of root and go into a channel as they are: orders, quotations,
danger reports. Sources that give attributes of a concept belong to the ontology.
"""

from __future__ import annotations

import re

from rapport.channel.validation import is_reserved
from rapport.core.errors import Problem
from rapport.kernel.config_fields import Fields, read_zone
from rapport.kernel.toml import TomlFile
from rapport.mediation.binding import RAW_PREFIX, SourceBinding

_KEYS = ("into", "interpretation", "type", "id", "zone")
_CHANNEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)


def sources_into_channels(file: TomlFile) -> tuple[dict[str, SourceBinding], list[Problem]]:
    """Those of the site that are sound, by name, and every fault."""
    problems: list[Problem] = []
    found: dict[str, SourceBinding] = {}
    for name, section in file.section("sources").sections():
        if "into" not in section.values:
            continue
        before = len(problems)
        fields = Fields(section, problems, known=_KEYS, strict=True)
        into = fields.filled_text("into", example='"orders"')
        fields.filled_text("id", "", example='"order"')
        _check_channel(fields, into)
        binding = SourceBinding(
            source=name,
            interpretation=fields.filled_text("interpretation", example='"de/orders"'),
            speaks=fields.filled_text("type", ""),
            into=into,
            zone=read_zone(fields),
        )
        if len(problems) == before:
            found[name] = binding
    return found, problems


def _check_channel(fields: Fields, into: str) -> None:
    own = is_reserved(into) or into.startswith(RAW_PREFIX)
    if into and (own or not _CHANNEL.fullmatch(into)):
        message = "only the node appends to it" if own else "no channel can have this name"
        fields.fault("into", "source.bad_channel", f"{into[:60]!r}: {message}")
