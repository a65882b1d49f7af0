"""The lake asked through a Spark Connect server, by a client without a Java of its own. [PI-11]"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rapport.channel.backends.local import open_embedded
from rapport.core.event import make_event
from rapport.kernel.clock import ManualClock
from rapport.lake.bronze import export_channels
from rapport.site.site import load_site
from support.live_site import LiveSite
from support.servers.spark_cluster import ConnectServer

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark")]

CHECKS = Path(__file__).parent.parent / "data" / "checks"
BEGIN = 1_772_442_000_000
QUESTION = (
    "SELECT key, count(*) AS n, sum(x) AS x FROM person_position "
    "GROUP BY key ORDER BY key DESC LIMIT 5"
)


@pytest.fixture(scope="module")
def server() -> Iterator[ConnectServer]:
    with ConnectServer() as running:
        yield running


@pytest.fixture(scope="module")
def site(server: ConnectServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site with a lake of two hundred readings."""
    directory = tmp_path_factory.mktemp("site") / "site"
    shutil.copytree(CHECKS / "secure-building", directory)
    loaded = load_site(directory)
    lake = loaded.data_directory / "lake"
    events = [
        make_event(
            source="positions",
            id=str(number),
            type="person.position",
            subject=f"person/{number % 7}",
            time=BEGIN + number,
            data={"key": str(number % 7), "value": [number, 1]},
        )
        for number in range(200)
    ]

    async def fill() -> None:
        channels = open_embedded(loaded.data_directory / "log", ManualClock(BEGIN))
        await channels.channel("events").append(events)
        await export_channels(channels, lake)
        await channels.close()

    asyncio.run(fill())
    made = rapport("pipeline", "silver", "--site", str(directory), "--master", server.url)
    assert made.returncode == 0, made.stderr
    return directory


def rapport(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, where no Java can be found."""
    variables = {"PATH": str(Path(sys.executable).parent), "HOME": os.environ.get("HOME", "/")}
    return subprocess.run(
        [sys.executable, "-m", "rapport.cli.main", *arguments],
        capture_output=True,
        text=True,
        env=variables,
        timeout=180,
        check=False,
    )


def test_a_question_is_answered_by_the_server_as_by_duckdb(
    server: ConnectServer, site: Path
) -> None:
    asked = ("pipeline", "query", QUESTION, "--site", str(site), "--format", "csv")
    here = rapport(*asked, "--engine", "duckdb")
    there = rapport(*asked, "--engine", "spark", "--master", server.url)
    assert here.returncode == 0, here.stderr
    assert there.returncode == 0, there.stderr
    assert there.stdout == here.stdout
    assert there.stdout.count("\n") == 6


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("DROP VIEW person_position", "lake.not_a_question"),
        pytest.param(
            "SET spark.sql.shuffle.partitions = 7", "lake.bad_sql", marks=pytest.mark.long
        ),
        ("SELECT reflect('java.lang.System', 'nanoTime')", "lake.not_a_question"),
        pytest.param("SELECT * FROM persn_position", "lake.unknown_table", marks=pytest.mark.long),
    ],
)
def test_what_is_no_question_is_refused_there_too(
    server: ConnectServer, site: Path, sql: str, code: str
) -> None:
    asked = ("pipeline", "query", sql, "--site", str(site), "--engine", "spark")
    said = rapport(*asked, "--master", server.url)
    assert said.returncode == 2
    assert f"error[{code}]" in said.stderr
    assert said.stderr.count("\n") < 12, "a person reads this"


def test_the_report_is_made_by_the_server(server: ConnectServer, site: Path) -> None:
    said = rapport("pipeline", "report", "--site", str(site), "--master", server.url, "--json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["readings"] == 200


@pytest.mark.long
def test_a_replay_runs_on_the_server_with_the_same_result(
    server: ConnectServer, site: Path
) -> None:
    there = rapport("replay", "--site", str(site), "--engine", "spark", "--master", server.url)
    assert there.returncode == 0, there.stderr
    here = rapport("replay", "--site", str(site), "--engine", "local")
    assert here.stdout
    assert there.stdout == here.stdout


def test_a_server_that_is_not_there_is_told_at_once(site: Path) -> None:
    asked = ("pipeline", "query", QUESTION, "--site", str(site), "--engine", "spark")
    said = rapport(*asked, "--master", "sc://127.0.0.1:1")
    assert said.returncode == 1
    assert "error[spark.master_unreachable]" in said.stderr


LIVE_CHILD = """
import json, sys
from pathlib import Path
from rapport.pipeline.session import SparkSettings, is_connect, running_spark
from rapport.pipeline.streaming.live_query import LiveSettings, run_live

master, site, checkpoint = sys.argv[1:]
with running_spark(SparkSettings(master=master)) as spark:
    assert is_connect(spark)
    rows = spark.read.format("rapport").option("site", site).load()
    read = rows.where("type = 'person.position'").count()
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    how = LiveSettings(buckets=2)
    counts = run_live(spark, Path(site), checkpoint=Path(checkpoint), once=True, settings=how)
    assert spark.conf.get("spark.sql.shuffle.partitions") == partitions
    print(json.dumps([read, counts.reached, counts.detections]))
"""


def test_channels_are_read_and_policies_run_live_by_the_server(
    server: ConnectServer, tmp_path: Path
) -> None:
    place = LiveSite("small-policies", tmp_path)
    last = max(event.time for event in place.events)
    place.append("events", place.events, last)
    place.beat(last + 10_000_000)
    command = [sys.executable, "-c", LIVE_CHILD, server.url, place.directory, place.checkpoint]
    variables = {"PATH": str(Path(sys.executable).parent), "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        command, capture_output=True, text=True, env=variables, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    found = place.found()
    assert found == place.expected(place.readings, end=last + 10_000_000)
    assert json.loads(done.stdout) == [len(place.events), len(place.events), len(found)]
