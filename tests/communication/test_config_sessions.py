"""What a site says about logins and arrivals, and every fault in it at its place."""

from __future__ import annotations

import pytest

from rapport.communication.config import ArrivalConfig, arrivals_from_site
from rapport.kernel.toml import TomlFile

DAY, HOUR = 86_400_000, 3_600_000


def read(text: str):
    return arrivals_from_site(TomlFile.parse(text.encode(), name="site.toml"))


def test_a_site_that_says_nothing_gets_the_defaults():
    assert read("") == (ArrivalConfig(), [])


def test_every_setting_can_be_written():
    entrance, problems = read(
        """
        [sessions]
        lifetime = "1 hour"
        longest = "2 days"
        rotate = "1 day"
        memory_kib = 19456
        passes = 2
        lanes = 1

        [arriving]
        most_bytes = 5000
        rate = 0
        burst = 7
        unproven = "refuse"
        on_expired = "hold"
        hold = "10 min"
        most_held = 3
        most_held_bytes = 900
        """
    )
    assert problems == []
    assert (entrance.sessions.lifetime_ms, entrance.sessions.longest_ms) == (HOUR, 2 * DAY)
    assert entrance.passwords.memory_kib == 19_456
    assert (entrance.arriving.rate, entrance.arriving.unproven) == (0, "refuse")
    assert (entrance.arriving.on_expired, entrance.arriving.hold_ms) == ("hold", 600_000)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('[sessions]\nlifetme = "1 hour"', "site.unknown_key"),
        ('[sessions]\nlifetime = "soon"', "site.bad_duration"),
        ('[sessions]\nlifetime = "1s"', "site.bad_duration"),
        ('[sessions]\nlongest = "1 hour"', "sessions.shorter_than_a_token"),
        ("[sessions]\nmemory_kib = 64", "site.out_of_range"),
        ("[sessions]\npasses = 1", "site.out_of_range"),
        ('[arriving]\nunproven = "maybe"', "site.unknown_choice"),
        ('[arriving]\non_expired = "ignore"', "site.unknown_choice"),
        ("[arriving]\nmost_bytes = 50000000", "site.out_of_range"),
        ('[arriving]\nrate = "fast"', "site.wrong_type"),
    ],
)
def test_every_fault_is_reported_with_its_place(text, code):
    _entrance, [problem] = read(text)
    assert (problem.code, problem.line) == (code, 2)
