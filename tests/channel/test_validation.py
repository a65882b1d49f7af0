"""What may enter a channel, and what need not be looked at twice. [CH-1]"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rapport
from rapport.channel.backends.local import open_memory
from rapport.channel.validation import check_events, snapshot_events
from rapport.core.codec import DecodedEvents, decode_cloudevents
from rapport.core.errors import InvalidInput, TooLarge
from rapport.core.event import Event
from rapport.kernel.clock import ManualClock

MOST = 100


def decoded(*members: dict[str, object]) -> Sequence[Event]:
    usual = {"id": "1", "source": "s", "type": "t"}
    return decode_cloudevents(json.dumps([usual | one for one in members]).encode(), received_ms=0)


ODD = st.dictionaries(
    st.sampled_from(["id", "source", "type", "subject", "time", "data", "cause", "other"]),
    st.sampled_from(["1", "", "a\nb", "é", "x" * 257, "x" * 300, 5, 2**64, None, {"a": 1}]),
    max_size=5,
)


@given(st.lists(ODD, max_size=20))
def test_what_a_decoder_calls_checked_would_pass_the_whole_check(
    members: list[dict[str, object]],
) -> None:
    try:
        events = decoded(*members)
    except InvalidInput:
        return
    largest = max((len(event.data) for event in events), default=0)
    if type(events) is DecodedEvents:
        assert check_events(events, largest) == check_events(list(events), largest)


def test_checked_events_are_still_measured_and_the_large_one_is_named() -> None:
    events = decoded({"data": "x"}, {"data": "x" * MOST})
    assert type(events) is DecodedEvents
    with pytest.raises(TooLarge) as caught:
        check_events(events, MOST)
    assert caught.value.code == "event.too_large"
    assert caught.value.message.startswith("event 1: ")
    assert check_events(events, MOST + 2) == len('"x"') + MOST + 2


def test_nothing_made_from_checked_events_counts_as_checked() -> None:
    events = decoded({"data": 1}, {"data": 2})
    assert snapshot_events(events) is events
    for other in (events[:1], events + events, snapshot_events(list(events)), tuple(events)):
        assert type(other) is tuple


def test_events_with_headers_are_not_called_checked() -> None:
    assert type(decoded({"cause": "0"})) is not DecodedEvents
    assert type(decoded({"other": "0"})) is not DecodedEvents


def test_only_the_decoder_calls_events_checked() -> None:
    root = Path(rapport.__file__).parent
    makers = [path.name for path in root.rglob("*.py") if "DecodedEvents(" in path.read_text()]
    assert makers == ["codec.py"]


def test_a_channel_takes_checked_events_as_any_others() -> None:
    async def scenario() -> None:
        channels = open_memory(ManualClock(0))
        events = decoded({"id": "a"}, {"id": "b", "subject": "x"}, {"id": "a"})
        appended = await channels.channel("c").append(events)
        assert appended.positions == (1, 2, 1)
        kept = await channels.channel("c").read_after(0)
        assert [stored.event for stored in kept] == list(events[:2])
        await channels.close()

    asyncio.run(scenario())


def test_headers_count_for_what_waits_in_memory() -> None:
    plain = [Event("s", "1", "t", "", 0, b"12345"), Event("s", "2", "t", "", 0, b"1")]
    assert check_events(plain, 100) == 6
    noted = [Event("s", "1", "t", "", 0, b"12345", {"a": "üü"}), plain[1]]
    assert check_events(noted, 100) == 6 + 5
