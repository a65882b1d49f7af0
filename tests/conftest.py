"""Fixtures for every test: a manual clock, the strict reading of `lacks` marks, which tests are not
fast, and how tests are spread over processes.
"""

from __future__ import annotations

import gc
import inspect
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import structlog
from blockbuster import BlockBuster
from hypothesis import HealthCheck, settings

from rapport.kernel.clock import ManualClock
from support.examples import FULL, PROFILE, examples
from support.unhurried import name_of, read_names, unhurried, write_names

_TESTS = str(Path(__file__).parent)
UNHURRIED = Path(__file__).with_name("unhurried.txt")

settings.register_profile(
    "default",
    deadline=None,
    max_examples=examples(FULL),
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
settings.register_profile("full", settings.get_profile("default"))
settings.register_profile("long", deadline=None, max_examples=2_000)
settings.load_profile(PROFILE)


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands at a fixed Monday morning until it is moved."""
    return ManualClock(1_772_442_000_000)


@pytest.fixture
def building_site(tmp_path: Path) -> Path:
    """The site of the secure building in `tmp_path/site`, to be changed at will: nobody is at the
    other end of its mails and phones, and answers may take an hour. Copies a few small files.
    """
    # Here, since it imports most of the product, and most tests need nothing of it.
    from rapport.scenarios.secure_building.building_play import prepare_site

    return prepare_site(
        tmp_path / "site", mail_port=9, phone_url="http://127.0.0.1:9/", answer_within="1h"
    )


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests see no RAPPORT_* variables of the person who runs them."""
    for name in [name for name in os.environ if name.startswith("RAPPORT_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session", autouse=True)
def _no_database_on_the_event_loop() -> Iterator[None]:
    """A call of ours that waits for a database, or sleeps, on an event loop fails its test: every
    endpoint of the node would wait with it. Files are left out: logs are written by threads, and
    reading a segment that the system has in memory is cheaper than handing it to one.
    """
    guard = BlockBuster("rapport", excluded_modules=["rapport.testing", "benchmarks", "support"])
    for name, function in list(guard.functions.items()):
        if not name.startswith(("sqlite3.", "time.")):
            del guard.functions[name]
            continue
        function.can_block_predicate = _a_test_waits
        for file, names in _MAY_BLOCK.items():
            function.can_block_in(file, names)
    guard.activate()
    yield
    guard.deactivate()


_MAY_BLOCK = {
    # A node and the blocking API open their channels before anything else runs on their loop.
    "rapport/node/wiring.py": {"make_node"},
    # A command reads a site's files on a loop of its own, where nothing else runs.
    "rapport/channel/backends/stores.py": {"open_channels", "open_reading", "read_interceptors"},
    "rapport/communication/api.py": {"_assembly"},
    # Memory channels have no threads; their records are in memory as well.
    "rapport/channel/log/channels.py": {"off_loop"},
    # A lone append is written where it is while the disk is fast: a thread would take longer. The
    # writer of memory channels keeps its index in memory.
    "rapport/channel/log/writer.py": {"_write_lone", "write"},
    # The unnamed database of large quarantines is never synced: it stays in memory.
    "rapport/mediation/quarantine/index.py": {"__init__", "_get", "_flush"},
}
"""Files and functions that may call a database on a loop, each with the reason."""


def _a_test_waits(*_args: Any, **_more: Any) -> bool:
    """Whether a test itself calls a function that waits: only it waits then. A coroutine of ours
    that a test awaits waits on the loop, as it would in a node.
    """
    frame: FrameType | None = sys._getframe(2)
    outermost = None
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_TESTS) or "/rapport/testing/" in name or "/benchmarks/" in name:
            return outermost is None or not outermost.f_code.co_flags & inspect.CO_COROUTINE
        if "/rapport/" in name:
            outermost = frame
        frame = frame.f_back
    return False


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """A command that sets how logs are written does so for itself, not for the next test."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests and all that they import stay until the end: nobody looks among them for
    what may go (a tenth of the time of all fast tests), neither while they are found nor later.
    What tests themselves leave is collected as ever.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`@pytest.mark.lacks("memory", reason=...)` is a strict expected failure for that back end
    only; who is on the list of those that take their time is marked so.
    """
    names = read_names(UNHURRIED)
    for item in items:
        if name_of(item.nodeid) in names:
            item.add_marker(pytest.mark.unhurried)
        callspec = getattr(item, "callspec", None)
        given = {str(value) for value in callspec.params.values()} if callspec else set()
        for mark in item.iter_markers("lacks"):
            if mark.args[0] in given:
                item.add_marker(pytest.mark.xfail(reason=mark.kwargs["reason"], strict=True))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-unhurried", action="store_true", help="List anew which tests take their time."
    )


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Writes the list of tests that took their time, if that was asked for."""
    if config.getoption("--rewrite-unhurried"):
        reports = [one for some in terminalreporter.stats.values() for one in some]
        took = [(one.nodeid, one.duration) for one in reports if isinstance(one, pytest.TestReport)]
        write_names(UNHURRIED, unhurried(took))


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`-n 4 --dist loadfile`: whole files, Spark beside the others, what takes long first."""
    if config.getvalue("dist") != "loadfile":
        return None
    from support.spreading import LongestFirst

    return LongestFirst(config, log)
