"""Choosing neighbours: the nearest and one by chance, never too many, never too few. [CX-4]"""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rapport.kernel.clock import Chance
from rapport.overlay.membership_steps import MembershipSettings, SendPing
from rapport.overlay.neighbour_search import JoinFailure, JoinProcess, JoinResult
from rapport.transport.base import Address, Now

SETTINGS = MembershipSettings(between_ms=20, wait_ms=500)


def tried(
    latencies: dict[Address, list[float | None]], seed: int = 1, *, at_least: int = 2, at_most: int
) -> tuple[JoinResult | JoinFailure, int, float]:
    """The result of a try in which the pings to each candidate take so long (None: lost), the
    number of pings sent, and when it ended.
    """
    joining = JoinProcess(
        tuple(latencies), Chance(seed), at_least=at_least, at_most=at_most, settings=SETTINGS
    )
    left = {address: list(times) for address, times in latencies.items()}
    answers: list[tuple[float, SendPing]] = []
    sent, time = 0, 0.0

    def send(pings: list[SendPing]) -> None:
        nonlocal sent
        for ping in pings:
            sent += 1
            took_ms = left[ping.to].pop(0)
            if took_ms is not None:
                answers.append((time + took_ms, ping))

    send(joining.start(Now(0, time)))
    while joining.result is None:
        due_ms = joining.next_due_ms()
        assert due_ms is not None
        answers.sort(key=lambda answer: answer[0])
        if answers and answers[0][0] <= due_ms:
            time, ping = answers.pop(0)
            assert joining.answered(ping.to, ping.number, Now(0, time))
            assert not joining.answered(ping.to, ping.number, Now(0, time))
        else:
            time = due_ms
            send(joining.tick(Now(0, time)))
    assert joining.next_due_ms() is None
    return joining.result, sent, time


latency = st.one_of(st.none(), st.floats(0.1, 100))
candidates = st.dictionaries(
    st.tuples(st.just("b"), st.integers(0, 99)),
    st.lists(latency, min_size=3, max_size=3),
    max_size=40,
)


@given(candidates, st.integers(1, 4), st.integers(4, 20), st.integers(0, 2**32))
def test_the_nearest_and_one_other_never_more_than_at_most_never_fewer_than_at_least(
    latencies: dict[Address, list[float | None]], at_least: int, at_most: int, seed: int
) -> None:
    result, sent, _ = tried(latencies, seed, at_least=at_least, at_most=at_most)
    heard = {
        address: [took_ms for took_ms in times if took_ms is not None]
        for address, times in latencies.items()
    }
    means = {address: sum(took) / len(took) for address, took in heard.items() if took}
    assert sent == 3 * len(latencies)
    if len(means) < at_least:
        assert result == JoinFailure(len(means))
        return
    assert isinstance(result, JoinResult)
    assert len(result.neighbours) == min(at_most, len(means))
    assert result.random == result.neighbours[-1]
    near = result.neighbours[:-1]
    others = (set(means) - set(near)) | ({result.random} - set(near))
    assert set(result.neighbours) | set(result.reserve) == set(means)
    if len(means) > at_most:
        worst = max(means[address] for address in near)
        assert worst <= min(means[address] for address in others)


def test_all_answers_end_it_at_once_and_a_silent_one_after_the_wait() -> None:
    quick: dict[Address, list[float | None]] = {("b", n): [5.0, 5.0, 5.0] for n in range(3)}
    _, _, ended = tried(quick, at_most=20)
    assert ended == 45.0
    _, _, ended = tried({**quick, ("dead", 1): [None] * 3}, at_most=20)
    assert ended == 540.0


def test_the_random_one_is_drawn_uniformly_from_those_that_are_not_near() -> None:
    latencies: dict[Address, list[float | None]] = {
        ("b", number): [float(number + 1)] * 3 for number in range(10)
    }
    drawn: Counter[Address] = Counter()
    for seed in range(1_200):
        result, _, _ = tried(latencies, seed, at_most=5)
        assert isinstance(result, JoinResult)
        assert result.neighbours[:-1] == (("b", 0), ("b", 1), ("b", 2), ("b", 3))
        drawn[result.random] += 1
    assert set(drawn) == {("b", number) for number in range(4, 10)}
    assert all(140 < times < 260 for times in drawn.values())


def test_an_empty_list_ends_before_it_began() -> None:
    joining = JoinProcess((), Chance(1))
    assert joining.start(Now(0, 0.0)) == []
    assert joining.result == JoinFailure(0)


def test_of_a_very_long_list_a_part_is_asked() -> None:
    nodes = [("b", number) for number in range(5_000)]
    assert len(JoinProcess(nodes, Chance(1)).start(Now(0, 0.0))) == 100
