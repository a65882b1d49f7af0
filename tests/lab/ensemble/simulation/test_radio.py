from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput, TooLarge
from rapport.kernel.clock import Chance
from rapport_lab.ensemble.simulation.mobility import Mobility, PlanPoint
from rapport_lab.ensemble.simulation.radio import EXACT, FixedLinks, InRange, Radio, RadioSettings
from rapport_lab.ensemble.simulation.streets import Street, StreetMap
from rapport_lab.scheduler import Scheduler
from support.examples import examples

_BYTES = 250
_AIR_MS = 8.0
"""What 250 bytes take at 250 kbit/s."""
_DEAF = RadioSettings(carrier_sense=False)
_CHAIN = [(0, 1), (1, 2)]


class _Air:
    """A radio that writes down who received what, when."""

    def __init__(
        self,
        count: int,
        links: Sequence[tuple[int, int]],
        radio_settings: RadioSettings | None = None,
        seed: int = 1,
    ) -> None:
        self.scheduler = Scheduler()
        self.radio = Radio(self.scheduler, FixedLinks(count, links), Chance(seed), radio_settings)
        self.radio.on_hear = self._hear
        self.heard: list[tuple[float, int, Any, tuple[int, ...]]] = []
        for number in range(count):
            self.radio.switch_on(number)

    def _hear(self, number: int, message: Any, ears: Sequence[int]) -> None:
        self.heard.append((self.scheduler.time_ms, number, message, tuple(ears)))

    def send_at(self, time_ms: float, number: int, message: str = "x", size: int = _BYTES) -> None:
        self.scheduler.at(time_ms, self.radio.send, number, message, size)


def test_one_hop_takes_exactly_101_ms_when_set_so() -> None:
    air = _Air(3, _CHAIN, EXACT)
    for number in range(3):
        air.send_at(1_000.0, number)
        air.send_at(1_000.0, number, "y", 1_000)
    air.scheduler.run()
    assert {time_ms for time_ms, *_ in air.heard} == {1_101.0}
    assert [(number, ears) for _, number, message, ears in air.heard if message == "y"] == [
        (0, (1,)),
        (1, (0, 2)),
        (2, (1,)),
    ]


def test_alone_a_message_waits_in_the_queue_and_lasts_as_long_as_its_size() -> None:
    air = _Air(2, [(0, 1)], _DEAF)
    air.send_at(10.0, 0)
    air.scheduler.run()
    assert air.heard == [(10.0 + 100.0 + _AIR_MS, 0, "x", (1,))]


def test_one_between_two_senders_that_do_not_hear_each_other_receives_neither() -> None:
    air = _Air(3, _CHAIN)
    air.send_at(0.0, 0)
    air.send_at(4.0, 2)
    air.scheduler.run()
    assert air.heard == []
    assert (air.radio.counters.on_air, air.radio.counters.collided) == (2, 2)


def test_senders_that_hear_each_other_wait_for_each_other() -> None:
    air = _Air(3, [(0, 1), (1, 2), (0, 2)])
    air.send_at(0.0, 0)
    air.send_at(4.0, 2)
    air.scheduler.run()
    assert [ears for *_, ears in air.heard] == [(1, 2), (0, 1)]
    assert air.heard[1][0] - air.heard[0][0] >= _AIR_MS
    assert air.radio.counters.back_offs >= 1


def test_two_that_listen_within_the_turnaround_collide_though_they_are_in_range() -> None:
    still = RadioSettings(least_exponent=0, greatest_exponent=0)
    for apart_ms, arrived in [(0.1, 0), (0.3, 1)]:
        air = _Air(3, [(0, 1), (1, 2), (0, 2)], still)
        air.send_at(0.0, 0)
        air.send_at(apart_ms, 2)
        air.scheduler.run(130.0)
        assert len(air.heard) == arrived


