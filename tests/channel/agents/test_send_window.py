"""The sliding window against a model: loss, doubling, late answers, crashes, bad events. [CH-5]"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.agents.connection import CallBarred, CallFailed, Reason
from rapport.channel.agents.courier import (
    EventsAccepted,
    EventsRefused,
    NothingToSend,
    PauseSending,
    RequestTooLarge,
    SendRange,
    SendWindow,
    SinkAnswer,
    WindowProgress,
)

WHY = Reason("test.why", "because")


def send(
    window: SendWindow, newest: int, answer: SinkAnswer, now_ms: int = 0
) -> WindowProgress | None:
    step = window.next_step(newest, now_ms)
    assert isinstance(step, SendRange), step
    return window.answered(window.begin(step.last), answer, now_ms, 1.0)


def test_nothing_is_sent_while_a_request_is_pending():
    window = SendWindow(4, most_events=10)
    assert window.next_step(9, 0) == SendRange(5, 9)
    number = window.begin(9)
    assert window.next_step(20, 0) == NothingToSend()
    assert (window.sent, window.acknowledged) == (9, 4)
    assert window.answered(number, EventsAccepted(), 0, 0.5) == WindowProgress(9)
    assert window.next_step(40, 0) == SendRange(10, 19)
    assert window.next_step(9, 0) == NothingToSend()


def test_a_failure_goes_back_to_the_last_acknowledged_and_pauses_longer_each_time():
    window, now_ms, pauses = SendWindow(0), 0, []
    for _round in range(12):
        assert send(window, 5, CallFailed(WHY), now_ms) is None
        assert (window.sent, window.acknowledged, window.trouble) == (0, 0, WHY)
        step = window.next_step(5, now_ms)
        assert isinstance(step, PauseSending)
        pauses.append(step.until_ms - now_ms)
        now_ms = step.until_ms
    assert pauses == [200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000, 30000, 30000]
    assert send(window, 5, EventsAccepted(), now_ms) == WindowProgress(5)
    assert window.trouble is None
    send(window, 6, CallFailed(WHY), now_ms)
    assert window.next_step(6, now_ms) == PauseSending(now_ms + 200)


def test_the_pause_that_the_sink_asks_for_is_kept():
    window = SendWindow(0)
    send(window, 5, CallFailed(WHY, retry_after_ms=7_000), 100)
    assert window.next_step(5, 7_099) == PauseSending(7_100)
    assert window.next_step(5, 7_100) == SendRange(1, 5)


def test_a_stop_lasts_until_somebody_resumes():
    window = SendWindow(0)
    send(window, 5, CallBarred(WHY))
    assert window.stopped
    assert window.next_step(50, 10**9) == NothingToSend()
    window.resume()
    assert window.next_step(5, 0) == SendRange(1, 5)


def test_late_and_second_answers_change_nothing():
    window = SendWindow(0, most_events=3)
    window.next_step(9, 0)
    first = window.begin(3)
    window.answered(first, CallFailed(WHY), 0, 0.0)
    window.next_step(9, 10**6)
    second = window.begin(3)
    assert window.answered(first, EventsAccepted(), 0, 0.0) is None
    assert window.answered(first, CallBarred(WHY), 0, 0.0) is None
    assert window.answered(second, EventsAccepted(), 0, 0.0) == WindowProgress(3)
    assert window.answered(second, EventsAccepted(), 0, 0.0) is None
    assert (window.acknowledged, window.stopped) == (3, False)


def test_one_bad_event_among_a_thousand_is_found_by_halving():
    window, requests = SendWindow(0), 0
    rejected = []
    while window.acknowledged < 1000:
        step = window.next_step(1000, 0)
        assert isinstance(step, SendRange)
        requests += 1
        bad = step.first <= 700 <= step.last
        moved = window.answered(
            window.begin(step.last), EventsRefused(WHY) if bad else EventsAccepted(), 0, 0.0
        )
        if moved is not None and moved.rejected:
            rejected.append(moved.acknowledged)
    assert rejected == [700]
    assert requests <= 11 + 10


def test_where_every_event_is_bad_each_costs_one_request():
    window, requests = SendWindow(0), 0
    while window.acknowledged < 1000:
        send(window, 1000, EventsRefused(WHY))
        requests += 1
    assert requests <= 1000 + 11


def test_requests_shrink_to_what_the_sink_takes_and_grow_again():
    window, sizes = SendWindow(0), []
    for _round in range(60):
        step = window.next_step(10**6, 0)
        assert isinstance(step, SendRange)
        sizes.append(step.last - step.first + 1)
        answer = RequestTooLarge(WHY) if sizes[-1] > 130 else EventsAccepted()
        assert not (moved := window.answered(window.begin(step.last), answer, 0, 0)) or (
            moved.rejected is None
        )
    assert sizes[:5] == [1000, 500, 250, 125, 125]
    assert sizes.count(250) <= 4


def test_an_event_too_big_by_itself_is_rejected_and_the_next_one_goes_on():
    window = SendWindow(0, most_events=1)
    assert send(window, 2, RequestTooLarge(WHY)) == WindowProgress(1, WHY)
    assert send(window, 2, EventsAccepted()) == WindowProgress(2)


@pytest.mark.parametrize(
    "answer",
    [EventsRefused(WHY), RequestTooLarge(WHY), CallFailed(WHY), CallBarred(WHY), EventsAccepted()],
)
def test_the_marks_never_part_by_more_than_a_request(answer):
    window = SendWindow(10, most_events=4)
    send(window, 30, answer)
    assert window.acknowledged <= window.sent <= window.acknowledged + 4


class Sink:
    """Stores in order, drops what its mark has passed, refuses a request with a bad event whole."""

    def __init__(self, bad: set[int], most: int) -> None:
        self.bad, self.most, self.mark = bad, most, 0
        self.stored: list[int] = []

    def handle(self, first: int, last: int) -> SinkAnswer:
        if last - first + 1 > self.most:
            return RequestTooLarge(WHY)
        if self.bad & set(range(first, last + 1)):
            return EventsRefused(WHY)
        fresh = [one for one in range(first, last + 1) if one > self.mark]
        self.stored += fresh
        self.mark = max(self.mark, last)
        return EventsAccepted()


FATES = ("ok", "ok", "lost", "answer lost", "late", "ghost", "crash before", "crash after", "busy")


@given(
    count=st.integers(1, 60),
    bad=st.sets(st.integers(1, 60), max_size=8),
    most=st.integers(1, 40),
    size=st.integers(1, 20),
    fates=st.lists(st.sampled_from(FATES), max_size=60),
    cuts=st.lists(st.integers(0, 5), max_size=60),
)
def test_every_good_event_is_stored_once_in_order_and_every_bad_one_is_kept(
    count, bad, most, size, fates, cuts
):
    sink, rejected, ghosts = Sink(bad, most), [], []
    window, durable, now_ms = SendWindow(0, most_events=size), 0, 0
    late: list[tuple[int, SinkAnswer]] = []
    for turn in range(3_000):
        fate = fates[turn] if turn < len(fates) else "ok"
        step = window.next_step(count, now_ms)
        if isinstance(step, PauseSending):
            now_ms = step.until_ms
            continue
        if isinstance(step, NothingToSend):
            break
        last = max(step.last - (cuts[turn] if turn < len(cuts) else 0), step.first)
        number = window.begin(last)
        answer: SinkAnswer = CallFailed(WHY)
        if fate == "ghost":  # given up as lost, and arrives with a later request
            ghosts.append((step.first, last))
        elif fate == "busy":
            answer = CallFailed(WHY, retry_after_ms=5)
        elif fate != "lost":
            answer = sink.handle(step.first, last)
        if fate == "late":
            late.append((number, answer))
        if fate in ("late", "answer lost"):
            answer = CallFailed(WHY)
        if fate == "crash before":
            window = SendWindow(durable, most_events=size)
            continue
        moved = window.answered(number, answer, now_ms, 0.3)
        if moved is not None:
            if moved.rejected is not None:
                rejected.append(moved.acknowledged)
            if fate == "crash after":  # the rejection was written, the mark was not
                window = SendWindow(durable, most_events=size)
                continue
            durable = moved.acknowledged
        if fate == "ok":
            for ghost in ghosts:
                sink.handle(*ghost)
            for old in reversed(late):
                assert window.answered(*old, now_ms, 0.3) is None
            ghosts, late = [], []
    wanted = [one for one in range(1, count + 1) if one not in bad]
    assert sink.stored == wanted
    assert set(rejected) == bad & set(range(1, count + 1))
    assert window.acknowledged == count
