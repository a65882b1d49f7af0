"""Finished rooms stay until as much was written after them as there is room for. [CO-7]"""

from __future__ import annotations

from pathlib import Path

from benchmarks.communication.places import Places, many_places, one_place


def written(places: Places, size: int) -> Path:
    with places.fresh() as place:
        (place / "below").mkdir()
        (place / "below" / "log").write_bytes(bytes(size))
    return place


def test_the_oldest_go_when_all_have_too_much(tmp_path: Path) -> None:
    places = Places(tmp_path, 100)
    first, second = written(places, 60), written(places, 40)
    assert first.exists()
    third = written(places, 1)
    assert (first.exists(), second.exists(), third.exists()) == (False, True, True)
    large = written(places, 101)
    assert not any(place.exists() for place in (second, third, large))


def test_all_are_removed_in_the_end() -> None:
    with many_places() as places:
        place = written(places, 1_000)
        assert place.exists()
    assert not place.parent.exists()
    with one_place() as single:
        assert list(single.iterdir()) == []
    assert not single.exists()
