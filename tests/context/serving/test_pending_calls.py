"""Requests under way. [CX-2]"""

from rapport.context.clients.broker_link import Call, PendingCalls
from rapport.context.protocol import NOT_FOUND, PROCESSED, RECEIVED, Answer, Status

BROKER = ("b", 1)


def call(got: list[Answer | Status | None], **changes: object) -> Call:
    given = {
        "id": 7,
        "finish": got.append,
        "began_ms": 0.0,
        "deadline_ms": 1_000.0,
        "retry_ms": 50.0,
        "due_ms": 50.0,
    }
    return Call(**{**given, **changes})  # type: ignore[arg-type]


def test_a_request_is_repeated_ever_more_slowly_until_its_deadline() -> None:
    calls, got = PendingCalls(400.0), list[Answer | Status | None]()
    calls.begin(call(got, deadline_ms=4_800.0))
    repeated = [now for now in range(0, 5_000) if calls.due(now)]
    assert repeated == [50, 150, 350, *range(750, 4_800, 400)]
    assert got == [None]
    assert len(calls) == 0
    assert calls.next_due_ms() is None


def test_a_short_deadline_sees_a_dozen_tries_and_not_only_a_few() -> None:
    calls, got = PendingCalls(1_000.0), list[Answer | Status | None]()
    calls.begin(call(got, retry_ms=10.0, due_ms=10.0, deadline_ms=2_000.0))
    repeated = [now for now in range(0, 2_000) if calls.due(now)]
    assert repeated[:5] == [10, 30, 70, 150, 310]
    assert 12 <= len(repeated) <= 16
    assert repeated[-1] > 1_800


def test_an_answer_ends_it_and_a_second_one_does_no_harm() -> None:
    calls, got = PendingCalls(400.0), list[Answer | Status | None]()
    calls.begin(call(got))
    for _ in range(2):
        calls.answered(Status(7, PROCESSED), BROKER, 10.0)
    assert got == [Status(7, PROCESSED)]


def test_received_ends_nothing_and_what_comes_after_it_may_be_lost_too() -> None:
    calls, got = PendingCalls(400.0), list[Answer | Status | None]()
    calls.begin(call(got))
    calls.answered(Status(7, RECEIVED), BROKER, 10.0)
    assert got == []
    assert [now for now in range(0, 900) if calls.due(now)] == [210, 410, 610, 810]


def test_who_asks_one_broker_hears_no_other() -> None:
    calls, got = PendingCalls(400.0), list[Answer | Status | None]()
    calls.begin(call(got, to=BROKER))
    calls.answered(Status(7, NOT_FOUND), ("another", 1), 10.0)
    assert got == []
    calls.answered(Status(7, NOT_FOUND), BROKER, 10.0)
    assert got == [Status(7, NOT_FOUND)]
