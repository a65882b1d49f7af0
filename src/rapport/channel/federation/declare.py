"""Links to other nodes, from the site's `[links]`. [CH-11]

```toml
[links.bologna]
url = "https://bologna.example.org:8484"
token = "file:bologna.token"          # what this node shows there
receive = ["raw.*", "alarms"]         # channels whose events are taken in from there
send = ["alarms"]                     # channels whose events are handed over
query = "type LIKE 'badge.%'"         # only these, both ways
rename = { detections = "bologna.detections" }   # kept here under another name
```

A neighbour with another root is read as a consumer reads: `interpretation` names one that the
neighbour declares; what comes in its words is a source here (`rename = { events = "raw.them" }`).
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec

from rapport.channel.checking import check_channel_name
from rapport.channel.query.kinds import make_query
from rapport.channel.reserved import CHANGING, OF_THE_NODE, OUTPUT, REQUEST
from rapport.core.errors import InvalidInput, Problem
from rapport.core.urls import address_parts
from rapport.kernel.config_fields import Fields
from rapport.kernel.toml import TomlFile

_KEYS = ("url", "token", "receive", "send", "query", "rename", "interpretation")

NOT_SHARED = (*OF_THE_NODE, f"{OUTPUT}*", f"{REQUEST}*")
"""Channels whose events would be acted on twice, or mean something only where they arose: they are
received under another name, or not at all.
"""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """What the site says of one neighbour."""

    name: str
    url: str
    token: str = ""
    """Named as a secret (`env:NAME`, `file:PATH`)."""
    receive: tuple[str, ...] = ()
    send: tuple[str, ...] = ()
    query: str = ""
    rename: dict[str, str] = {}
    interpretation: str = ""
    """One of the neighbour's, in whose words it is read; empty: as the neighbour keeps it."""

    def kept_as(self, channel: str) -> str | None:
        """The channel here that takes in a neighbour's channel; None when it is not received."""
        if channel in self.rename:
            return self.rename[channel]
        return channel if is_shared(channel) and _means(channel, self.receive) else None

    def is_sent(self, channel: str) -> bool:
        """Whether the events of a channel here are handed over."""
        return is_shared(channel) and _means(channel, self.send)


def is_shared(channel: str) -> bool:
    """Whether a channel of this name may take in another node's events."""
    return not _matches(channel, NOT_SHARED)


def links_from_site(file: TomlFile) -> tuple[tuple[Link, ...], list[Problem]]:
    """What `[links]` says, and all its problems; never raises for a wrong site."""
    problems: list[Problem] = []
    section = file.section("links")
    Fields(section, problems, known=dict(section.sections()), strict=True)
    links = [
        _link(name, Fields(table, problems, known=_KEYS, strict=True))
        for name, table in section.sections()
    ]
    return tuple(links), problems


def _link(name: str, fields: Fields) -> Link:
    rename = fields.table("rename", None, '{ detections = "there.detections" }')
    link = Link(
        name=name,
        url=fields.filled_text("url", example='"http://10.0.0.2:8484"').rstrip("/"),
        token=fields.text("token", ""),
        receive=fields.texts("receive", ()),
        send=fields.texts("send", ()),
        query=fields.text("query", ""),
        rename={key: str(value) for key, value in rename.section.values.items()} if rename else {},
        interpretation=fields.text("interpretation", ""),
    )
    _check(link, fields)
    return link


def _check(link: Link, fields: Fields) -> None:
    parts = address_parts(link.url)
    if link.url and (parts.scheme not in ("http", "https") or not parts.hostname):
        message, hint = f"{link.url!r} is not the address of a node", "http://10.0.0.2:8484"
        fields.fault("url", "link.bad_url", message, hint=f"such as {hint}")
    if not (link.receive or link.send or link.rename):
        hint = 'such as receive = ["raw.*"]'
        fields.fault("", "link.idle", "the link shares no channel", hint=hint)
    try:
        if link.query:
            make_query("sql", link.query)
        for local in link.rename.values():
            check_channel_name(local)
    except InvalidInput as error:
        fields.report("query" if "query" in error.code else "rename", error)
    if link.interpretation and link.send:
        message = "an interpretation of the neighbour is for what is received from it"
        hint = "the neighbour declares a link of its own for what it wants from here"
        fields.fault("interpretation", "link.one_way", message, hint=hint)
    for local in link.rename.values():
        if not is_shared(local):
            message = f"channel {local!r} cannot take in another node's events"
            hint = f"another name, such as {link.name}.{local}"
            fields.fault("rename", "link.not_shared", message, hint=hint)
    for key in ("receive", "send"):
        for pattern in getattr(link, key):
            if not is_shared(pattern):
                message = f"channel {pattern!r} is not shared under its own name"
                hint = f'receive it as: rename = {{ "{pattern}" = "{link.name}.{pattern}" }}'
                fields.fault(key, "link.not_shared", message, hint=hint)


def _means(name: str, patterns: tuple[str, ...]) -> bool:
    """No pattern means what lets a neighbour change this node: its name has to be said."""
    return name in patterns if name in CHANGING else _matches(name, patterns)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
