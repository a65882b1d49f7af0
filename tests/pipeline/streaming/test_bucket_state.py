"""What is kept of a bucket leads to the same wherever it is taken up, also by other plans."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rapport.core.detection import detection_order
from rapport.core.errors import Conflict, Corrupt
from rapport.kernel.clock import Chance
from rapport.pipeline.streaming import buckets as saving
from rapport.pipeline.streaming.live_job import BatchRouter
from rapport.policy.engine.stream_steps import TimeMoved


def through(ways: Any, stream: Any, batches: Any, *shelves: Any) -> Any:
    """Buckets, one for each shelf, through batches; everything is put away in between."""
    shares = ways.shares(stream, len(shelves))
    sharing = BatchRouter(stream.plans, shares, stream.pull, stream.ontology.sources)
    found: list[Any] = []
    for batch in batches:
        for number, parcels in enumerate(ways.parcels(stream, sharing, batch)):
            keeper = ways.keeper(stream, shares, number)
            told, _ = keeper.step(shelves[number], parcels, None)
            found += told.detections
    return found


def test_large_pieces_are_cut_and_put_together(ways: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "CHUNK_BYTES", 100)
    chance = Chance(3)
    stream = ways.stream(chance)
    shelf = ways.shelf()
    found = through(ways, stream, ways.cut(chance, stream), shelf)
    assert found == ways.alone(stream)[0]
    assert max(len(row.piece) for row in shelf.entries()) == 100


def test_a_snapshot_is_made_once_as_much_was_given(
    ways: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "_LEAST_BYTES", 0)
    monkeypatch.setattr(saving, "_MOST_ENTRIES", 3)
    chance = Chance(4)
    stream = ways.stream(chance, events=60)
    shelf = ways.shelf()
    found = through(ways, stream, ways.cut(chance, stream), shelf)
    assert found == ways.alone(stream)[0]
    assert shelf.mark().entries < 3


def test_pieces_that_do_not_belong_together_are_refused(ways: Any) -> None:
    chance = Chance(5)
    stream = ways.stream(chance)
    shelf = ways.shelf()
    batches = ways.cut(chance, stream)
    through(ways, stream, batches[:-2], shelf)
    mark = shelf.mark()
    shelf.replace(msgspec.structs.replace(mark, digest=b"other"), list(shelf.entries()))
    with pytest.raises(Corrupt, match="does not lead"):
        through(ways, stream, batches[-2:], shelf)
    shelf.replace(mark, [])
    with pytest.raises(Corrupt, match="missing"):
        through(ways, stream, batches[-2:], shelf)


@pytest.mark.parametrize("seed", range(6))
def test_policies_that_stay_go_on_when_others_change(ways: Any, seed: int) -> None:
    chance = Chance(seed)
    stream = ways.stream(chance)
    batches = ways.cut(chance, stream)
    middle = len(batches) // 2
    shelf = ways.shelf()
    found = through(ways, stream, batches[:middle], shelf)
    kept, *_gone = stream.plans
    other = msgspec.structs.replace(stream.plans[1], actions=("something else",))
    stream.plans = [kept, other]
    found += through(ways, stream, batches[middle:], shelf)
    expected = ways.alone(stream, [kept])[0]
    assert [one for one in found if one.policy == kept.policy] == expected


@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.parametrize("seed", range(20))
def test_what_was_decided_by_other_tables_stays_decided_by_them(
    ways: Any, seed: int, buckets: int
) -> None:
    chance = Chance(seed)
    stream = ways.stream(chance)
    batches = ways.cut(chance, stream)
    middle = chance.randint(1, len(batches) - 1)
    reached = max([last for one in batches[:middle] for _, last in one.stretches], default=0)
    other = ways.other_tables(chance, stream)
    expected = ways.alone(stream, switch=(reached, other))[0]
    shelves = [ways.shelf() for _ in range(buckets)]
    found = through(ways, stream, batches[:middle], *shelves)
    stream.pull = other
    found += through(ways, stream, batches[middle:], *shelves)
    assert sorted(found, key=detection_order) == expected


def test_what_was_taken_before_is_refused(ways: Any) -> None:
    chance = Chance(6)
    stream = ways.stream(chance)
    batches = [one for one in ways.cut(chance, stream) if one.stretches]
    shelf = ways.shelf()
    through(ways, stream, batches[:1], shelf)
    with pytest.raises(Conflict) as caught:
        through(ways, stream, batches[:1], shelf)
    assert caught.value.code == "live.out_of_order"


def test_a_beat_whose_place_is_passed_counts_where_it_is_met(ways: Any) -> None:
    chance = Chance(7)
    stream = ways.stream(chance)
    last = stream.beats[-1]
    stream.beats = [last]
    batches = ways.cut(chance, stream)
    batches[-1].beats = [TimeMoved(last.time, 1)]
    assert through(ways, stream, batches, ways.shelf()) == ways.alone(stream)[0]
