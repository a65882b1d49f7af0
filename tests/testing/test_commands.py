"""`./run test` looks a second time at a few failed tests, alone, and never at many."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import commands


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, list[str]]]:
    """The steps that were run; the first fails, the others pass."""
    steps: list[tuple[str, list[str]]] = []

    def step(name: str, command: list[str]) -> int:
        steps.append((name, command))
        return commands.TESTS_FAILED if len(steps) == 1 else 0

    monkeypatch.setattr(commands, "_step", step)
    monkeypatch.setattr(commands, "LAST_FAILED", tmp_path / "lastfailed")
    return steps


def _failed(*tests: str) -> None:
    commands.LAST_FAILED.write_text(json.dumps(dict.fromkeys(tests, True)))


def test_a_few_that_pass_alone_are_named_and_the_run_goes_on(
    ran: list[tuple[str, list[str]]], capsys: Any
) -> None:
    _failed("tests/b.py::test_b", "tests/a.py::test_a")
    assert commands.test([]) == 0
    assert [name for name, _ in ran] == ["tests", "the failed tests alone"]
    assert ran[1][1][-2:] == ["tests/a.py::test_a", "tests/b.py::test_b"]
    assert "unsteady, passed only alone: tests/a.py::test_a" in capsys.readouterr().err


def test_many_failures_get_no_second_look(ran: list[tuple[str, list[str]]]) -> None:
    _failed(*(f"tests/a.py::test_{number}" for number in range(6)))
    assert commands.test([]) == commands.TESTS_FAILED
    assert len(ran) == 1


def test_nothing_is_looked_at_again_without_a_list_of_what_failed(
    ran: list[tuple[str, list[str]]],
) -> None:
    assert commands.test([]) == commands.TESTS_FAILED
    assert len(ran) == 1


def test_tests_that_fail_alone_too_end_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(commands, "_step", lambda name, command: commands.TESTS_FAILED)
    monkeypatch.setattr(commands, "LAST_FAILED", tmp_path / "lastfailed")
    _failed("tests/a.py::test_a")
    assert commands.test([]) == commands.TESTS_FAILED


def test_an_error_of_pytest_itself_gets_no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_step", lambda name, command: 3)
    assert commands.test([]) == 3


def test_a_step_keeps_bytecode_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    told = tmp_path / "told"
    code = "import sys, pathlib; pathlib.Path('told').write_text(str(sys.dont_write_bytecode))"
    assert commands._step("asking", [sys.executable, "-c", code]) == 0
    assert told.read_text() == "False"


def test_long_tests_and_all_random_cases_run_when_they_are_asked_for(
    ran: list[tuple[str, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYPOTHESIS_PROFILE", "")
    monkeypatch.delenv("HYPOTHESIS_PROFILE")  # what is set below is put back
    commands.test(["tests/recovery"])
    assert ran[-1][1][-3:] == ["-m", "not long", "tests/recovery"]
    assert "HYPOTHESIS_PROFILE" not in os.environ
    commands.test(["tests/a.py::test_a"])
    assert "-m" not in ran[-1][1][3:]
    commands.test(["--long", "tests/recovery"])
    assert ran[-1][1][-1] == "tests/recovery"
    assert "not long" not in ran[-1][1]
    assert os.environ["HYPOTHESIS_PROFILE"] == "full"
