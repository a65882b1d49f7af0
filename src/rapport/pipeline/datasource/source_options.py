"""What is said to the source and the sink, checked. Pure. [PI-2]

Options appear in Spark's pages and logs: a key is therefore named by its file, never given.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from rapport.channel.validation import check_channel_name
from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.times import parse_duration
from rapport.pipeline.datasource.rows import parse_where

SITE, URL, KEY_FILE, PATIENCE = "site", "url", "key_file", "patience"
_PLACE = (SITE, URL, KEY_FILE, PATIENCE)
_SOURCE = (
    *_PLACE,
    *("channels", "from", "until", "where", "most_rows", "in_turn", "damaged", "push_filters"),
)
_SINK = (*_PLACE, "channel", "batch_token")
_SECRETS = ("key", "token", "password", "secret")
# Spark's own, which come along with ours.
_OF_SPARK = ("path", "checkpointlocation", "queryname")
_PATIENCE = "30s"


class LocationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the channels are: a site's directory, or the address of a node."""

    site: str = ""
    url: str = ""
    key_file: str = ""
    patience_ms: int = 30_000
    """How long a node may be away before that is an error."""


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is read."""

    place: LocationOptions
    channels: tuple[str, ...] = ("events",)
    start: object = "start"
    until: object = "end"
    where: str = ""
    """A condition in the language of channels; see where.py."""
    most_rows: int | None = None
    in_turn: bool = False
    """Whether a channel waits for those named before it when `most_rows` does not allow all."""
    passes_damage: bool = False
    pushes_filters: bool = False
    """Whether Spark may hand filters over; see ChannelReader."""


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is written to."""

    place: LocationOptions
    channel: str
    batch_token: str = ""
    """Names a batch that is written, so that rows without an id get the same one every time."""


def source_options(given: Mapping[str, str]) -> SourceOptions:
    """The options of a source; raises InvalidInput, or UnknownName with the nearest one."""
    said = _known(given, _SOURCE)
    names = tuple(name.strip() for name in said.get("channels", "events").split(","))
    for name in names:
        check_channel_name(name)
    return SourceOptions(
        place=_place(said),
        channels=tuple(dict.fromkeys(names)),
        start=_place_in_channels(said.get("from", "start"), "from"),
        until=_place_in_channels(said.get("until", "end"), "until"),
        where=_where(said.get("where", "")),
        most_rows=_most_rows(said.get("most_rows")),
        in_turn=_choice(said, "in_turn", ("false", "true")) == "true",
        passes_damage=_choice(said, "damaged", ("refuse", "pass")) == "pass",
        pushes_filters=_choice(said, "push_filters", ("false", "true")) == "true",
    )


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options of a sink; raises InvalidInput, or UnknownName with the nearest one."""
    said = _known(given, _SINK)
    channel = said.get("channel", "")
    if not channel:
        raise _bad("the sink needs a channel", 'add .option("channel", NAME)')
    check_channel_name(channel)
    return SinkOptions(place=_place(said), channel=channel, batch_token=said.get("batch_token", ""))


def _known(given: Mapping[str, str], known: tuple[str, ...]) -> dict[str, str]:
    said = {name.lower(): value for name, value in given.items()}
    for name in said:
        if name in _SECRETS:
            raise InvalidInput(
                f"{name} is no option: options can be seen in Spark's pages",
                code="source.bare_key",
                hint="put the key into a file and name it: .option('key_file', FILE)",
            )
        if name not in known and name not in _OF_SPARK:
            raise UnknownName("option", name, known, code="source.unknown_option")
    return said


def _place(said: Mapping[str, str]) -> LocationOptions:
    site, url = said.get(SITE, ""), said.get(URL, "")
    if bool(site) == bool(url):
        raise _bad(
            "say where the channels are: either site or url",
            'such as .option("site", "my-site") or .option("url", "http://127.0.0.1:8484")',
        )
    return LocationOptions(
        site=_whole(site),
        url=url,
        key_file=_whole(said.get(KEY_FILE, "")),
        patience_ms=parse_duration(said.get(PATIENCE, _PATIENCE)),
    )


def _whole(path: str) -> str:
    """The whole path: Spark's workers may stand elsewhere."""
    return os.path.abspath(path) if path else ""


def _place_in_channels(text: str, option: str) -> object:
    if text in ("start", "end"):
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _bad(
            f"{option} cannot be {text!r}", 'say start, end, or positions such as {"events": 1000}'
        ) from None


def _where(text: str) -> str:
    parse_where(text)  # refused here, before anything runs
    return text


def _most_rows(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise _bad(f"most_rows cannot be {text!r}", "a whole number from 1 on")
    return int(text)


def _choice(said: Mapping[str, str], option: str, choices: tuple[str, ...]) -> str:
    chosen = said.get(option, choices[0])
    if chosen not in choices:
        raise _bad(f"{option} cannot be {chosen!r}", f"one of: {', '.join(choices)}")
    return chosen


def _bad(message: str, hint: str) -> InvalidInput:
    return InvalidInput(message, code="source.bad_option", hint=hint)
