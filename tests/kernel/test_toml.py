import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import SiteError
from rapport.kernel.toml import TomlFile

TEXT = b"""[site]
name = "x"

[sources.positions]
concept = "person"
value = ["x", "y"]
[actions."raise alarm"]
send_to = "collective:guards"
"""


def test_keys_know_their_lines() -> None:
    file = TomlFile.parse(TEXT, name="site.toml")
    assert file.place_of(("site", "name")) == (2, 1)
    assert file.place_of(("sources", "positions")) == (4, 1)
    assert file.place_of(("sources", "positions", "value")) == (6, 1)
    assert file.place_of(("actions", "raise alarm", "send_to")) == (8, 1)
    assert file.place_of(("actions", "raise alarm", "absent")) == (7, 1)


def test_a_problem_shows_its_line() -> None:
    file = TomlFile.parse(TEXT, name="site.toml")
    problem = (
        file.section("sources").section("positions").problem("concept", "a.b", "no such concept")
    )
    assert (problem.line, problem.excerpt.splitlines()[0].strip()) == (5, 'concept = "person"')


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"[site\n", "site.bad_toml"),
        (b"a = \xff", "site.not_utf8"),
        (b"a = 1\na = 2", "site.bad_toml"),
    ],
)
def test_faults_have_a_place(raw: bytes, code: str) -> None:
    with pytest.raises(SiteError) as caught:
        TomlFile.parse(raw, name="site.toml")
    assert caught.value.problems[0].code == code
    assert caught.value.problems[0].line >= 1


def test_a_missing_file_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(SiteError) as caught:
        TomlFile.load(tmp_path / "site.toml")
    assert caught.value.problems[0].code == "site.unreadable"


@given(st.binary(max_size=80))
def test_no_bytes_crash_the_reader(raw: bytes) -> None:
    try:
        TomlFile.parse(raw, name="x").place_of(("a", "b"))
    except SiteError as error:
        assert error.problems


def test_a_number_of_thousands_of_digits_is_a_fault_with_a_place_like_any_other():
    with pytest.raises(SiteError) as caught:
        TomlFile.parse(b"a = " + b"9" * 5_000, name="site.toml")
    assert caught.value.problems_found()[0].file == "site.toml"


def test_tables_of_a_list_know_their_own_lines() -> None:
    text = (
        "[[rule]]\na = 1\n\n[[rule]]\nb = 2\n[rule.more]\nc = 3\n[other]\na = 4\n[[rule]]\na = 5\n"
    )
    file = TomlFile.parse(text.encode(), name="x.toml")
    places = [file.place_of(("rule", f"[{at}]", "a"))[0] for at in range(3)]
    assert places == [2, 4, 11]
    assert file.place_of(("rule", "[1]", "b")) == (5, 1)
    assert file.place_of(("rule",)) == (1, 1)
    assert file.place_of(("rule", "a")) == (2, 1)


def test_a_mark_of_the_encoding_at_the_beginning_is_no_fault() -> None:
    """As editors of some machines write it; policies and CSV files may begin with it, too."""
    file = TomlFile.parse(b"\xef\xbb\xbf" + TEXT, name="site.toml")
    assert file.values == TomlFile.parse(TEXT, name="site.toml").values
    assert file.place_of(("site",)) == (1, 1)


def test_lines_of_a_value_are_no_headers_and_no_keys() -> None:
    text = b'''[tables.rooms]
corners = [
  [0, 0],
  ["key", "x"],  # ]
]
note = """
[tables.other]
key = "not this one"
"""
other = \'\'\'
key = \'\'\'
key = "id"
'''
    file = TomlFile.parse(text, name="site.toml")
    assert file.place_of(("tables", "rooms", "note")) == (6, 1)
    assert file.place_of(("tables", "rooms", "key")) == (12, 1)


def test_long_rows_of_spaces_in_a_quoted_header_cost_no_more_than_their_length() -> None:
    text = f'["a{" " * 200_000}b"]\nx = 1\n'
    file = TomlFile.parse(text.encode(), name="site.toml")
    began = time.process_time()
    assert file.problem(("elsewhere",), "a.b", "no").line == 0
    assert time.process_time() - began < 2.0
