from __future__ import annotations

from pathlib import Path

import pytest

from rapport.channel.config import ChannelsConfig, channels_from_site
from rapport.core.errors import Problem
from rapport.kernel.toml import TomlFile


def declared(directory: Path, text: str) -> tuple[ChannelsConfig, list[Problem]]:
    file = directory / "site.toml"
    file.write_text(text)
    return channels_from_site(TomlFile.load(file))


def test_a_site_says_where_its_node_may_push_to(tmp_path: Path) -> None:
    found, problems = declared(
        tmp_path, '[channels]\npush_to = ["http://127.0.0.1:*", "https://hooks.example.org"]\n'
    )
    assert (found.push_to, problems) == (("http://127.0.0.1:*", "https://hooks.example.org"), [])


def test_nothing_is_allowed_by_default(tmp_path: Path) -> None:
    found, problems = declared(tmp_path, "[channels]\n")
    assert (found.push_to, problems) == ((), [])


@pytest.mark.parametrize("entry", ['"*"', '"hooks.example.org"', '"ftp://a"'])
def test_an_entry_that_is_no_address_is_a_problem_with_its_place(
    tmp_path: Path, entry: str
) -> None:
    _found, (problem,) = declared(tmp_path, f"[channels]\npush_to = [{entry}]\n")
    assert (problem.code, problem.line) == ("push.bad_address", 2)
    assert problem.hint
