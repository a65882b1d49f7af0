"""Every text has one spelling between separators, and strangers' texts come out as they went in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.context.v0.v0_protocol import escape_field, read_payload, unescape_field, write_payload
from rapport.core.errors import InvalidInput

texts = st.text(st.sampled_from("|;=%2573CBDa"), max_size=12) | st.text(max_size=12)
names = texts.filter(bool)


@given(texts)
def test_a_field_comes_back_and_has_no_bar(text: str) -> None:
    written = escape_field(text)
    assert "|" not in written
    assert unescape_field(written) == text


@given(texts.map(lambda text: text.replace("|", "")))
def test_what_a_stranger_writes_without_bars_goes_out_as_it_came_in(text: str) -> None:
    assert escape_field(unescape_field(text)) == text


@given(st.dictionaries(names, texts, max_size=4))
def test_values_come_back_and_have_no_bar(values: dict[str, str]) -> None:
    written = write_payload(values)
    assert "|" not in written
    assert read_payload(written) == values


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a|b", "a%7Cb"),
        ("50%", "50%"),
        ("%41", "%41"),
        ("%7C", "%257C"),
        ("%257C", "%25257C"),
        ("%25", "%25"),
        ("%7c", "%7c"),
        ("grün", "grün"),
    ],
)
def test_as_little_as_possible_is_escaped(text: str, written: str) -> None:
    assert escape_field(text) == written


def test_values_that_are_no_texts_are_written_as_json_and_read_as_texts() -> None:
    values = {"free": True, "seats": 4, "heat": 21.5, "none": None, "who": ["a", "b"]}
    written = write_payload(values)
    assert written == 'free=true;seats=4;heat=21.5;none=null;who=["a","b"]'
    assert read_payload(written)["who"] == '["a","b"]'


def test_empty_parts_and_values_are_read() -> None:
    assert read_payload("") == {}
    assert read_payload("a=;;b=1;") == {"a": "", "b": "1"}


@pytest.mark.parametrize("payload", ["a", "a=1;b", "=1"])
def test_a_part_without_name_or_equals_is_refused(payload: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_payload(payload)
    assert caught.value.code == "context.bad_v0_message"
