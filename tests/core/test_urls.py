"""Addresses of servers, also what is none. [CH-1]"""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rapport.communication.peers import shown_address
from rapport.core.urls import address_parts

NO_ADDRESSES = ("http://[half", "http://a:port", "http://exa\u2100mple/", "http://a:99999")


@pytest.mark.parametrize("text", NO_ADDRESSES, ids=["bracket", "port", "letters", "large-port"])
def test_what_is_no_address_has_no_parts(text: str) -> None:
    parts = address_parts(text)

    assert (parts.scheme, parts.hostname, parts.port) == ("", None, None)


@given(st.text(max_size=40) | st.from_regex(r"https?://[\[\]@:/a-z0-9]{0,20}", fullmatch=True))
@example("http://[half")
def test_nothing_is_too_odd_to_be_taken_apart_or_shown(text: str) -> None:
    parts = address_parts(text)

    assert parts.port is None or 0 <= parts.port < 65_536
    assert shown_address(f"webhook:{text}").startswith("webhook:")


@pytest.mark.parametrize("text", NO_ADDRESSES, ids=["bracket", "port", "letters", "large-port"])
def test_what_an_odd_address_keeps_secret_is_not_shown(text: str) -> None:
    assert "s3cret" not in shown_address(f"webhook:{text}/s3cret")
