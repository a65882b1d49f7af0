"""A run over several processes, really made: who gets which tests, in which order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.spreading import rank

CONFTEST = """
import json, os
import pytest
from support.spreading import LongestFirst

def pytest_configure(config):
    for name in ("spark", "slow"):
        config.addinivalue_line("markers", name)

@pytest.hookimpl(tryfirst=True)
def pytest_xdist_make_scheduler(config, log):
    return LongestFirst(config, log)

@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item):
    line = json.dumps([os.environ["PYTEST_XDIST_WORKER"], item.nodeid]) + "\\n"
    with open(os.environ["RAN"], "ab", buffering=0) as ran:
        ran.write(line.encode())
"""
MARKED = "import pytest\npytestmark = pytest.mark.{mark}\n"
TESTS = (
    "import pytest\n@pytest.mark.parametrize('n', range({count}))\ndef test_it(n):\n    {body}\n"
)

Ran = list[tuple[str, str, str]]
"""Worker, file and test, in the order in which they began."""


def run(directory: Path, files: dict[str, str], workers: int) -> tuple[int, Ran]:
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "pytest.ini").write_text("[pytest]\n")
    for name, text in files.items():
        (directory / name).write_text(text)
    record = directory / "ran"
    record.touch()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "xdist", "-n", str(workers), "--dist", "loadfile", str(directory)]
    known = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # Other plug-ins have no part in this, and take a second to load.
    known |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "RAN": str(record)}
    done = subprocess.run(command, cwd=directory, env=known, capture_output=True, check=False)
    told = [json.loads(line) for line in record.read_text().splitlines()]
    return done.returncode, [(who, *test.split("::")) for who, test in told]


def of_file(ran: Ran, file: str) -> list[tuple[str, str]]:
    return [(who, test) for who, name, test in ran if name == file]


def some_files(mark_of_z: str) -> dict[str, str]:
    """Quick files by name before slow ones, and Spark's last; each quick one of a single test."""
    quick = {f"test_a{n:02}.py": TESTS.format(count=1, body="pass") for n in range(12)}
    slow = MARKED.format(mark="slow") + TESTS.format(count=3, body="pass")
    last = MARKED.format(mark=mark_of_z) + TESTS.format(count=4, body="pass")
    return {**quick, "test_m.py": slow, "test_n.py": slow, "test_y.py": last, "test_z.py": last}


@pytest.mark.slow
def test_spark_has_a_worker_which_takes_other_tests_only_when_it_has_done_all_of_spark(
    tmp_path: Path,
) -> None:
    waits = "import time; time.sleep(0.2)"
    files = some_files("spark")
    files["test_z.py"] = MARKED.format(mark="spark") + TESTS.format(count=4, body=waits)
    files |= {f"test_b{n}.py": TESTS.format(count=4, body=waits) for n in range(4)}
    code, ran = run(tmp_path, files, 3)
    assert code == 0
    assert len({(file, test) for _, file, test in ran}) == len(ran) == 12 + 6 + 8 + 16
    spark = of_file(ran, "test_y.py") + of_file(ran, "test_z.py")
    (on_spark,) = {who for who, _ in spark}
    first = [file for who, file, _ in ran if who == on_spark][:8]
    assert first == ["test_y.py"] * 4 + ["test_z.py"] * 4
    assert len({who for who, _, _ in ran}) == 3


@pytest.mark.slow
def test_two_workers_keep_files_whole_and_begin_with_spark_and_slow_ones(tmp_path: Path) -> None:
    code, ran = run(tmp_path, some_files("spark"), 2)
    assert code == 0
    assert len(ran) == 12 + 6 + 8
    for files in (("test_m.py",), ("test_n.py",), ("test_y.py", "test_z.py")):
        assert len({who for who, file, _ in ran if file in files}) == 1
    for who in {who for who, _, _ in ran}:
        own = [rank(some_files("spark")[file]) for name, file, _ in ran if name == who]
        assert own == sorted(own)


@pytest.mark.slow
def test_a_worker_that_breaks_loses_one_test_and_holds_up_nobody(tmp_path: Path) -> None:
    breaks = TESTS.format(count=4, body="import os; n == 1 and os._exit(9)")
    broken = {"test_y.py": MARKED.format(mark="spark") + breaks}
    code, ran = run(tmp_path, some_files("spark") | broken, 3)
    assert code == 1
    assert len({(file, test) for _, file, test in ran}) == len(ran) == 12 + 6 + 8


@pytest.mark.slow
def test_tests_without_spark_use_every_worker_from_the_beginning(tmp_path: Path) -> None:
    waits = TESTS.format(count=2, body="import time; time.sleep(0.3)")
    code, ran = run(tmp_path, {f"test_{n}.py": waits for n in range(9)}, 3)
    assert code == 0
    assert len(ran) == 18
    assert len({who for who, _, _ in ran}) == 3


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("pytestmark = [pytest.mark.slow, pytest.mark.spark]", 0),
        ("@pytest.mark.slow\ndef test_it() -> None: ...", 1),
        ("def test_it() -> None: ...", 2),
    ],
    ids=["spark", "slow", "neither"],
)
def test_marks_say_when_a_file_begins(text: str, when: int) -> None:
    assert rank(text) == when
