"""The oldest pyspark that is supported: a batch read, a history run and a live query. [LK-7]

Needs a virtual environment with that pyspark; makes one, which downloads about 400 MB:

    ./run test --long tests/integration/test_spark_oldest.py

or uses the one that `RAPPORT_OLDEST_PYSPARK` names (its Python, with pyspark installed).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from support.live_site import CHECKS, LiveSite

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.xdist_group("spark")]

OLDEST = "4.0.0"

PROGRAM = """
import json, sys
from pathlib import Path
import pyspark
from rapport.pipeline.session import SparkSettings, running_spark
from rapport.pipeline.streaming.live_query import LiveSettings, run_live

site, checkpoint = sys.argv[1:]
with running_spark(SparkSettings(master="local[2]", memory="512m")) as spark:
    rows = spark.read.format("rapport").option("site", site).load()
    read = rows.where("type = 'person.position' AND position <= 100").count()
    stream = spark.readStream.format("rapport").option("site", site).option("until", "end").load()
    copies = stream.where("position <= 50").selectExpr(
        "'copy' AS source", "id", "type", "timestamp_millis(time) AS time", "headers", "data")
    copying = copies.writeStream.format("rapport").option("site", site).option("channel", "copies")
    copying = copying.option("checkpointLocation", checkpoint + "-copies")
    copying.trigger(availableNow=True).start().awaitTermination()
    copied = spark.read.format("rapport").option("site", site).option("channels", "copies").load()
    counts = run_live(spark, Path(site), checkpoint=Path(checkpoint), once=True,
                      settings=LiveSettings(buckets=2))
    print(json.dumps([pyspark.__version__, read, copied.count(), counts.reached,
                      counts.detections]))
"""


@pytest.fixture(scope="module")
def oldest_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the oldest pyspark, and everything else from this environment."""
    given = os.environ.get("RAPPORT_OLDEST_PYSPARK")
    if given:
        python = Path(given)
    else:
        folder = tmp_path_factory.mktemp("oldest")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = folder / "bin" / "python"
        packages = ["setuptools", "wheel"], ["--no-build-isolation", f"pyspark=={OLDEST}"]
        for each in packages:
            subprocess.run([python, "-m", "pip", "install", "-q", *each], check=True)
    # Packages of its own come first on the path.
    own = sysconfig.get_path("purelib", vars={"base": str(python.parent.parent)})
    (Path(own) / "rapport-tests.pth").write_text(
        f"{sysconfig.get_path('purelib')}\n{Path(__file__).parents[2] / 'src'}\n"
    )
    return python


def test_a_batch_a_stream_and_live_policies_run(oldest_python: Path, tmp_path: Path) -> None:
    place = LiveSite("secure-building", tmp_path)
    last = max(event.time for event in place.events)
    place.append("events", place.events, last)
    place.beat(last + 10_000_000)
    done = subprocess.run(
        [oldest_python, "-c", PROGRAM, place.directory, place.checkpoint],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    found = place.found()
    assert found == place.expected(place.readings, end=last + 10_000_000)
    assert json.loads(done.stdout) == [OLDEST, 100, 50, 20_000, len(found)]
    copies = place.read("copies")
    assert [one.event.time for one in copies] == [event.time for event in place.events[:50]]


def test_history_gives_the_same_detections(oldest_python: Path, tmp_path: Path) -> None:
    site = shutil.copytree(CHECKS / "secure-building", tmp_path / "site")
    done = subprocess.run(
        [
            *(oldest_python, "-m", "rapport.cli.main", "replay", "--engine", "spark"),
            *("--site", str(site), "--master", "local[2]"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    assert done.stdout.encode() == (CHECKS / "secure-building" / "expected.jsonl").read_bytes()
