"""Algorithm 2.1: which addresses are used."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.communication.peers import UnknownAdapterLog, select_addresses

ADDRESSES = ("fax:1", "mail:a@b", "inbox:", "mail:c@d")


@pytest.mark.parametrize(
    ("delivery", "fallback", "usable"),
    [
        ("preferred", False, ("mail:a@b",)),
        ("preferred", True, ("mail:a@b", "inbox:", "mail:c@d")),
        ("at-least-one", False, ("mail:a@b", "inbox:", "mail:c@d")),
        ("to-all-channels", False, ("mail:a@b", "inbox:", "mail:c@d")),
    ],
)
def test_the_order_of_addresses_is_kept_and_preferred_stops_at_the_first(
    delivery, fallback, usable
):
    found = select_addresses(ADDRESSES, delivery, {"mail", "inbox"}, fallback=fallback)
    assert found.usable == usable
    assert found.unknown == ("fax",)


def test_nobody_to_serve_any_address_is_an_empty_list_and_no_error():
    found = select_addresses(ADDRESSES, "at-least-one", ())
    assert found.usable == ()
    assert found.unknown == ("fax", "mail", "inbox", "mail")


@given(
    st.lists(st.sampled_from(["a:1", "a:2", "b:", "c:x:y", "d"]), max_size=8),
    st.sampled_from(["preferred", "at-least-one", "to-all-channels"]),
    st.sets(st.sampled_from("abcd")),
    st.booleans(),
)
def test_what_is_selected_is_what_a_walk_by_the_text_gives(addresses, delivery, known, fallback):
    served = [entry for entry in addresses if entry.partition(":")[0] in known]
    only_first = delivery == "preferred" and not fallback
    found = select_addresses(addresses, delivery, known, fallback=fallback)
    assert list(found.usable) == (served[:1] if only_first else served)


def test_an_unknown_adapter_is_reported_once_a_minute_however_often_it_is_met():
    unserved = UnknownAdapterLog()
    assert unserved.to_log(["fax", "fax", "telex"], 0) == ["fax", "telex"]
    assert unserved.to_log(["fax"], 59_999) == []
    assert unserved.to_log(["fax"], 60_000) == ["fax"]
    assert unserved.to_log(["fax"], 10) == ["fax"], "the clock was set back"
