"""Finished rooms stay until as much was written after them as there is room for. [CO-7]"""

from __future__ import annotations

from pathlib import Path

from rapport.bench.communication.places import Places, one_place


def written(places: Places, size: int) -> Path:
    with places.fresh() as place:
        (place / "below").mkdir()
        (place / "below" / "log").write_bytes(bytes(size))
    return place


def test_the_oldest_go_when_all_have_too_much() -> None:
    with Places(100) as places:
        first, second = written(places, 60), written(places, 40)
        assert first.exists()
        third = written(places, 1)
        assert (first.exists(), second.exists(), third.exists()) == (False, True, True)
        large = written(places, 101)
        assert not any(place.exists() for place in (second, third, large))
        root = large.parent
    assert not root.exists()


def test_without_a_limit_they_have_the_memory_as_far_as_the_disk_has_room() -> None:
    with Places() as places:
        place = written(places, 1_000)
        assert place.exists()
    assert not place.exists()
    with one_place() as single:
        assert list(single.iterdir()) == []
    assert not single.exists()
