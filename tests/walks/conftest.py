"""Every walk on both kinds of site: all embedded, and logs in NATS with records in PostgreSQL. Most
of them run on one kind in every run, and on both with `--long`."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rapport.scenarios.secure_building import building_play
from support.servers.nats import nats_server  # noqa: F401
from support.servers.postgres import postgres_server  # noqa: F401
from support.servers.spark import spark  # noqa: F401

ELSEWHERE = """
[channels]
log = "nats"
nats = "env:WALK_NATS"
records = "postgres"
postgres = "env:WALK_POSTGRES"
"""
_walks = itertools.count(1)


ELSEWHERE_EVERY_DAY = (
    "test_nobody_answers",
    "test_held_back_and_released",
    "test_history_wakes_nobody",
)
"""Walks that rest most on what logs and records keep: these run on NATS and PostgreSQL in every
run, the others embedded."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each walk runs on one kind of site in every run, and on both with `--long`."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        back_end = callspec.params.get("back_end") if callspec else None
        is_every_day = (back_end == "embedded") != (item.path.stem in ELSEWHERE_EVERY_DAY)
        if back_end is not None and not is_every_day:
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="module", params=["embedded", "nats and postgres"], autouse=True)
def back_end(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The site of the scenes says where its channels are kept."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "embedded":
            site: Path = tmp_path_factory.mktemp("elsewhere") / "site"
            shutil.copytree(building_play.SITE, site)
            with (site / "site.toml").open("a", encoding="utf-8") as file:
                file.write(ELSEWHERE)
            patch.setattr(building_play, "SITE", site)
            _take_new_places(request, patch)
        yield request.param


@pytest.fixture
def elsewhere(back_end: str) -> str:
    """What a site of one's own says about where its channels are kept."""
    return "" if back_end == "embedded" else ELSEWHERE


@pytest.fixture(autouse=True)
def _places_of_its_own(
    request: pytest.FixtureRequest, back_end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests do not share what they keep, except those that look at one and the same walk."""
    if back_end != "embedded" and "walk" not in request.fixturenames:
        _take_new_places(request, monkeypatch)


def _take_new_places(request: pytest.FixtureRequest, patch: pytest.MonkeyPatch) -> None:
    name = f"walk{next(_walks)}p{os.getpid()}"
    nats = request.getfixturevalue("nats_server")
    postgres = request.getfixturevalue("postgres_server")
    patch.setenv("WALK_NATS", f"{nats.url}/{name}")
    patch.setenv("WALK_POSTGRES", f"{postgres.dsn()}#{name}")
