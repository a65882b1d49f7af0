"""What is so at present, from the last readings. [ME-4]"""

import msgspec
import pytest

from rapport.core.errors import Corrupt
from rapport.core.event import Event
from rapport.mediation.present_values import PresentValues, read_present


def reading(value, *, key="a", time=1_000, stream="room.temperature"):
    data = f'{{"key":"{key}","value":{value}}}'.encode()
    return Event(
        source="s", id=f"{key}{time}", type=stream, subject=f"room/{key}", time=time, data=data
    )


def test_the_newest_reading_by_event_time_is_the_present_value():
    present = PresentValues()
    assert present.value("room", "a", "temperature") is None
    assert present.feed(reading([20.0], time=2_000))
    assert not present.feed(reading([10.0], time=1_000))
    assert present.value("room", "a", "temperature") == [20.0]
    assert present.feed(reading([21.0], time=2_000))
    assert present.feed(reading([1.0, 2.0], stream="room.place"))
    assert present.value("room", "a", "temperature") == [21.0]
    assert present.value("room", "a", "place") == [1.0, 2.0]
    assert present.value("room", "b", "temperature") is None


def test_events_that_are_no_readings_are_ignored():
    present = PresentValues()
    for data in (b"", b"[]", b'{"key":1,"value":[1]}', b'{"key":"a"}', b"\xff"):
        event = Event(source="s", id="1", type="t", subject="", time=0, data=data)
        assert not present.feed(event)
    assert len(present) == 0


def test_present_values_are_saved_and_restored():
    present = PresentValues()
    present.feed(reading([20.0]))
    present.feed(reading('["open", true]', stream="door.state", key="d"))
    kept = [msgspec.json.encode(value) for _, value in present.changed()]
    again = PresentValues.of(read_present(kept))
    assert again.value("room", "a", "temperature") == [20.0]
    assert again.value("door", "d", "state") == ["open", True]
    assert not again.feed(reading([5.0], time=500))
    with pytest.raises(Corrupt):
        read_present([b"{}"])


def test_changed_values_are_listed_in_the_order_of_updates_until_they_are_saved():
    present = PresentValues(most=2)
    for key in ("a", "b", "a"):
        present.feed(reading([1.0], key=key))
    kept = {place[1]: value for place, value in present.changed()}
    present.saved()
    assert list(present.changed()) == []
    again = PresentValues.of(kept.values(), most=2)
    assert list(again.changed()) == []
    again.feed(reading([1.0], key="c"))  # b was heard of least recently
    assert {place[1]: value is None for place, value in again.changed()} == {"c": False, "b": True}


def test_the_least_recently_updated_value_is_dropped_first():
    present = PresentValues(most=2)
    for key in ("a", "b", "a", "c"):
        present.feed(reading([1.0], key=key))
    known = [key for key in "abc" if present.value("room", key, "temperature")]
    assert known == ["a", "c"]
