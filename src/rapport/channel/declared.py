"""What a site says of its channels: where they are kept, how long, what is indexed. [CH-13, CH-14]

```toml
[channels]                    # for every channel
log = "embedded"              # embedded, postgres or nats
records = "embedded"          # embedded or postgres
postgres = "env:RAPPORT_PG"   # where, as a secret: env:NAME or file:PATH
nats = "env:RAPPORT_NATS"

[channels."raw.*"]            # an exact name wins over the longest pattern, that over [channels]
keep_for = "30 days"
```
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec

from rapport.core.errors import Problem
from rapport.kernel.fields import Fields
from rapport.kernel.toml import TomlFile

LOGS = ("embedded", "postgres", "nats")
RECORDS = ("embedded", "postgres")

_RULE_KEYS = ("log", "keep_for", "keep_bytes", "index", "interceptors")
_STORE_KEYS = ("records", "postgres", "nats")


class ChannelRules(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for the channels of a name or pattern; None = as the next wider rule says."""

    pattern: str = "*"
    log: str | None = None
    keep_for_ms: int | None = None
    """Age after which events may be let go; 0 = never."""
    keep_bytes: int | None = None
    """Bytes of log after which the oldest may be let go; 0 = never."""
    index: tuple[str, ...] | None = None
    """Fields that queries find by index: `subject`, `type`, `data.room.name` and the like."""
    interceptors: tuple[str, ...] | None = None

    def over(self, wider: ChannelRules) -> ChannelRules:
        """These rules, with what they leave open from wider ones."""
        chosen = {
            name: getattr(wider, name) if getattr(self, name) is None else getattr(self, name)
            for name in self.__struct_fields__
        }
        return ChannelRules(**chosen)


class ChannelsDeclared(msgspec.Struct, frozen=True, kw_only=True):
    """The `[channels]` table of a site."""

    records: str = "embedded"
    postgres: str = ""
    """Named as a secret (`env:NAME`, `file:PATH`); see kernel/settings.read_secret."""
    nats: str = ""
    common: ChannelRules = ChannelRules()
    rules: tuple[ChannelRules, ...] = ()

    def rules_for(self, name: str) -> ChannelRules:
        """What holds for one channel: the exact name, over longer patterns, over all channels."""
        found = [rule for rule in self.rules if fnmatchcase(name, rule.pattern)]
        merged = self.common
        for rule in sorted(found, key=lambda rule: (rule.pattern == name, len(rule.pattern))):
            merged = rule.over(merged)
        return merged


def channels_from_site(file: TomlFile) -> tuple[ChannelsDeclared, list[Problem]]:
    """What `[channels]` says, and all its problems; never raises for a wrong site."""
    problems: list[Problem] = []
    section = file.section("channels")
    patterns = dict(section.sections())
    fields = Fields(section, problems, known=(*_STORE_KEYS, *_RULE_KEYS, *patterns), strict=True)
    declared = ChannelsDeclared(
        records=fields.choice("records", RECORDS, "embedded"),
        postgres=fields.text("postgres", ""),
        nats=fields.text("nats", ""),
        common=_rules("*", fields),
        rules=tuple(
            _rules(pattern, Fields(table, problems, known=_RULE_KEYS, strict=True))
            for pattern, table in patterns.items()
        ),
    )
    _check_addresses(declared, fields)
    return declared, problems


def _rules(pattern: str, fields: Fields) -> ChannelRules:
    return ChannelRules(
        pattern=pattern,
        log=fields.choice("log", LOGS, "embedded") if fields.has("log") else None,
        keep_for_ms=fields.duration_ms("keep_for", 0) if fields.has("keep_for") else None,
        keep_bytes=(
            fields.number("keep_bytes", 0, low=0, high=2**60) if fields.has("keep_bytes") else None
        ),
        index=fields.texts("index", ()) if fields.has("index") else None,
        interceptors=fields.texts("interceptors", ()) if fields.has("interceptors") else None,
    )


def _check_addresses(declared: ChannelsDeclared, fields: Fields) -> None:
    used = {rule.log for rule in (declared.common, *declared.rules)} | {declared.records}
    for name in ("postgres", "nats"):
        if name in used and not getattr(declared, name):
            message = f"[channels] uses {name} but does not say where it is"
            hint = f'add {name} = "env:RAPPORT_{name.upper()}" with the address in that variable'
            fields.fault("", "channel.no_address", message, hint=hint)
