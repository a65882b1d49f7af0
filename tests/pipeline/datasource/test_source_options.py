from __future__ import annotations

import os

import pytest

from rapport.core.errors import InvalidInput, NotAllowed
from rapport.pipeline.datasource.source_options import LocationOptions, sink_options, source_options


def test_what_is_left_out_has_a_default() -> None:
    options = source_options({"site": "here"})
    assert options.channels == ("events",)
    assert (options.start, options.until, options.most_rows) == ("start", "end", None)
    assert options.location == LocationOptions(site=os.path.abspath("here"))


def test_everything_that_can_be_said() -> None:
    options = source_options(
        {
            "URL": "http://127.0.0.1:1",
            "key_file": "k",
            "channels": "events, detections,events",
            "from": '{"events": 5}',
            "until": "9",
            "most_rows": "100",
            "patience": "2s",
            "damaged": "pass",
            "checkpointLocation": "of Spark",
        }
    )
    assert options.channels == ("events", "detections")
    assert (options.start, options.until, options.most_rows) == ({"events": 5}, 9, 100)
    assert options.passes_damage
    assert options.location.patience_ms == 2_000


@pytest.mark.parametrize(
    ("given", "code", "hint"),
    [
        ({}, "source.bad_option", ".option"),
        ({"site": "a", "url": "b"}, "source.bad_option", ".option"),
        ({"site": "a", "chanels": "x"}, "source.unknown_option", "'channels'"),
        ({"site": "a", "key": "secret"}, "source.bare_key", "'key_file'"),
        ({"site": "a", "channels": "a b\n"}, "channel.bad_name", ""),
        ({"site": "a", "from": "yesterday"}, "source.bad_option", "positions"),
        ({"site": "a", "most_rows": "0"}, "source.bad_option", "from 1"),
        ({"site": "a", "most_rows": "many"}, "source.bad_option", "from 1"),
        ({"site": "a", "damaged": "maybe"}, "source.bad_option", "refuse, pass"),
        ({"site": "a", "patience": "long"}, "time.bad_duration", "unit"),
    ],
)
def test_a_wrong_option_is_refused_with_a_hint(given: dict, code: str, hint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        source_options(given)
    assert caught.value.code == code
    assert hint in caught.value.hint


def test_a_sink_needs_a_channel() -> None:
    assert sink_options({"site": "a", "channel": "c", "batch_token": "t"}).channel == "c"
    with pytest.raises(InvalidInput, match="needs a channel"):
        sink_options({"site": "a"})
    assert sink_options({"option.site": "a", "provider": "rapport", "channels": "c"}).channel == "c"
    with pytest.raises(InvalidInput, match="needs a channel"):
        sink_options({"site": "a", "channels": "c,d"})
    with pytest.raises(InvalidInput, match="chanel"):
        sink_options({"site": "a", "chanel": "c"})


@pytest.mark.parametrize("channel", ["events", "policies", "output.mail"])
def test_only_the_node_appends_to_its_own_channels(channel: str) -> None:
    with pytest.raises(NotAllowed) as caught:
        sink_options({"site": "a", "channel": channel})
    assert caught.value.code == "channel.reserved"
    assert sink_options({"site": "a", "channel": "detections"}).channel == "detections"
