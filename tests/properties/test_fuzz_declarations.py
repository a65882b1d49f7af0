"""Tables of a site with any values: [channels], [access], [links] and [mqtt] always give
declarations and problems, never an exception. [CH-11, CH-12, CH-14, CH-15, UX-2]
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.channel.access.identities import access_from_site
from rapport.channel.config import channels_from_site
from rapport.channel.federation import links_from_site
from rapport.channel.mqtt.bridge import bridges_from_site
from rapport.core.errors import Problem
from rapport.kernel.toml import TomlFile

pytestmark = pytest.mark.slow

READERS = {
    "channels": channels_from_site,
    "access": access_from_site,
    "links": links_from_site,
    "mqtt": bridges_from_site,
}
KEYS = [
    *["log", "records", "postgres", "nats", "push_to", "keep_for", "keep_bytes", "keep_hard"],
    *["ttl", "index", "interceptors", "signed", "url", "token", "receive", "send", "query"],
    *["rename", "subscribe", "publish", "identities", "tokens", "keys", "rate", "groups", "allow"],
    *["public", "host", "port", "topic", "channel", "qos", "username", "password", "in", "out"],
    *["may", "members", "key", "source", "type", "client", "local", "node", "raw.*", "*", ""],
]
WORDS = st.sampled_from(
    [
        *["embedded", "nats", "postgres", "env:X", "file:x", "30 days", "1h", "0s", "-1", "1e999"],
        *["http://127.0.0.1:1", "mqtt://h:1", "https://[", "//", "a/+/b", "#", "raw.*", "data.x"],
        *["type = 't'", "type =", "required", "checked", "c", "../x", "\x00"],
        *["publish", "subscribe", "*", "local", "x" * 300, "data.", "subject", "http://*:*"],
    ]
)
SCALARS = (
    WORDS
    | st.text(max_size=6)
    | st.integers(-(2**65), 2**65)
    | st.floats()
    | st.booleans()
    | st.datetimes()
    | st.dates()
)
VALUES = st.recursive(
    SCALARS | st.lists(SCALARS, max_size=3),
    lambda inner: (
        st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), inner, max_size=4)
        | st.lists(st.dictionaries(st.sampled_from(KEYS), inner, max_size=3), max_size=2)
    ),
    max_leaves=10,
)
INNER = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6)
TABLES = st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), INNER | VALUES, max_size=5)


def check_problems(problems: list[Problem]) -> None:
    for problem in problems:
        assert problem.code
        assert problem.message


@pytest.mark.parametrize("name", READERS)
@given(table=TABLES)
def test_any_table_gives_declarations_and_problems(name: str, table: dict[str, Any]) -> None:
    declared, problems = READERS[name](TomlFile("site.toml", "", {name: table}))
    assert declared is not None
    check_problems(problems)


@pytest.mark.parametrize("name", READERS)
@given(value=VALUES)
def test_a_table_that_is_none_is_no_crash_either(name: str, value: Any) -> None:
    _declared, problems = READERS[name](TomlFile("site.toml", "", {name: value}))
    check_problems(problems)