def test_who_sends_receives_nothing_meanwhile() -> None:
    air = _Air(2, [(0, 1)], _DEAF)
    air.send_at(0.0, 0)
    air.send_at(3.0, 1)
    air.scheduler.run()
    assert air.heard == []
    assert air.radio.counters.collided == 2


def test_messages_that_only_touch_do_not_collide() -> None:
    air = _Air(3, _CHAIN, _DEAF)
    air.send_at(0.0, 0)
    air.send_at(_AIR_MS, 2)
    air.scheduler.run()
    assert len(air.heard) == 2


def test_a_long_message_is_spoiled_by_each_of_two_short_ones() -> None:
    """The second short one begins when the first has ended: all three are spoiled."""
    air = _Air(4, [(0, 1), (1, 2), (1, 3)], _DEAF)
    air.send_at(0.0, 0, "long", 1_000)
    air.send_at(4.0, 2, "short", 125)
    air.send_at(20.0, 3, "short too", 125)
    air.scheduler.run()
    assert air.heard == []


def test_a_collision_harms_only_those_who_hear_both() -> None:
    air = _Air(4, [(0, 1), (1, 2), (2, 3)], _DEAF)
    air.send_at(0.0, 0)
    air.send_at(4.0, 2)
    air.scheduler.run()
    assert [(number, ears) for _, number, _, ears in air.heard] == [(2, (3,))]


def test_without_collisions_two_at_once_are_both_received() -> None:
    air = _Air(3, _CHAIN, RadioSettings(carrier_sense=False, collisions=False))
    air.send_at(0.0, 0)
    air.send_at(4.0, 2)
    air.scheduler.run()
    assert len(air.heard) == 2


def test_a_node_sends_one_message_after_another() -> None:
    air = _Air(2, [(0, 1)], _DEAF)
    for message in ("a", "b", "c"):
        air.send_at(0.0, 0, message)
    air.scheduler.run()
    ends = [100 + _AIR_MS * turn for turn in (1, 2, 3)]
    assert [(time_ms, message) for time_ms, _, message, _ in air.heard] == list(
        zip(ends, "abc", strict=True)
    )


def test_who_never_finds_silence_gives_up_after_the_last_back_off() -> None:
    """The other one talks without a pause: five times listened, never silent."""
    air = _Air(2, [(0, 1)], RadioSettings(bit_rate=1_000))
    air.send_at(0.0, 0, "endless", 1_000)
    air.send_at(50.0, 1)
    air.scheduler.run()
    counters = air.radio.counters
    assert (counters.gave_up, counters.back_offs) == (1, 5)
    assert [message for _, _, message, _ in air.heard] == ["endless"]


@given(st.integers(0, 2**32))
def test_back_offs_last_as_long_as_the_standard_allows(seed: int) -> None:
    """Gives up after 5 waits of at most 7, 15, 31, 31 and 31 units of 0.32 ms."""
    air = _Air(2, [(0, 1)], RadioSettings(bit_rate=1_000), seed)
    missed: list[float] = []
    air.radio.on_miss = lambda *_: missed.append(air.scheduler.time_ms)
    air.send_at(0.0, 0, "endless", 1_000)
    air.send_at(50.0, 1)
    air.scheduler.run()
    waited = missed[0] - 150.0
    assert 0 <= waited <= (7 + 15 + 31 + 31 + 31) * 0.32 + 1e-6
    assert waited / 0.32 == pytest.approx(round(waited / 0.32), abs=1e-6)


def test_a_full_queue_drops_and_says_so() -> None:
    air = _Air(2, [(0, 1)], RadioSettings(queue_length=2))
    missed: list[tuple[int, str, str]] = []
    air.radio.on_miss = lambda number, message, _ears, why: missed.append((number, message, why))
    for message in "abc":
        air.send_at(0.0, 0, message)
    air.scheduler.run()
    assert missed == [(0, "c", "overflowed")]
    assert len(air.heard) == 2


def test_what_is_too_large_is_refused() -> None:
    air = _Air(2, [(0, 1)])
    with pytest.raises(TooLarge) as refused:
        air.radio.send(0, "x", 2_000)
    assert refused.value.hint


