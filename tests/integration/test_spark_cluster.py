"""A real master and workers on loopback: the same bytes as without, also when parts of it are
killed in the middle. [PI-10, PI-11]
"""

from __future__ import annotations

import hashlib
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pytest

from support.servers.spark_cluster import SparkCluster, descendants, kill_process

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]

CHECKS = Path(__file__).parent.parent / "data" / "checks"
DRIVER = Path(__file__).with_name("spark_driver.py")
PARTS = 30
PATIENCE_SECONDS = 180


class Driver:
    """The process in which a replay is driven."""

    def __init__(self, master: str, site: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(DRIVER), str(site)],
            env={**os.environ, "RAPPORT_SPARK_MASTER": master},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.told: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._listen, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())
        self._lines.put("ended")

    def _listen(self) -> None:
        assert self.process.stderr is not None
        self.told.extend(self.process.stderr)

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pid in [*descendants(self.process.pid), self.process.pid]:
            kill_process(pid)
        self.process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def start(self, parts: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{parts}\n")
        self.process.stdin.flush()

    def hear(self, *words: str) -> str:
        """The next line that begins with one of the words; others are passed over."""
        while True:
            try:
                line = self._lines.get(timeout=PATIENCE_SECONDS)
            except queue.Empty:
                raise AssertionError("".join(self.told[-30:])) from None
            if line.split(" ")[0] in words:
                return line
            assert line != "ended", "".join(self.told[-30:])


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    with SparkCluster() as running:
        yield running


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(CHECKS / "secure-building", tmp_path_factory.mktemp("site") / "site")


@pytest.fixture(scope="module")
def driver(cluster: SparkCluster, site: Path) -> Iterator[Driver]:
    with Driver(cluster.url, site) as running:
        running.hear("ready")
        yield running


@pytest.fixture(scope="module")
def expected(site: Path) -> str:
    return f"found {hashlib.sha256((site / 'expected.jsonl').read_bytes()).hexdigest()}"


def test_a_replay_on_the_cluster_gives_the_expected_bytes(
    cluster: SparkCluster, driver: Driver, expected: str
) -> None:
    driver.start(4)
    assert driver.hear("found", "fault") == expected
    assert len(cluster.executors()) == 2


@pytest.mark.long
def test_a_python_worker_killed_in_the_middle_changes_nothing(
    cluster: SparkCluster, driver: Driver, expected: str
) -> None:
    driver.start(PARTS)
    driver.hear("at")
    victims = cluster.python_workers()
    assert victims
    for pid in victims:
        kill_process(pid)
    assert driver.hear("found", "fault") == expected


def test_an_executor_killed_in_the_middle_changes_nothing(
    cluster: SparkCluster, driver: Driver, expected: str
) -> None:
    driver.start(PARTS)
    driver.hear("at")
    kill_process(cluster.executors()[0])
    assert driver.hear("found", "fault") == expected


@pytest.mark.long
def test_a_worker_killed_in_the_middle_changes_nothing(
    cluster: SparkCluster, driver: Driver, expected: str
) -> None:
    driver.start(PARTS)
    driver.hear("at")
    cluster.workers.pop().kill()
    assert driver.hear("found", "fault") == expected


@pytest.mark.long
def test_a_master_that_goes_away_during_a_job_is_told(
    cluster: SparkCluster, driver: Driver
) -> None:
    """The last one: nothing of the cluster is left."""
    driver.start(PARTS)
    driver.hear("at")
    assert cluster.master is not None
    for process in (cluster.master, *cluster.workers):
        process.kill()
    cluster.workers.clear()
    assert driver.hear("found", "fault") in ("fault spark.cluster_lost", "fault spark.gone")
