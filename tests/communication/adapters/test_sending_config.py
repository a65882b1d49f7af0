"""`[adapters.NAME.sending]`: how much an adapter does at a time."""

from __future__ import annotations

import pytest

from rapport.communication.adapters.adapter_config import read_sending
from rapport.communication.config import communication_from_site
from rapport.kernel.toml import TomlFile


def read(text):
    problems = []
    return read_sending(TomlFile.parse(text.encode(), name="site.toml"), problems), problems


def test_given_settings_are_used_and_the_rest_has_defaults():
    text = '[adapters.mail]\nhost = "x"\n[adapters.mail.sending]\nworkers = 4\ndeadline = "30s"\n'
    found, problems = read(text)
    assert problems == []
    assert (found["mail"].workers, found["mail"].deadline_ms, found["mail"].batch) == (
        4,
        30_000,
        1_000,
    )


def test_the_site_takes_it_beside_the_adapters_own_settings(tmp_path):
    text = '[adapters.mail]\nhost = "x"\nsending = { workers = 2 }\n'
    file = TomlFile.parse(text.encode(), name="site.toml")
    declared, problems = communication_from_site(file, tmp_path)
    assert [problem for problem in problems if problem.severity == "error"] == []
    assert declared.sending["mail"].workers == 2


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("sending = 4", "site.wrong_type"),
        ("sending = { workers = 0 }", "site.out_of_range"),
        ("sending = { wrokers = 4 }", "site.unknown_key"),
        ('sending = { deadline = "0s" }', "site.bad_duration"),
        ('sending = { batch = "many" }', "site.wrong_type"),
    ],
)
def test_faults_are_named_at_their_place(line, code):
    _, problems = read(f"[adapters.mail]\n{line}\n")
    assert [problem.code for problem in problems] == [code]
    assert problems[0].line == 2
    assert problems[0].hint
