"""Tables of people: headers, dividers and faults of rows; quiet hours as a site file has them."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.communication.people_import import MOST_PEOPLE, PersonRow, read_people_table
from rapport.communication.privacy import PrivacyRule, parse_hours, quiet_hours, quiet_rule
from rapport.core.errors import InvalidInput


def test_headers_are_english_or_german_and_cells_have_several_values() -> None:
    table = "\ufeffName\tE-Mail\tGruppen\tRuhezeiten\n Ana \ta@x.at;b@x.at\tg|h\t22:00-07:00\n\n"
    assert read_people_table(table.encode()) == [
        PersonRow(
            line=2,
            name="Ana",
            settings={"quiet": ["22:00-07:00"], "addresses": ["mail:a@x.at", "mail:b@x.at"]},
            groups=("g", "h"),
        )
    ]


def test_a_row_with_too_many_cells_or_a_name_twice_has_a_problem() -> None:
    rows = read_people_table(b"name,zone\na,UTC,x\nb,\na,\n")
    assert [len(row.problems) for row in rows] == [1, 0, 1]
    assert "line 2" in rows[2].problems[0].message


def test_a_table_with_too_many_rows_is_refused() -> None:
    body = b"name\n" + b"".join(b"p%d\n" % number for number in range(MOST_PEOPLE + 1))
    with pytest.raises(InvalidInput, match="more than"):
        read_people_table(body)


@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: ("name," + text).encode()))
def test_any_bytes_are_rows_or_one_refusal(body: bytes) -> None:
    try:
        rows = read_people_table(body)
    except InvalidInput as error:
        assert error.code == "people.bad_table"
    else:
        assert all(row.line >= 2 for row in rows)


@given(st.lists(st.text(min_size=1, alphabet="ab ,;\"'|ä"), min_size=1, max_size=5))
def test_names_come_back_as_they_were_written(names: list[str]) -> None:
    out = io.StringIO()
    csv.writer(out).writerows([["name", "zone"], *([name, "UTC"] for name in names)])
    rows = read_people_table(out.getvalue().encode())
    assert [row.name for row in rows] == [name.strip() for name in names]


minutes = st.integers(0, 1439).map(lambda minute: f"{minute // 60:02}:{minute % 60:02}")


@given(st.lists(st.tuples(minutes, minutes).filter(lambda span: span[0] != span[1]), min_size=1))
def test_quiet_hours_are_shown_as_they_were_declared(spans: list[tuple[str, str]]) -> None:
    texts = ["-".join(span) for span in spans]
    rule = quiet_rule([parse_hours(text) for text in texts], "Europe/Vienna", "refuse")
    assert quiet_hours([PrivacyRule(), rule]) == texts


def test_other_rules_are_no_quiet_hours() -> None:
    assert quiet_hours([]) == []
    assert quiet_hours([PrivacyRule(types=("AD",))]) == []
