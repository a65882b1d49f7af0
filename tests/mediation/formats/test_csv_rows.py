from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import InvalidInput
from rapport.core.event import Event
from rapport.mediation.formats.base import Document
from rapport.mediation.formats.catalogue import get_format
from rapport.mediation.formats.csv_format import CsvFormat, sniff_delimiter
from rapport.mediation.formats.writers import write_event_data
from rapport.mediation.interpretations.model import FormatChoice
from rapport.mediation.rejections import RejectedValue

INMET = (
    "REGIAO:;S\nUF:;RS\nESTACAO:;PORTO ALEGRE\nCODIGO (WMO):;A801\nLATITUDE:;-30,05\n"
    "Data;Hora UTC;TEMPERATURA DO AR - BULBO SECO, HORARIA (°C);UMIDADE (%);\n"
    "2026/01/01;0000 UTC;21,5;80;\n"
    "2026/01/01;0100 UTC;-9999;;\n"
)


def test_each_row_is_a_document_of_texts(read: Any) -> None:
    assert read("csv", "id,t\n1,21.5\n2,\n") == [
        Document({"id": "1", "t": "21.5"}, id="1"),
        Document({"id": "2", "t": None}, id="2"),
    ]
    assert read("csv", "id,t\r\n1,21.5") == [Document({"id": "1", "t": "21.5"})]
    assert read("csv", "id,t\n") == []


def test_one_row_without_a_heading_needs_declared_columns(read: Any) -> None:
    columns = ["ts", "door", "badge"]
    documents = read("csv", "2026-03-02;d7;E200", delimiter=";", columns=columns)
    assert documents == [Document({"ts": "2026-03-02", "door": "d7", "badge": "E200"})]


@pytest.mark.parametrize(
    ("row", "fault"), [("3;4;5\n", "line 5 has 3 cells"), ('"3;4\n', "line 5 is not CSV")]
)
def test_a_fault_is_reported_with_its_line(row: str, fault: str) -> None:
    lines = ["report of a station\n", "UF:;RS\n", "a;b\n", "1;2\n", row]
    rows = CsvFormat({"delimiter": ";", "skip": 1, "metadata": 1}).rows(lines)
    assert next(rows) == {"UF": "RS", "a": "1", "b": "2"}
    with pytest.raises(RejectedValue) as caught:
        next(rows)
    assert caught.value.message.startswith(fault)


def test_a_single_number_that_mqtt_took_for_json_is_a_cell_all_the_same(read: Any) -> None:
    assert read("csv", 21.5, columns=["t"]) == [Document({"t": "21.5"})]


def test_national_stations_are_read_with_metadata_latin1_and_joined_time(read: Any) -> None:
    documents = read(
        "csv",
        INMET.encode("latin-1"),
        delimiter="sniffed",
        encoding="latin-1",
        metadata=5,
        nulls=["", "-9999"],
        join={"time": "{Data} {Hora UTC}"},
    )
    assert documents[0].value == {
        "REGIAO": "S",
        "UF": "RS",
        "ESTACAO": "PORTO ALEGRE",
        "CODIGO (WMO)": "A801",
        "LATITUDE": "-30,05",
        "Data": "2026/01/01",
        "Hora UTC": "0000 UTC",
        "TEMPERATURA DO AR - BULBO SECO, HORARIA (°C)": "21,5",
        "UMIDADE (%)": "80",
        "time": "2026/01/01 0000 UTC",
    }
    assert documents[1].value["TEMPERATURA DO AR - BULBO SECO, HORARIA (°C)"] is None
    assert documents[1].value["UMIDADE (%)"] is None


def test_hours_without_leading_zeros_are_filled_up_when_joined(read: Any) -> None:
    text = "acq_date,acq_time\n2026-01-02,142\n2026-01-02,\n"
    documents = read("csv", text, join={"time": "{acq_date} {acq_time:04}"})
    assert [document.value["time"] for document in documents] == ["2026-01-02 0142", None]


def test_parted_thousands_are_joined_where_they_are_numbers(read: Any) -> None:
    text = "a;b\n1.234.567,5;1.2.3\n12,5;+1.000\n"
    documents = read("csv", text, delimiter=";", decimal="comma", thousands="point")
    assert [document.value for document in documents] == [
        {"a": "1234567,5", "b": "1.2.3"},
        {"a": "12,5", "b": "+1000"},
    ]
    only_a = read("csv", text, delimiter=";", decimal="comma", thousands="point", numbers=["a"])
    assert only_a[1].value["b"] == "+1.000"


