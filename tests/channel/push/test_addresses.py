from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.push import check_address, is_entry
from rapport.core.errors import InvalidInput, NotAllowed

ALLOWED = (
    "http://127.0.0.1:*",
    "https://hooks.example.org",
    "https://*.lab.org:8443/in",
    "http://[::1]:80",
)


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:5/x?y=1",
        "http://127.0.0.1",
        "https://hooks.example.org/any/path",
        "https://HOOKS.example.org:443/",
        "https://a.lab.org:8443/in",
        "https://a.b.lab.org:8443/in/deep?q",
        "http://[::1]/",
    ],
)
def test_addresses_on_the_list_are_allowed(address: str) -> None:
    check_address(address, ALLOWED)


@pytest.mark.parametrize(
    "address",
    [
        "https://127.0.0.1:5/",
        "http://127.0.0.2/",
        "http://169.254.169.254/latest",
        "https://hooks.example.org.evil.org/",
        "https://evil.org/hooks.example.org",
        "http://hooks.example.org/",
        "https://hooks.example.org:444/",
        "https://lab.org:8443/in",
        "https://xlab.org:8443/in",
        "https://a.lab.org:8443/inside",
        "https://a.lab.org:8443/in/../out",
        "https://a.lab.org:8443/in/%2e%2e/out",
        "http://localhost:5/",
    ],
)
def test_addresses_off_the_list_are_refused_with_a_hint(address: str) -> None:
    with pytest.raises(NotAllowed, match="does not let") as caught:
        check_address(address, ALLOWED)
    assert caught.value.code == "push.address_not_allowed"
    assert "push_to" in caught.value.hint


@pytest.mark.parametrize(
    "address",
    [
        "",
        "127.0.0.1:5",
        "ftp://127.0.0.1/",
        "file:///etc/passwd",
        "http://user:word@127.0.0.1/",
        "http://hooks.example.org@127.0.0.1/",
        "http://127.0.0.1/#part",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:0/",
        "http://127.0.0.1/a b",
        "http://127.0.0.1\\@evil.org/",
        "http://127.0.0.1/\r\nHost: evil",
        "http://[::1/",
        "http:///path",
        "http://127.0.0.1/" + "a" * 3_000,
    ],
)
def test_what_is_no_plain_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_address(address, ("http://127.0.0.1:*", "http://evil.org"))
    assert caught.value.code == "push.bad_address"


def test_without_a_list_nothing_is_allowed() -> None:
    with pytest.raises(NotAllowed):
        check_address("http://127.0.0.1/", ())


@given(st.text(), st.text())
def test_any_text_is_allowed_or_refused_in_words(address: str, entry: str) -> None:
    entries = (entry,) if is_entry(entry) else ()
    try:
        check_address(address, (*entries, "http://127.0.0.1:*"))
    except (InvalidInput, NotAllowed) as error:
        assert error.code.startswith("push.")


@pytest.mark.parametrize("entry", ["*", "http://", "hooks.example.org", "http://a?b", "http://a#b"])
def test_an_entry_is_an_address_without_query(entry: str) -> None:
    assert not is_entry(entry)
