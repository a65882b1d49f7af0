"""Requests under way. [CX-2]"""

from rapport.context.clients.calls import Call, Calls
from rapport.context.messages import NOT_FOUND, PROCESSED, RECEIVED, Answer, Status

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
    calls, got = Calls(400.0), list[Answer | Status | None]()
    calls.begin(call(got))
    repeated = [now for now in range(0, 1_100) if calls.due(now)]
    assert repeated == [50, 150, 350, 750]
    assert got == [None]
    assert len(calls) == 0
    assert calls.next_due_ms() is None


def test_an_answer_ends_it_and_a_second_one_does_no_harm() -> None:
    calls, got = Calls(400.0), list[Answer | Status | None]()
    calls.begin(call(got))
    for _ in range(2):
        calls.answered(Status(7, PROCESSED), BROKER, 10.0)
    assert got == [Status(7, PROCESSED)]


def test_received_ends_nothing_and_what_comes_after_it_may_be_lost_too() -> None:
    calls, got = Calls(400.0), list[Answer | Status | None]()
    calls.begin(call(got))
    calls.answered(Status(7, RECEIVED), BROKER, 10.0)
    assert got == []
    assert [now for now in range(0, 900) if calls.due(now)] == [210, 610]


def test_who_asks_one_broker_hears_no_other() -> None:
    calls, got = Calls(400.0), list[Answer | Status | None]()
    calls.begin(call(got, to=BROKER))
    calls.answered(Status(7, NOT_FOUND), ("another", 1), 10.0)
    assert got == []
    calls.answered(Status(7, NOT_FOUND), BROKER, 10.0)
    assert got == [Status(7, NOT_FOUND)]