def test_who_is_switched_off_neither_sends_nor_receives_and_may_come_back() -> None:
    air = _Air(3, _CHAIN, _DEAF)
    air.send_at(0.0, 0, "in the queue")
    air.scheduler.at(50.0, air.radio.switch_off, 0)
    air.send_at(60.0, 1, "to the others")
    air.scheduler.at(300.0, air.radio.switch_on, 0)
    air.send_at(310.0, 1, "to all")
    air.send_at(600.0, 0, "again")
    air.send_at(900.0, 0, "broken off")
    air.scheduler.at(1_004.0, air.radio.switch_off, 0)
    air.scheduler.run()
    assert [(message, ears) for *_, message, ears in air.heard] == [
        ("to the others", (2,)),
        ("to all", (0, 2)),
        ("again", (1,)),
    ]
    assert air.radio.counters.cut == 1


def test_loss_is_drawn_for_each_receiver() -> None:
    air = _Air(5, [(0, other) for other in range(1, 5)], RadioSettings(loss=0.3))
    for turn in range(500):
        air.send_at(turn * 200.0, 0)
    air.scheduler.run()
    counters = air.radio.counters
    assert counters.lost + counters.delivered == 2_000
    assert 500 < counters.lost < 700


def test_neighbours_change_as_actors_move() -> None:
    streets = StreetMap([(0.0, 0.0), (1_000.0, 0.0)], [Street(0, 1, 20.0)])
    moving = Mobility(streets, [[PlanPoint(0, 0)], [PlanPoint(0, 0), PlanPoint(100_000, 1)]])
    scheduler = Scheduler()
    radio = Radio(scheduler, InRange(moving, 250.0), Chance(1))
    renewed: list[float] = []
    radio.on_renew.append(lambda: renewed.append(scheduler.time_ms))
    scheduler.run(25_000.0)
    assert radio.neighbours == [(1,), (0,)]
    scheduler.run(26_000.0)
    assert radio.neighbours == [(), ()]
    assert renewed == [1_000.0 * second for second in range(1, 27)]


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20),
    st.lists(st.tuples(st.floats(0, 400), st.integers(0, 7), st.integers(1, 1_000)), max_size=60),
    st.lists(st.tuples(st.floats(0, 500), st.integers(0, 7), st.booleans()), max_size=6),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.2]),
)
def test_every_message_and_every_reception_is_accounted_for(
    links: list[tuple[int, int]],
    sends: list[tuple[float, int, int]],
    switches: list[tuple[float, int, bool]],
    carrier_sense: bool,
    collisions: bool,
    loss: float,
) -> None:
    drawn = RadioSettings(
        carrier_sense=carrier_sense, collisions=collisions, loss=loss, queue_length=3
    )
    air = _Air(8, [link for link in links if link[0] != link[1]], drawn)
    for time_ms, number, size in sends:
        air.send_at(time_ms, number, "x", size)
    for time_ms, number, on in switches:
        switch = air.radio.switch_on if on else air.radio.switch_off
        air.scheduler.at(time_ms, switch, number)
    air.scheduler.run()
    counters = air.radio.counters
    gone = counters.gave_up + counters.overflowed + counters.cut
    assert counters.sent == len(sends) == counters.on_air + gone
    received = counters.delivered + counters.collided + counters.lost + counters.away
    assert counters.offered == received
    assert counters.delivered == sum(len(ears) for *_, ears in air.heard)


@pytest.mark.parametrize(
    "arguments",
    [{"loss": 1.5}, {"bit_rate": 0}, {"queue_length": 0}, {"least_exponent": 6}, {"air_ms": -1}],
    ids=["loss", "bit rate", "queue", "exponents", "air"],
)
def test_an_impossible_radio_is_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(InvalidInput) as refused:
        RadioSettings(**arguments)  # type: ignore[arg-type]
    assert refused.value.code == "ensemble.bad_radio"