def test_cells_may_hold_delimiters_quotes_line_breaks_and_separators_of_unicode(read: Any) -> None:
    text = 'a,b\n"x, ""y""\nz","p\u2028q"\n'
    assert read("csv", text) == [Document({"a": 'x, "y"\nz', "b": "p\u2028q"})]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ("a,b\n1\n", "format.ragged_row"),
        ("a,b\n1,2,3\n", "format.ragged_row"),
        ("a,a\n1,2\n", "format.bad_heading"),
        ("a,,b\n1,2,3\n", "format.bad_heading"),
        ('a,b\n"1"x,2\n', "format.not_csv"),
        ("a\n" + "1\n" * 10_001, "format.too_many"),
        (b"a\n\xff\n", "format.not_text"),
    ],
)
def test_bad_csv_is_refused_with_its_reason(refusal: Any, data: Any, code: str) -> None:
    assert refusal("csv", data).code == code


@pytest.mark.parametrize(
    "options",
    [
        {"delimiter": "ab"},
        {"delimiter": ""},
        {"encoding": "bz2"},
        {"decimal": "comma", "thousands": "comma"},
        {"columns": ["a", "a"]},
        {"join": {"t": "no columns"}},
        {"join": {"t": "{}"}},
        {"skip": -1},
        {"nulls": "x"},
    ],
)
def test_bad_options_are_refused_before_any_event(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        get_format("csv", options)
    assert caught.value.code == "format.bad_option"


def test_a_misspelt_option_or_format_names_the_nearest() -> None:
    with pytest.raises(InvalidInput) as caught:
        get_format("csv", {"delimeter": ";"})
    assert (caught.value.code, "delimiter" in caught.value.hint) == ("format.unknown_option", True)
    with pytest.raises(InvalidInput) as caught:
        get_format("senm", {})
    assert (caught.value.code, "senml" in caught.value.hint) == ("format.unknown", True)


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [
        ("a;b\n1,5;2,5\n", ";"),
        ("a,b\n1,2\n", ","),
        ("a\tb,c\n1\t2\n", "\t"),
        ("UF:;RS\nData;T, max;U, min\n1;2,5;3,5\n", ";"),
        ("a|b\n1|2\n", "|"),
        ("alone\n1\n", ";"),
    ],
)
def test_the_delimiter_is_the_one_that_parts_lines_alike(text: str, delimiter: str) -> None:
    assert sniff_delimiter(text.splitlines()) == delimiter


cells = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=9
).map(str.strip)


@given(st.dictionaries(cells.filter(bool), cells, min_size=1, max_size=5), st.sampled_from(";,|"))
def test_a_written_row_reads_back(row: dict[str, str], delimiter: str) -> None:
    options = {"delimiter": delimiter}
    data, headers = write_event_data(row, FormatChoice("csv", options), "Row")
    assert headers["datacontenttype"] == "text/csv; charset=utf-8"
    expected = {name: cell or None for name, cell in row.items()}
    documents = CsvFormat(options).read(Event("s", "1", "t", "", 0, data, headers), {})
    if any(expected.values()):
        assert [document.value for document in documents] == [expected]


def test_numbers_are_written_with_the_decimal_mark() -> None:
    choice = FormatChoice("csv", {"delimiter": ";", "decimal": "comma"})
    data, _headers = write_event_data({"a": None, "b": 1.5, "c": True}, choice, "Row")
    assert msgspec.json.decode(data) == "a;b;c\r\n;1,5;true\r\n"
    with pytest.raises(RejectedValue, match="no object"):
        write_event_data({"d": {}}, choice, "Row")


def test_a_row_that_was_imported_is_read_by_the_options_of_now(read: Any) -> None:
    """So that it can be mediated again after they were mended: the raw event stays as it was."""
    payload = "day,hour,t\n2026-03-02,9,-\n"
    (first,) = read("csv", payload, join={"time": "{hour} {day}"})
    assert first.value == {"day": "2026-03-02", "hour": "9", "t": "-", "time": "9 2026-03-02"}
    mended: dict[str, Any] = {"join": {"time": "{day}T{hour:02}"}, "nulls": ["", "-"]}
    (again,) = read("csv", first.value, **mended)
    assert again.value == {**first.value, "t": None, "time": "2026-03-02T09"}
    assert again == read("csv", payload, **mended)[0]
    (other,) = read("csv", {"time": "noon", "t": "1"}, **mended)
    assert other.value == {"time": "noon", "t": "1"}
