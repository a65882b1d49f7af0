"""Files of every format, as the raw events that an import makes of them."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest

from rapport.core.errors import InvalidInput, Unsupported
from rapport.mediation.formats.catalogue import read_values


def values(raw: bytes, name: str, **options: Any) -> list[Any]:
    return list(read_values(io.BytesIO(raw), name, options))


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a": 1}\n{"a": 2}\n',
        b'\xef\xbb\xbf\n{"a": 1}\r\n\r\n{"a": 2}',
        b'[{"a": 1}, {"a": 2}]',
        b'[\n  {"a": 1},\n  {"a": 2}\n]\n',
    ],
)
def test_json_is_lines_or_one_list(raw: bytes) -> None:
    assert values(raw, "json") == [{"a": 1}, {"a": 2}]


def test_one_object_is_one_value_however_it_is_laid_out() -> None:
    assert values(b'{"a": 1}', "json") == [{"a": 1}]
    assert values(b'{\n"a": 1\n}\n', "ngsi") == [{"a": 1}]


def test_a_pack_stays_whole_and_several_packs_stand_on_lines() -> None:
    pack = [{"bn": "d:", "n": "t", "v": 1}, {"n": "h", "v": 2}]
    raw = msgspec.json.encode(pack)
    assert values(raw, "senml") == [pack]
    assert values(raw + b"\n" + raw, "senml") == [pack, pack]


def test_elements_of_xml_and_maps_of_messagepack_become_objects() -> None:
    assert values(b"<a><b>1</b><b>2</b></a>", "xml", path="a/b") == [{"#text": "1"}, {"#text": "2"}]
    assert values(msgspec.msgpack.encode([{"a": 1}]), "msgpack") == [{"a": 1}]


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16", "cp1252"])
def test_rows_are_unicode_whatever_the_file_is_written_in(encoding: str) -> None:
    raw = "é (°C);b\n1,5;2\n".encode(encoding)
    assert values(raw, "csv", delimiter=";", encoding=encoding) == [{"é (°C)": "1,5", "b": "2"}]


def test_a_mark_at_the_beginning_belongs_to_no_column() -> None:
    assert values(b"\xef\xbb\xbfa,b\n1,2\n", "csv") == [{"a": "1", "b": "2"}]


def test_a_table_is_read_as_it_is_needed_and_not_as_a_whole() -> None:
    rows = read_values(io.BytesIO(b"a,b\n" + b"1,2\n" * 50_000), "csv", {})
    assert next(rows) == {"a": "1", "b": "2"}
    assert sum(1 for _row in rows) == 49_999


@pytest.mark.parametrize(
    ("raw", "name", "code"),
    [
        (b'{"a": 1}\n{"a": \n', "json", "payload.not_json"),
        (b'{"a": 1}\n5\n', "json", "payload.not_an_object"),
        (b"[1]", "json", "payload.not_an_object"),
        (b"a,b\n1\n", "csv", "format.ragged_row"),
        (b"a\n\xff\n", "csv", "format.not_text"),
        (b"<a>", "xml", "xml.not_well_formed"),
        (b"\xc1", "msgpack", "format.not_msgpack"),
    ],
)
def test_an_unreadable_file_is_reported_with_its_location(raw: bytes, name: str, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        values(raw, name)
    assert caught.value.code == code


def test_messages_of_home_assistant_need_their_topics_and_come_by_no_file() -> None:
    with pytest.raises(Unsupported):
        values(b"{}", "homeassistant")
