"""The archive for spark-submit runs a job without an installed package. [LK-7, LK-8]"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from rapport.channel.backends.local import open_embedded
from rapport.core.event import make_event
from rapport.kernel.clock import ManualClock
from rapport.lake.bronze import export_channels
from rapport.lake.places import Lake
from rapport.pipeline.package import build_package, needed_packages

CHECK = Path(__file__).parents[1] / "data" / "checks" / "small-policies"


def test_equal_sources_give_equal_archives_with_all_data_files(tmp_path: Path) -> None:
    first, second = build_package(tmp_path / "a"), build_package(tmp_path / "b")
    assert Path(first.archive).read_bytes() == Path(second.archive).read_bytes()
    names = zipfile.ZipFile(first.archive).namelist()
    assert "rapport/pipeline/submit.py" in names
    assert "rapport/py.typed" in names
    assert not [name for name in names if "__pycache__" in name]
    assert any(text.startswith("deltalake") for text in needed_packages())
    assert not any(text.startswith("pyspark") for text in needed_packages())


@pytest.mark.spark
@pytest.mark.slow
def test_spark_submit_runs_a_job_from_the_archive(tmp_path: Path, clock: ManualClock) -> None:
    site, lake = CHECK, tmp_path / "lake"

    async def fill() -> None:
        channels = open_embedded(tmp_path / "log", clock)
        events = [
            make_event(
                source="positions", id=str(n), type="person.position", time=clock.now_ms() + n,
                data={"key": "2", "value": [n, 5]},
            )
            for n in range(20)
        ]  # fmt: skip
        await channels.channel("events").append(events)
        await export_channels(channels, lake)
        await channels.close()

    asyncio.run(fill())
    made = build_package(tmp_path / "out")
    import pyspark

    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(submit), "--master", "local[1]", "--py-files", made.archive]
    # Only what makes a short job start sooner.
    command += ["--driver-java-options", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"]
    command += ["--conf", "spark.ui.enabled=false", made.entry]
    done = subprocess.run(
        [*command, "silver", "--site", str(site), "--lake", str(lake)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert done.returncode == 0, [one for one in done.stderr.splitlines() if " INFO " not in one]
    assert msgspec.json.decode(done.stdout.splitlines()[-1])["readings"] == 20
    assert Lake.at(lake).open("silver", "person.position").rows() == 20
