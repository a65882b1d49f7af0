"""The `[channels]` table of a site: stores, retention, indexes, push, scripts. [CH-13, CH-14]

```toml
[channels]                    # for every channel
log = "embedded"              # embedded, postgres or nats
records = "embedded"          # embedded or postgres
postgres = "env:RAPPORT_PG"   # where, as a secret: env:NAME or file:PATH
nats = "env:RAPPORT_NATS"
channels_per_identity = 1000  # channels that one identity of [access] may create

[channels."raw.*"]            # an exact name wins over the longest pattern, that over [channels]
keep_for = "30 days"          # older events are trimmed once all named readers have read them
keep_bytes = 2_000_000_000
keep_hard = false             # true: trimmed in any case
ttl = "1h"                    # not delivered after that; "0s" = delivered once
index = ["subject", "data.room"]   # fields with an index for queries
export = true                 # closed segments become Parquet files before they are trimmed

[channels.scripts]            # for queries of the kind "script"
busy = "scripts/busy.py:busy"
```
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec

from rapport.channel.access.identities import CHANNELS_PER_IDENTITY
from rapport.channel.push import is_entry
from rapport.channel.query.index_plan import index_path
from rapport.channel.query.query_kinds import check_reference
from rapport.core.errors import InvalidInput, Problem
from rapport.kernel.config_fields import Fields
from rapport.kernel.toml import TomlFile

LOGS = ("embedded", "postgres", "nats")
RECORDS = ("embedded", "postgres")
SIGNED = ("required", "checked")

_KEEP_KEYS = ("keep_for", "keep_bytes", "keep_hard", "ttl")
_RULE_KEYS = ("log", *_KEEP_KEYS, "index", "interceptors", "signed", "export")
_STORE_KEYS = ("records", "postgres", "nats", "push_to", "push_secret", "channels_per_identity")


class ChannelRules(msgspec.Struct, frozen=True, kw_only=True):
    """Rules for the channels of a name or pattern; None = as in the next wider rule."""

    pattern: str = "*"
    log: str | None = None
    keep_for_ms: int | None = None
    """Age after which events may be trimmed; 0 = never."""
    keep_bytes: int | None = None
    """Bytes of log above which the oldest events may be trimmed; 0 = never."""
    keep_hard: bool | None = None
    """Whether the limits also apply to events that a named reader has not read yet."""
    ttl_ms: int | None = None
    """Time to live since arrival: 0 = until delivered once, -1 = as long as stored."""
    index: tuple[str, ...] | None = None
    """Fields with an index for queries: `subject`, `type`, `data.room.name` and the like."""
    interceptors: tuple[str, ...] | None = None
    signed: str | None = None
    """`required`: every event received by an endpoint carries a valid signature of a key in
    `[access.keys]`; `checked`: a signature of a known key must be valid.
    """
    export: bool | None = None
    """Whether a running node exports closed pieces to the lake; retention waits for that."""

    def over(self, wider: ChannelRules) -> ChannelRules:
        """These rules, with missing values from wider ones."""
        chosen = {
            name: getattr(wider, name) if getattr(self, name) is None else getattr(self, name)
            for name in self.__struct_fields__
        }
        return ChannelRules(**chosen)


class ChannelsConfig(msgspec.Struct, frozen=True, kw_only=True):
    records: str = "embedded"
    postgres: str = ""
    """Named as a secret (`env:NAME`, `file:PATH`); see kernel/settings.read_secret."""
    nats: str = ""
    push_to: tuple[str, ...] = ()
    """Addresses that subscribers may have messages pushed to; see push/addresses.py."""
    push_secret: str = ""
    """Signs pushed bodies; named as a secret. Empty: no signature."""
    channels_per_identity: int = CHANNELS_PER_IDENTITY
    """Channels that one identity may begin."""
    scripts: dict[str, str] = {}
    """Query scripts by name, each `FILE.py:FUNCTION` in the site's directory."""
    common: ChannelRules = ChannelRules()
    rules: tuple[ChannelRules, ...] = ()

    def rules_for(self, name: str) -> ChannelRules:
        """The rules of one channel: the exact name, over longer patterns, over all channels."""
        found = [rule for rule in self.rules if fnmatchcase(name, rule.pattern)]
        merged = self.common
        for rule in sorted(found, key=lambda rule: (rule.pattern == name, len(rule.pattern))):
            merged = rule.over(merged)
        return merged


def channels_from_site(file: TomlFile) -> tuple[ChannelsConfig, list[Problem]]:
    """The `[channels]` table, and all its problems; never raises for a wrong site."""
    problems: list[Problem] = []
    section = file.section("channels")
    patterns = dict(section.sections())
    scripts = patterns.pop("scripts", None)
    known = (*_STORE_KEYS, *_RULE_KEYS, "scripts", *patterns)
    fields = Fields(section, problems, known=known, strict=True)
    declared = ChannelsConfig(
        records=fields.choice("records", RECORDS, "embedded"),
        postgres=fields.text("postgres", ""),
        nats=fields.text("nats", ""),
        push_to=_push_addresses(fields),
        push_secret=fields.text("push_secret", ""),
        channels_per_identity=fields.number(
            "channels_per_identity", CHANNELS_PER_IDENTITY, low=0, high=1_000_000
        ),
        scripts={} if scripts is None else _scripts(Fields(scripts, problems)),
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
        keep_hard=fields.flag("keep_hard") if fields.has("keep_hard") else None,
        ttl_ms=fields.duration_ms("ttl", 0) if fields.has("ttl") else None,
        index=_indexed(fields) if fields.has("index") else None,
        interceptors=fields.texts("interceptors", ()) if fields.has("interceptors") else None,
        signed=fields.choice("signed", SIGNED, "required") if fields.has("signed") else None,
        export=fields.flag("export") if fields.has("export") else None,
    )


def _indexed(fields: Fields) -> tuple[str, ...]:
    entries = fields.texts("index", ())
    for entry in entries:
        try:
            index_path(entry)
        except InvalidInput as error:
            (problem,) = error.problems_found()
            hint = problem.hint or 'such as "subject" or "data.room.name"'
            message = f"{entry[:100]!r} cannot be indexed: {problem.message}"
            fields.fault("index", "channel.bad_index", message, hint=hint)
    return entries


def _scripts(fields: Fields) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in fields.section.values:
        found[name] = fields.text(name, "")
        wrong = check_reference(found[name])
        if wrong:
            hint = 'such as "scripts/busy.py:busy"'
            fields.fault(name, "channel.bad_script", wrong, hint=hint)
    return found


def _push_addresses(fields: Fields) -> tuple[str, ...]:
    entries = fields.texts("push_to", ())
    for entry in entries:
        if not is_entry(entry):
            message = f"{entry[:100]!r} is no address to push to"
            hint = 'such as "https://hooks.example.org" or "http://127.0.0.1:*"'
            fields.fault("push_to", "push.bad_address", message, hint=hint)
    return entries


def _check_addresses(declared: ChannelsConfig, fields: Fields) -> None:
    used = {rule.log for rule in (declared.common, *declared.rules)} | {declared.records}
    for name in ("postgres", "nats"):
        if name in used and not getattr(declared, name):
            message = f"[channels] uses {name} but names no address for it"
            hint = f'add {name} = "env:RAPPORT_{name.upper()}" with the address in that variable'
            fields.fault("", "channel.no_address", message, hint=hint)
