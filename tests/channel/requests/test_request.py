"""What may be asked."""

from __future__ import annotations

import pytest

from rapport.channel.requests.request import (
    DEFAULT_MESSAGES,
    MOST_MESSAGES,
    BatchLimits,
    Request,
    check_request,
    request_limits,
)
from rapport.core.errors import InvalidInput


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (Request(), "request.no_query"),
        (Request(query="", token="t"), "request.no_query"),
        (Request(token="t", kind="sql"), "request.bad_field"),
        (Request(query="", seen=True), "request.bad_field"),
        (Request(query="", wait_ms=-1), "request.bad_field"),
        (Request(query="", max_messages=-1), "request.bad_field"),
        (Request(query="", max_time_range_ms=2**60), "request.bad_field"),
        (Request(query="", lease_minutes=-5), "request.bad_field"),
    ],
)
def test_a_request_that_contradicts_itself_is_refused(request_: Request, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_request(request_)
    assert caught.value.code == code


def test_an_empty_query_is_a_query() -> None:
    check_request(Request(query=""))
    check_request(Request(query={}))


def test_limits_come_from_the_request_or_from_before_or_by_default() -> None:
    before = BatchLimits(7, 500)
    assert request_limits(Request(query="")) == BatchLimits(DEFAULT_MESSAGES, 0)
    assert request_limits(Request(token="t"), before) == before
    assert request_limits(Request(token="t", max_messages=3), before) == BatchLimits(3, 500)
    assert request_limits(Request(query="", max_messages=10**9)).messages == MOST_MESSAGES
