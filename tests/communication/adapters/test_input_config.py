"""`[inputs.NAME]`: what is read, and every fault in its place."""

from __future__ import annotations

import pytest

from rapport.communication.adapters.adapter_config import KINDS, InputKind, read_inputs
from rapport.kernel.toml import TomlFile


@pytest.fixture(autouse=True)
def _a_kind_that_is_pulled(monkeypatch):
    depot = InputKind(keys=("path",), read=lambda table: table.fields.text("path"), pulled=True)
    monkeypatch.setitem(KINDS, "depot", depot)


def read(text, tmp_path):
    problems = []
    file = TomlFile.parse(text.encode(), name="site.toml")
    return read_inputs(file, tmp_path, problems), problems


def test_a_pulled_input_has_an_interval_and_its_own_settings(tmp_path):
    text = '[inputs.drop]\nadapter = "depot"\npath = "in"\ninterval = "5s"\ntrusted = true\n'
    (declared,), problems = read(text, tmp_path)
    assert problems == []
    assert (declared.name, declared.adapter, declared.settings) == ("drop", "depot", "in")
    assert (declared.interval_ms, declared.trusted) == (5_000, True)


def test_without_an_interval_it_looks_every_minute_and_on_request_never_by_itself(tmp_path):
    text = '[inputs.a]\nadapter = "depot"\npath = "in"\n'
    (declared,), _ = read(text, tmp_path)
    assert declared.interval_ms == 60_000
    (declared,), problems = read(text + "on_request = true\n", tmp_path)
    assert declared.interval_ms is None
    assert problems == []


def test_a_site_without_inputs_has_none(tmp_path):
    assert read("", tmp_path) == ((), [])


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("[inputs.a]\n", "site.missing_key", 1),
        ('[inputs.a]\nadapter = ""\n', "site.wrong_type", 2),
        ("[inputs.a]\nadapter = 7\n", "site.wrong_type", 2),
        ('[inputs.a]\nadapter = "deport"\n', "input.unknown_adapter", 2),
        ('[inputs.A]\nadapter = "depot"\npath = "x"\n', "input.bad_name", 1),
        ('[inputs."a.b"]\nadapter = "depot"\npath = "x"\n', "input.bad_name", 1),
        ('[inputs.a]\nadapter = "depot"\npath = "x"\nintreval = "5s"\n', "site.unknown_key", 4),
        ('[inputs.a]\nadapter = "depot"\npath = "x"\ninterval = "0s"\n', "site.bad_duration", 4),
        ('[inputs.a]\nadapter = "depot"\npath = "x"\ninterval = 5\n', "site.wrong_type", 4),
        ('[inputs.a]\nadapter = "depot"\npath = "x"\ntrusted = "yes"\n', "site.wrong_type", 4),
        (
            '[inputs.a]\nadapter = "depot"\npath = "x"\non_request = true\ninterval = "5s"\n',
            "input.interval_on_request",
            5,
        ),
        (
            '[inputs.a]\nadapter = "webhook"\nsecret = "env:NOTHING"\ninterval = "5s"\n',
            "input.not_pulled",
            4,
        ),
    ],
)
def test_faults_are_named_at_their_place_with_a_hint(text, code, line, tmp_path):
    _, problems = read(text, tmp_path)
    found = [problem for problem in problems if problem.code == code]
    assert found, problems
    assert found[0].line == line
    assert found[0].hint


def test_the_nearest_kind_is_suggested(tmp_path):
    _, problems = read('[inputs.a]\nadapter = "deport"\n', tmp_path)
    assert "depot" in problems[0].hint
