"""The list of tests that take their time."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from support.unhurried import name_of, read_names, unhurried, write_names

LIST = Path(__file__).parents[1] / "unhurried.txt"


def test_a_long_case_and_many_short_ones_are_both_too_long() -> None:
    took = [(f"f::many[{number}]", 0.01) for number in range(50)]
    took += [("f::one", 0.06), ("f::one", 0.04), ("f::few[1]", 0.09), ("f::few[2]", 0.09)]
    assert unhurried(took) == ["f::many", "f::one"]


@given(names=st.lists(st.from_regex(r"[a-z/_.]+::[a-zA-Z_:]+", fullmatch=True), unique=True))
def test_a_list_is_read_as_it_was_written(tmp_path_factory, names: list[str]) -> None:
    path = tmp_path_factory.mktemp("list") / "names.txt"
    assert read_names(path) == frozenset()
    write_names(path, names)
    assert read_names(path) == frozenset(names)


def test_the_files_of_all_listed_tests_are_there() -> None:
    root, names = LIST.parents[1], read_names(LIST)
    assert names
    assert {name for name in names if not (root / name.partition("::")[0]).is_file()} == set()
    assert all(name_of(name) == name for name in names)
