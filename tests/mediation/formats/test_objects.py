from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.event import Event
from rapport.mediation.formats.base import MAX_DEPTH, MAX_DOCUMENTS, Document
from rapport.mediation.formats.catalogue import get_format
from rapport.mediation.formats.writers import write_event_data
from rapport.mediation.interpretations.model import FormatChoice
from rapport.mediation.rejections import RejectedValue

scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8)
objects = st.dictionaries(
    st.text(max_size=6),
    st.recursive(scalars, lambda below: st.lists(below, max_size=3), max_leaves=6),
    max_size=5,
)


def test_an_object_is_one_document_and_a_list_is_several(read: Any) -> None:
    assert read("json", {"a": 1}) == [Document({"a": 1})]
    assert read("json", [{"a": 1}]) == [Document({"a": 1})]
    assert read("json", [{"a": 1}, {"a": 2}]) == [
        Document({"a": 1}, id="1"),
        Document({"a": 2}, id="2"),
    ]
    assert read("json", []) == []


def test_json_that_came_as_text_or_octets_is_read_too(read: Any) -> None:
    assert read("json", '{"a": 1}') == [Document({"a": 1})]
    assert read("json", b'\xef\xbb\xbf{"a": 1}') == [Document({"a": 1})]


@pytest.mark.parametrize("data", [1, "x", None, [1], [{"a": 1}, 2]])
def test_a_payload_that_is_no_object_is_refused(refusal: Any, data: Any) -> None:
    assert refusal("json", data).code in ("payload.not_an_object", "payload.not_json")


def test_too_many_documents_and_too_deep_values_are_refused(refusal: Any) -> None:
    assert refusal("json", [{}] * (MAX_DOCUMENTS + 1)).code == "format.too_many"
    deep: Any = 1
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    assert refusal("json", {"a": deep}).code == "format.too_deep"


def test_data_nested_thousands_of_levels_deep_are_refused_and_no_fault() -> None:
    raw = b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    with pytest.raises(RejectedValue, match="not JSON"):
        get_format("json", {}).read(Event("s", "1", "t", "", 0, raw), {})


def test_a_text_header_without_a_text_is_refused() -> None:
    event = Event("s", "1", "t", "", 0, b"12", {"datacontenttype": "text/csv"})
    with pytest.raises(RejectedValue, match="JSON text"):
        get_format("csv", {}).read(event, {})


def test_messagepack_becomes_the_values_of_json(read: Any) -> None:
    packed = msgspec.msgpack.encode({1: b"\x00\x01", "t": 1.5, "n": float("nan"), "l": [True]})
    assert read("msgpack", packed) == [Document({"1": "AAE=", "t": 1.5, "n": None, "l": [True]})]


def test_messagepack_with_foreign_types_or_keys_is_refused(refusal: Any) -> None:
    extension = msgspec.msgpack.encode({"a": msgspec.msgpack.Ext(5, b"x")})
    assert refusal("msgpack", extension).code == "format.not_plain"
    assert refusal("msgpack", msgspec.msgpack.encode({True: 1})).code == "format.not_plain"
    assert refusal("msgpack", b"\xc1").code == "format.not_msgpack"


@given(objects)
def test_written_json_and_messagepack_reads_back(value: dict[str, Any]) -> None:
    for name in ("json", "msgpack"):
        data, headers = write_event_data(value, FormatChoice(name), "Row")
        event = Event("s", "1", "t", "", 0, data, headers)
        assert get_format(name, {}).read(event, {}) == [Document(value)]


def test_rows_that_were_imported_as_objects_pass_formats_that_are_not_json(read: Any) -> None:
    row = {"a": "1,5"}
    for name in ("csv", "xml", "msgpack"):
        assert read(name, row) == [Document(row)]
