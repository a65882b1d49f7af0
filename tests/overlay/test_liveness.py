"""Liveness: the dead are found in time, the living never lost without loss. [CX-4, EN-10]"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from rapport.kernel.clock import Chance
from rapport.overlay.liveness import Liveness, LostNeighbour, RoundTrip
from rapport.overlay.membership_steps import MembershipSettings, SendPing
from rapport.transport.base import Address, Now

At = Callable[[float], Now]
B = ("b", 1)


def watched(
    settings: MembershipSettings,
    count: int,
    duration_ms: float,
    answers: Callable[[Address, float], float | None],
    seed: int,
) -> tuple[dict[Address, float], int]:
    """Who was found gone and when, and the pings sent; `answers(address, time)` is how long the
    answer to a ping sent then takes, None: there is none.
    """
    liveness = Liveness(settings, Chance(seed))
    for number in range(count):
        liveness.watch(("b", number), Now(0, 0.0))
    gone: dict[Address, float] = {}
    pongs: list[tuple[float, Address, int]] = []
    sent, time = 0, 0.0
    while time < duration_ms:
        due_ms = liveness.next_due_ms()
        if pongs and (due_ms is None or pongs[0][0] <= due_ms):
            time, address, number = heapq.heappop(pongs)
            liveness.answered(address, number, Now(0, time))
            continue
        if due_ms is None:
            break
        time = due_ms
        for step in liveness.tick(Now(0, time)):
            if isinstance(step, LostNeighbour):
                gone[step.address] = time
            else:
                sent += 1
                took_ms = answers(step.to, time)
                if took_ms is not None:
                    heapq.heappush(pongs, (time + took_ms, step.to, step.number))
    return gone, sent


@given(st.floats(0, 999), st.integers(1, 4), st.integers(0, 3), st.integers(0, 2**32))
def test_nobody_is_lost_without_loss(
    round_trip_ms: float, misses: int, repeats: int, seed: int
) -> None:
    settings = MembershipSettings(misses=misses, repeats=repeats, jitter=0)
    gone, _ = watched(settings, 5, 60_000, lambda address, time: round_trip_ms, seed)
    assert gone == {}


@given(
    st.floats(0, 20_000), st.integers(1, 5), st.integers(0, 3), st.floats(0, 0.5), st.integers(0)
)
def test_a_dead_one_is_found_within_misses_plus_one_periods(
    dies_ms: float, misses: int, repeats: int, jitter: float, seed: int
) -> None:
    settings = MembershipSettings(misses=misses, repeats=repeats, jitter=jitter, period_ms=1_000)

    def answers(address: Address, time: float) -> float | None:
        return None if address == B and time >= dies_ms else 3.0

    gone, _ = watched(settings, 4, dies_ms + 20_000, answers, seed)
    assert set(gone) == {B}
    assert dies_ms < gone[B] <= dies_ms + (misses + 1) * 1_000 + 3


def test_a_ping_per_period_is_enough_when_all_answer() -> None:
    settings = MembershipSettings(jitter=0)
    _, sent = watched(settings, 20, 60_000, lambda address, time: 2.0, 1)
    assert 20 * 59 <= sent <= 20 * 61


def test_repeated_pings_keep_the_living_under_heavy_loss() -> None:
    """Half of all round trips lost: without repetitions nearly all are taken for dead."""
    chance = Chance(3)

    def lossy(address: Address, time: float) -> float | None:
        return 2.0 if chance.random() < 0.5 else None

    lost = {
        repeats: len(watched(MembershipSettings(repeats=repeats), 40, 60_000, lossy, 1)[0])
        for repeats in (0, 2)
    }
    assert lost[0] > 35
    assert lost[2] <= 8


def test_anything_heard_is_a_sign_of_life(at: At) -> None:
    liveness = Liveness(MembershipSettings(), Chance(1))
    liveness.watch(B, at(0))
    for time in range(0, 30_000, 250):
        liveness.mark_alive(B, at(time))
        assert not any(isinstance(step, LostNeighbour) for step in liveness.tick(at(time)))


def test_a_suspicion_is_decided_soon(at: At) -> None:
    liveness = Liveness(MembershipSettings(), Chance(1))
    trip = RoundTrip()
    for _ in range(20):
        trip.measured(4.0)
    liveness.watch(B, at(0), trip)
    first = liveness.suspect(B, at(10))
    assert [ping.to for ping in first] == [B]
    assert liveness.suspect(B, at(11)) == [], "one round decides, however many say it"
    found, time = list[object](), 10.0
    while not any(isinstance(step, LostNeighbour) for step in found):
        due_ms = liveness.next_due_ms()
        assert due_ms is not None
        time = due_ms
        found += liveness.tick(at(time))
    assert time < 100
    assert sum(isinstance(step, SendPing) for step in found) == 5


def test_a_suspicion_of_a_living_one_comes_to_nothing(at: At) -> None:
    liveness = Liveness(MembershipSettings(), Chance(1))
    liveness.watch(B, at(0))
    ping = liveness.suspect(B, at(10))[0]
    assert liveness.answered(B, ping.number, at(12))
    for time in range(13, 900):
        assert not any(isinstance(step, LostNeighbour) for step in liveness.tick(at(time)))
    trip = liveness.round_trip(B)
    assert trip is not None
    assert trip.mean_ms == 2.0
    assert liveness.suspect(("stranger", 1), at(900)) == []


def test_who_is_forgotten_is_pinged_no_more(at: At) -> None:
    liveness = Liveness(MembershipSettings(), Chance(1))
    liveness.watch(B, at(0))
    liveness.watch(B, at(1))
    liveness.forget(B)
    assert liveness.next_due_ms() is None
    assert liveness.tick(at(1e6)) == []
    assert not liveness.answered(B, 1, at(1e6))
    assert liveness.timeout_ms(B) == 200


def test_an_answer_to_a_ping_that_was_never_sent_measures_nothing(at: At) -> None:
    """A time without end, and everything that waits for this neighbour would wait for ever."""
    liveness = Liveness(MembershipSettings(), Chance(1))
    liveness.watch(B, at(0))
    liveness.answered(B, 0, at(5))
    assert liveness.mean_ms(B) is None
    (ping,) = [step for step in liveness.tick(at(1_000)) if isinstance(step, SendPing)]
    liveness.answered(B, ping.number, at(1_007))
    liveness.answered(B, 0, at(1_900))
    assert liveness.mean_ms(B) == 7
    assert liveness.timeout_ms(B) == 21
