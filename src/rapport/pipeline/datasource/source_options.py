"""Options of the source and the sink, checked. Pure. [PI-2]

Options appear in Spark's pages and logs: a key is therefore named by its file, never given.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from rapport.channel.validation import check_channel_name, check_pipeline_channel, is_reserved
from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.times import parse_duration
from rapport.pipeline.datasource.rows import parse_where

_SOURCE = (
    *("site", "url", "key_file", "patience"),
    *("channels", "from", "until", "where", "most_rows", "in_turn", "damaged", "push_filters"),
)
_SINK = ("site", "url", "key_file", "patience", "channel", "batch_token")
EVERY_CHANNEL = "*"
_SECRETS = ("key", "token", "password", "secret")
# Options of Spark, and properties that it adds to the options of a catalogue table.
_OF_SPARK = frozenset(
    (
        *("path", "checkpointlocation", "queryname", "provider", "owner", "location", "comment"),
        *("external", "is_managed_location", "table_type", "collation", "transient_lastddltime"),
        "serialization.format",
    )
)


class LocationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the channels are: a site's directory, or the address of a node."""

    site: str = ""
    url: str = ""
    key_file: str = ""
    patience_ms: int = 30_000
    """How long a node may be away before that is an error."""


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a read."""

    location: LocationOptions
    channels: tuple[str, ...] = ("events",)
    start: object = "start"
    until: object = "end"
    where: str = ""
    """A condition in the query language of channels."""
    most_rows: int | None = None
    in_turn: bool = False
    """Whether a channel waits for those named before it when `most_rows` does not allow all."""
    passes_damage: bool = False
    pushes_filters: bool = False


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a write."""

    location: LocationOptions
    channel: str
    """`*`: the column `channel` of every row names its channel."""
    batch_token: str = ""
    """Names a batch, so that rows without an id get the same one when it is written again."""


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """Raises InvalidInput, or UnknownName with the nearest option."""
    given = _known(options, (*_SOURCE, "channel", "batch_token"))
    channels = given.get("channels") or given.get("channel", "events")
    names = tuple(name.strip() for name in channels.split(","))
    for name in names:
        check_channel_name(name)
    where = given.get("where", "")
    parse_where(where)
    return SourceOptions(
        location=_location(given),
        channels=tuple(dict.fromkeys(names)),
        start=_positions(given.get("from", "start"), "from"),
        until=_positions(given.get("until", "end"), "until"),
        where=where,
        most_rows=_most_rows(given.get("most_rows")),
        in_turn=_choice(given, "in_turn", ("false", "true")) == "true",
        passes_damage=_choice(given, "damaged", ("refuse", "pass")) == "pass",
        pushes_filters=_choice(given, "push_filters", ("false", "true")) == "true",
    )


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Raises InvalidInput, UnknownName with the nearest option, or NotAllowed for a channel that
    only the node appends to. A table has the options of the source, too: its only channel is meant.
    """
    given = _known(options, (*_SINK, *_SOURCE))
    channel = given.get("channel") or given.get("channels", "")
    if not channel or "," in channel:
        raise _bad("the sink needs a channel", 'add .option("channel", NAME)')
    if channel != EVERY_CHANNEL:
        check_channel_name(channel)
        if is_reserved(channel):
            check_pipeline_channel(channel)
    return SinkOptions(
        location=_location(given), channel=channel, batch_token=given.get("batch_token", "")
    )


def _known(options: Mapping[str, str], known: tuple[str, ...]) -> dict[str, str]:
    # Spark gives the options of a catalogue table with a prefix.
    given = {name.lower().removeprefix("option."): value for name, value in options.items()}
    for name in given:
        if name in _SECRETS:
            raise InvalidInput(
                f"{name} is no option: options can be seen in Spark's pages",
                code="source.bare_key",
                hint="put the key into a file and name it: .option('key_file', FILE)",
            )
        if name not in known and name not in _OF_SPARK:
            raise UnknownName("option", name, known, code="source.unknown_option")
    return given


def _location(given: Mapping[str, str]) -> LocationOptions:
    site, url, key_file = (given.get(name, "") for name in ("site", "url", "key_file"))
    if bool(site) == bool(url):
        raise _bad(
            "say where the channels are: either site or url",
            'such as .option("site", "my-site") or .option("url", "http://127.0.0.1:8484")',
        )
    return LocationOptions(
        # Spark's workers may have another working directory.
        site=os.path.abspath(site) if site else "",
        url=url,
        key_file=os.path.abspath(key_file) if key_file else "",
        patience_ms=parse_duration(given.get("patience", "30s")),
    )


def _positions(text: str, option: str) -> object:
    if text in ("start", "end"):
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _bad(
            f"{option} cannot be {text!r}", 'say start, end, or positions such as {"events": 1000}'
        ) from None


def _most_rows(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise _bad(f"most_rows cannot be {text!r}", "a whole number from 1 on")
    return int(text)


def _choice(given: Mapping[str, str], option: str, choices: tuple[str, ...]) -> str:
    chosen = given.get(option, choices[0])
    if chosen not in choices:
        raise _bad(f"{option} cannot be {chosen!r}", f"one of: {', '.join(choices)}")
    return chosen


def _bad(message: str, hint: str) -> InvalidInput:
    return InvalidInput(message, code="source.bad_option", hint=hint)
