"""The pure state of a listener: tokens, leases, pauses; and under any interleaving each event once.
[CH-7]
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rapport.channel.agents.connection import CallBarred, CallFailed, Reason
from rapport.channel.agents.courier import NothingToSend, PauseSending
from rapport.channel.agents.listener_state import (
    BatchReceived,
    CacheFull,
    LeaseEnded,
    ListenerCache,
    ListenerMachine,
    RequestNow,
    ResumePoint,
)
from rapport.channel.requests.request import Batch, Request
from support.examples import examples
from support.judge.model_source import ModelSource, make_stored

WHY = Reason("a.code", "why")
NOW = 1_000_000
NOWHERE = ResumePoint()


def make(resume_point: ResumePoint = NOWHERE, **more: Any) -> ListenerMachine:
    options = {"batch_events": 3, "wait_ms": 30_000, "first_pause_ms": 100} | more
    events = options.pop("most_events", 6)
    cache = ListenerCache(resume_point.position, most_events=events, most_bytes=10**6)
    return ListenerMachine(cache, resume_point, **options)


def batch(token: str, *positions: int, follows: str | None = None, **more: Any) -> BatchReceived:
    events = tuple(make_stored(one) for one in positions)
    given = {"lease_minutes": 10} | more
    return BatchReceived(Batch(events=events, current_token=token, next_token=follows, **given))


def ask(state: ListenerMachine, now_ms: int = NOW) -> int:
    step = state.next_step(now_ms)
    assert isinstance(step, RequestNow), step
    return state.begin(step, now_ms)


def answer(state: ListenerMachine, what: Any, now_ms: int = NOW, chance: float = 1.0) -> None:
    state.answered(ask(state, now_ms), what, now_ms, chance)


def test_goes_on_with_the_next_token_and_asks_the_same_again_when_there_is_none():
    state = make()
    assert state.next_step(NOW) == RequestNow("", False, 0)
    answer(state, batch("a", 1, 2, follows="b"))
    assert state.next_step(NOW) == RequestNow("b", False, 30_000)
    answer(state, batch("b", 3))
    assert state.next_step(NOW) == RequestNow("b", True, 30_000)
    answer(state, batch("b", follows="c"))
    assert state.next_step(NOW) == RequestNow("c", False, 30_000)
    assert [one.position for one in state.cache.take(9)] == [1, 2, 3]


def test_one_request_at_a_time_and_late_or_second_answers_change_nothing():
    state = make()
    first = ask(state)
    assert state.next_step(NOW) == NothingToSend()
    state.answered(first, CallFailed(WHY), NOW, 0)
    state.resume()
    second = ask(state)
    state.answered(first, batch("x", 9), NOW, 0)
    assert state.is_pending
    state.answered(second, batch("a", 1, follows="b"), NOW, 0)
    state.answered(second, batch("a", 1, 2, follows="z"), NOW, 0)
    assert (state.token, len(state.cache)) == ("b", 1)


def test_a_set_that_is_gone_is_reported_and_passed():
    state = make(ResumePoint("a", False, 2))
    answer(state, batch("a", gone=True, follows="b"))
    assert (state.gone, state.token, state.seen) == (1, "b", False)
    answer(state, batch("b", gone=True))
    assert (state.gone, state.token, state.seen) == (2, "b", True)


def test_an_answer_with_another_set_is_a_failure():
    state = make(ResumePoint("a", False, 0))
    answer(state, batch("other", 1, follows="b"))
    assert (len(state.cache), state.token) == (0, "a")
    assert state.trouble.code == "http.strange_answer"


def test_nothing_is_asked_without_room_but_the_lease_is_kept_alive():
    state = make(most_events=5)
    answer(state, batch("a", 1, 2, 3, follows="b"))
    half = NOW + 5 * 60_000
    assert state.next_step(NOW) == CacheFull(half)
    renewal = RequestNow("b", seen=True, keeps_alive=True)
    assert state.next_step(half) == renewal
    state.answered(state.begin(renewal, half), batch("b", follows="c"), half, 0)
    assert state.token == "b", "what follows a set that is not here is nothing to go on with"
    assert state.next_step(half) == CacheFull(half + 5 * 60_000)
    state.cache.take(1)
    assert state.next_step(half) == RequestNow("b", False, 30_000)


def test_the_local_lease_bounds_waiting_ends_once_and_is_renewed_where_it_stood():
    state = make()
    state.renew(NOW + 1_000)
    answer(state, batch("a", 1, follows="b"))
    assert state.next_step(NOW) == RequestNow("b", False, 1_000)
    over = NOW + 1_000
    goodbye = state.next_step(over)
    assert goodbye == RequestNow("b", ends=True)
    state.answered(state.begin(goodbye, over), CallFailed(WHY), over, 0)
    assert state.next_step(over + 1) == NothingToSend()
    assert not state.is_leased(over)
    state.renew(None)
    assert state.next_step(over + 2) == RequestNow("b", False, 30_000)


def test_failures_pause_longer_each_time_and_a_stop_lasts_until_somebody_resumes():
    state = make(longest_pause_ms=250)
    for expected in (100, 200, 250, 250):
        answer(state, CallFailed(WHY))
        assert state.next_step(NOW) == PauseSending(NOW + expected)
        state.resume_at_ms = None
    answer(state, CallFailed(WHY, retry_after_ms=7_000))
    assert state.next_step(NOW) == PauseSending(NOW + 7_000)
    assert state.trouble == WHY
    state.resume()
    answer(state, CallBarred(WHY))
    assert state.next_step(NOW + 10**9) == NothingToSend()
    state.resume()
    answer(state, batch("a", follows="b"))
    assert state.trouble is None


def test_a_source_that_never_waits_is_not_asked_in_a_circle():
    state = make()
    answer(state, batch("a"))
    answer(state, batch("a"))
    assert state.next_step(NOW) == PauseSending(NOW + 100)
    answer(state, batch("a"), NOW + 100)
    assert state.next_step(NOW + 100) == PauseSending(NOW + 300)
    later = NOW + 300
    number = ask(state, later)
    state.answered(number, batch("a"), later + 30_000, 1.0)
    assert isinstance(state.next_step(later + 30_000), RequestNow)


def test_a_session_that_ran_out_is_begun_again_behind_what_was_received():
    state = make(ResumePoint("a", True, 4))
    answer(state, LeaseEnded(WHY))
    assert state.next_step(NOW) == RequestNow("", False, 0)
    answer(state, batch("n", 1, 2, 3, 4, 5, follows="m"))
    assert [one.position for one in state.cache.take(9)] == [5]
    assert state.begun_again == 1


def test_what_was_handed_over_and_not_acknowledged_does_not_come_again_with_a_new_session():
    state = make()
    answer(state, batch("a", 1, 2, follows="b"))
    assert len(state.cache.take(1)) == 1
    answer(state, LeaseEnded(WHY))
    answer(state, batch("n", 1, 2, 3, follows="m"))
    assert [one.position for one in state.cache.take(9)] == [2, 3]


def test_the_place_names_everything_that_is_not_acknowledged():
    state = make()
    assert state.resume_point() == ResumePoint()
    answer(state, batch("a", 1, 2, follows="b"))
    answer(state, batch("b", 3, follows="c"))
    state.cache.take(3)
    assert state.resume_point() == ResumePoint("a", False, 0)
    state.cache.acknowledge(2)
    assert state.resume_point() == ResumePoint("b", False, 2)
    state.cache.acknowledge(3)
    assert state.resume_point() == ResumePoint("c", False, 3)


class Interleavings(RuleBasedStateMachine):
    """A source, a listener and an application, with everything that can happen in between.

    `effect` is what an application has that keeps positions with its own result; `handled` is what
    one has that relies on the listener's place only.
    """

    @initialize(keeps_positions=st.booleans())
    def start(self, keeps_positions: bool) -> None:
        self.keeps_positions = keeps_positions
        self.source = ModelSource()
        self.saved = ResumePoint()
        self.effect: list[int] = []
        self.in_process: list[int] = []
        self.now = NOW
        self.old_answers: list[tuple[int, Any]] = []
        self.under_way: tuple[int, RequestNow] | None = None
        self.open_listener()

    def open_listener(self) -> None:
        self.state = make(self.saved, batch_events=2, most_events=5)
        self.in_process, self.handed = [], []
        self.under_way = None
        if self.keeps_positions and self.effect:
            self.state.cache.acknowledge(self.effect[-1])

    def request_of(self, step: RequestNow) -> Request:
        if not step.token:
            return Request(query={}, max_messages=2)
        return Request(
            token=step.token,
            seen=step.seen,
            max_messages=2,
            lease_minutes=0 if step.ends else 10,
        )

    @rule(count=st.integers(1, 4))
    def append(self, count: int) -> None:
        self.source.append(count)

    @rule(ms=st.integers(1, 400_000))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @precondition(lambda self: self.under_way is None)
    @rule()
    def send(self) -> None:
        step = self.state.next_step(self.now)
        if isinstance(step, RequestNow):
            self.under_way = (self.state.begin(step, self.now), step)

    @precondition(lambda self: self.under_way is not None)
    @rule(how=st.sampled_from(("arrives", "lost", "lost on the way back", "twice", "much later")))
    def answer(self, how: str) -> None:
        number, step = self.under_way
        self.under_way = None
        truth = CallFailed(WHY) if how == "lost" else self.source.answer(self.request_of(step))
        self.old_answers.append((number, truth))
        told = CallFailed(WHY) if how in ("lost on the way back", "much later") else truth
        for _ in range(2 if how == "twice" else 1):
            self.state.answered(number, told, self.now, 0.5)

    @rule(times=st.integers(1, 3))
    def exchange(self, times: int) -> None:
        """Requests and answers as they should be."""
        for _ in range(times):
            if self.under_way is None:
                self.send()
            if self.under_way is not None:
                self.answer("arrives")

    @precondition(lambda self: self.old_answers)
    @rule(data=st.data())
    def an_old_answer_turns_up(self, data: st.DataObject) -> None:
        number, truth = data.draw(st.sampled_from(self.old_answers))
        if self.under_way is None or self.under_way[0] != number:
            self.state.answered(number, truth, self.now, 0.5)

    @rule(count=st.integers(1, 3), push=st.booleans(), reached=st.booleans())
    def hand_over(self, count: int, push: bool, reached: bool) -> None:
        """By pull or, one by one, by callback; a switch may come before the callback is done."""
        for _ in range(count if push else 1):
            taken = self.state.cache.take(1 if push else count)
            if not reached:
                self.state.cache.give_back(taken)
                return
            self.in_process += [one.position for one in taken]
            self.handed += [one.position for one in taken]

    @rule(count=st.integers(1, 3), acknowledged=st.booleans(), saved=st.booleans())
    def handle(self, count: int, acknowledged: bool, saved: bool) -> None:
        """The application writes its result, acknowledges, and the place is kept; or is killed
        before any of it.
        """
        done, self.handed = self.handed[:count], self.handed[count:]
        if not done:
            return
        self.effect += done
        if acknowledged:
            self.state.cache.acknowledge(done[-1])
            if saved:
                self.saved = self.state.resume_point()
                return
        self.open_listener()

    @rule()
    def crash(self) -> None:
        self.open_listener()

    @rule()
    def session_ends(self) -> None:
        if self.state.token:
            self.source.end_session(self.state.token)

    @rule()
    def cancel_and_renew(self) -> None:
        self.state.renew(self.now)
        if self.under_way is None:
            self.send()
            if self.under_way is not None:
                self.answer("arrives")
        self.state.renew(None)

    @invariant()
    def within_a_process_each_event_once_in_order(self) -> None:
        assert self.in_process == sorted(set(self.in_process))
        if self.in_process:
            first = self.in_process[0]
            assert self.in_process == list(range(first, first + len(self.in_process)))

    @invariant()
    def nothing_handled_is_skipped_and_who_keeps_positions_has_each_once(self) -> None:
        if self.keeps_positions:
            assert self.effect == list(range(1, len(self.effect) + 1))
        assert set(self.effect) == set(range(1, len(set(self.effect)) + 1))

    @invariant()
    def memory_is_bounded(self) -> None:
        assert len(self.state.cache) <= 5 + 3, "the cache, and what was given back"

    def teardown(self) -> None:
        """When everything works again, everything arrives."""
        if not hasattr(self, "source"):
            return
        self.under_way = None
        self.open_listener()
        for _ in range(20 * (self.source.last + 10)):
            self.now += 60_000
            self.send()
            if self.under_way is not None:
                self.answer("arrives")
            for one in self.state.cache.take(9):
                self.effect.append(one.position)
                self.state.cache.acknowledge(one.position)
        assert set(self.effect) == set(range(1, self.source.last + 1))
        if self.keeps_positions:
            assert self.effect == list(range(1, self.source.last + 1))


TestInterleavings = pytest.mark.slow(Interleavings.TestCase)
TestInterleavings.settings = settings(max_examples=examples(120), stateful_step_count=40)
