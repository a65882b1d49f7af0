"""Keys of a TOML text are counted before they are taken apart, whatever the text, in no time."""

import time
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.core.errors import SiteError
from rapport.kernel.toml import MAX_KEY_PARTS, TomlFile, find_long_key

MANY = 100_000
SECONDS = 2.0
"""Far more than it takes, far less than what grows with the square of the parts."""


def parsed(text: str) -> TomlFile:
    return TomlFile.parse(text.encode(), name="site.toml")


@pytest.mark.parametrize(
    ("before", "part", "after"),
    [
        ("[", "a.", "a]\nx = 1"),
        ("[[", "a . ", "a]]\nx = 1"),
        ("", "a.", "a = 1"),
        ("x = { ", '"a".', "a = 1 }"),
        ("x = [1, { ", "''.", "a = 1 }]"),
    ],
)
def test_a_key_of_very_many_parts_is_refused_at_once_with_its_place(
    before: str, part: str, after: str
) -> None:
    began = time.process_time()
    with pytest.raises(SiteError) as caught:
        parsed(f"y = 'a.b'\n{before}{part * MANY}{after}\n")
    assert time.process_time() - began < SECONDS
    (problem,) = caught.value.problems
    assert problem.code == "site.too_many_parts"
    assert (problem.line, problem.column) == (2, len(before) + 1)
    assert problem.hint
    assert problem.excerpt == ""


@pytest.mark.parametrize(
    ("before", "piece", "after"),
    [
        ("x = [", "1.5, ", "]"),
        ('x = "', "a.", '"'),
        ("x = '''", "a.", "'''"),
        ('x = """\n[', "a.", '"""""'),
        ('x = ["""a"""", "', "a.", '"]'),
        ("# it's ", "a.", ""),
    ],
)
def test_dots_that_are_none_of_a_key_are_not_counted(before: str, piece: str, after: str) -> None:
    text = f"{before}{piece * MANY}{after}"
    assert parsed(text).values == tomllib.loads(text)


def test_a_key_of_as_many_parts_as_there_may_be_is_read() -> None:
    header = f"[{'.'.join('a' * MAX_KEY_PARTS)}]"
    assert parsed(header).values == tomllib.loads(header)


@pytest.mark.parametrize(
    "piece", ['"\\', '"""\\', "'\"", "'''", '"', "a ", "a" * 50 + " . ", "1.", ".", "[", "#\\\n"]
)
def test_no_text_takes_long_to_be_looked_at(piece: str) -> None:
    text = piece * (4_000_000 // len(piece))
    began = time.process_time()
    find_long_key(text)
    assert time.process_time() - began < SECONDS


names = st.one_of(
    st.from_regex(r"[a-z0-9_-]{1,3}", fullmatch=True),
    st.sampled_from(['"a.b"', "'.'", '""', '"\\""', "'#'"]),
)
keys = st.lists(names, min_size=1, max_size=MAX_KEY_PARTS + 4)
values = st.sampled_from(
    ["1.5", '"a.b"', '"""a"b\n[c.d]\n""""', "'''it's\n # ''''", "[1.0, 2.0] # x.y'", '"\\\\"']
)


@given(st.lists(st.tuples(keys, st.sampled_from([".", " . "]), values), max_size=4), st.booleans())
def test_a_text_has_a_long_key_when_one_of_its_keys_is_long(
    entries: list[tuple[list[str], str, str]], inline: bool
) -> None:
    lines = [f"{dot.join(parts)} = {value}" for parts, dot, value in entries]
    text = "\n".join(f"k = {{ {line} }}" if inline and "\n" not in line else line for line in lines)
    found = find_long_key(text)
    assert (found is not None) == any(len(parts) > MAX_KEY_PARTS for parts, _, _ in entries)
