"""`[engines]` of a site: one engine unless it says several, then on shared stores. [CO-17]"""

from __future__ import annotations

import pytest

from rapport.communication.cluster_leases import ShareSettings
from rapport.communication.config import engines_from_site
from rapport.kernel.toml import TomlFile

SHARED = '[channels]\nlog = "nats"\nrecords = "postgres"\nnats = "env:N"\npostgres = "env:P"\n'


def read(text):
    settings, problems = engines_from_site(TomlFile.parse(text.encode(), name="site.toml"))
    return settings, [problem.code for problem in problems]


def test_a_site_that_says_nothing_has_one_engine():
    assert read("") == (None, [])
    assert read('[engines]\nlease = "9 s"\n') == (None, [])


def test_several_engines_share_channels_and_records():
    assert read(f"{SHARED}[engines]\nseveral = true\n") == (ShareSettings(), [])
    said = f'{SHARED}[engines]\nseveral = true\nlease = "3 s"\nshares = 4\n'
    assert read(said) == (ShareSettings(count=4, lease_ms=3_000), [])


def test_what_only_one_process_can_open_is_refused():
    assert read("[engines]\nseveral = true\n")[1] == [
        "engines.records_not_shared",
        "engines.channels_not_shared",
    ]
    one_apart = f'{SHARED}[channels.input]\nlog = "embedded"\n[engines]\nseveral = true\n'
    assert read(one_apart)[1] == ["engines.channels_not_shared"]


@pytest.mark.parametrize("line", ['lease = "10 ms"', "shares = 0", "shares = 1000", "severel = 1"])
def test_what_makes_no_sense_is_a_problem(line):
    assert len(read(f"{SHARED}[engines]\nseveral = true\n{line}\n")[1]) == 1
