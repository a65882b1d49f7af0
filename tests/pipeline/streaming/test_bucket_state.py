"""What is kept of a bucket leads to the same wherever it is taken up, also by other plans."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rapport.core.detection import detection_order
from rapport.core.errors import Conflict, Corrupt
from rapport.kernel.clock import Chance
from rapport.pipeline.streaming import buckets as saving
from rapport.pipeline.streaming.live_job import BatchRouter, assign_policies
from rapport.policy.engine.active_plans import ActivePlans
from rapport.policy.engine.stream_steps import TimeMoved
from rapport.policy.named_values import NOTHING_NEEDED
from rapport.policy.situation_plan import SituationPlan
from support.varied.worlds import readings_batch


def through(
    ways: Any, stream: Any, batches: Any, *shelves: Any, stopped: Any = None, shares: Any = None
) -> Any:
    """Buckets, one for each shelf, through batches; everything is put away in between."""
    shares = shares or ways.shares(stream, len(shelves))
    sharing = BatchRouter(stream.plans, shares, stream.pull, stream.ontology.sources)
    found: list[Any] = []
    for batch in batches:
        for number, parcels in enumerate(ways.parcels(stream, sharing, batch)):
            keeper = ways.keeper(stream, shares, number, stopped)
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


@pytest.mark.parametrize("kind", ["stream", "stateful"])
@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.parametrize("seed", range(20))
def test_what_was_decided_by_other_tables_stays_decided_by_them(
    ways: Any, seed: int, buckets: int, kind: str
) -> None:
    chance = Chance(seed)
    stream = getattr(ways, kind)(chance)
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


@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.parametrize("seed", range(10))
def test_replaced_and_stopped_situations_live_as_in_the_node(
    ways: Any, seed: int, buckets: int
) -> None:
    chance = Chance(seed)
    stream = ways.stateful(chance, with_values=True)
    batches = ways.cut(chance, stream)
    middle = chance.randint(1, len(batches) - 1)
    reached = max([last for one in batches[:middle] for _, last in one.stretches], default=0)
    before, gone, kept = stream.plans
    after = [msgspec.structs.replace(before, actions=("something else",)), kept]
    expected = in_the_node(ways, stream, reached, after[0], gone.policy)
    shelves = [ways.shelf() for _ in range(buckets)]
    shares = ways.shares(stream, buckets)
    found = through(ways, stream, batches[:middle], *shelves, shares=shares)
    stream.plans = after
    places = shares.places()
    shares = assign_policies(after, stream.pull, stream.ontology.sources, buckets, places)
    assert shares.places() == {one.policy: places[one.policy] for one in after}
    reason = {gone.policy: "the policy was deleted"}
    found += through(ways, stream, batches[middle:], *shelves, stopped=reason, shares=shares)
    assert sorted(found, key=detection_order) == sorted(expected, key=detection_order)


def test_without_a_policy_what_is_open_ends(ways: Any) -> None:
    told = 0
    for seed in range(6):
        chance = Chance(seed)
        stream = ways.stateful(chance)
        batches = ways.cut(chance, stream)
        shelves = [ways.shelf(), ways.shelf()]
        found = through(ways, stream, batches[:-1], *shelves)
        situations = {one.policy for one in stream.plans if isinstance(one, SituationPlan)}
        stream.plans = []
        ends = through(ways, stream, batches[-1:], *shelves, stopped=dict.fromkeys(situations, "x"))
        own = [one for one in found if one.policy in situations]
        begun = {(one.policy, *one.bindings.items(), one.time) for one in own if not one.began}
        ended = {(one.policy, *one.bindings.items(), one.began) for one in own if one.began}
        still = {(one.policy, *one.bindings.items(), one.began) for one in ends}
        assert still == begun - ended
        assert {one.reason for one in ends} <= {"x"}
        told += len(ends)
    assert told, "something is open somewhere"


def in_the_node(ways: Any, stream: Any, reached: int, other: Any, gone: str) -> list[Any]:
    """What its engine tells when one policy is replaced and another deleted after a position."""
    active = ActivePlans(
        (),
        stream.pull,
        stream.ontology,
        lateness_ms=stream.lateness_ms,
        steady_ns=lambda: 0,
    )
    active.runner = ways.runner(stream)
    active.use_texts(lambda policy, _version: stream.needed.get(policy, NOTHING_NEEDED))
    told: list[Any] = []

    def tell(found: Any) -> None:
        new = [*active.new_ends(), *active.new_results(found)]
        active.emitted(new)
        told.extend(new)

    beats = list(stream.beats)
    for position in range(len(stream.readings) + 1):
        if position:
            row = readings_batch([stream.readings[position - 1]], stream.ontology)
            tell(active.feed(row, stream.received(position, position)))
        while beats and beats[0].after == position:
            tell(active.advance(beats.pop(0).time))
        if position == reached:
            active.deploy(other)
            active.stop(gone, "the policy was deleted")
    return told


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
