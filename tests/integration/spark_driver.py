"""A driver of Spark as a process of its own, for tests that kill things: `spark_driver.py SITE`.
Each line on stdin is a number of parts; the answer is lines with how far the replay is, and one
with what came of it.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import msgspec

from rapport.core.detection import detection_lines
from rapport.core.errors import RapportError
from rapport.pipeline.history.replay import replay_recorded
from rapport.pipeline.session import load_spark_settings, running_spark
from rapport.policy.replay.replay import recordings_of
from rapport.site.site import load_site
from support.servers.spark import TEST_SETTINGS


def say(*words: object) -> None:
    print(*words, flush=True)


def main(directory: Path) -> None:
    site = load_site(directory)
    quick = msgspec.structs.asdict(TEST_SETTINGS)
    settings = load_spark_settings(quick)  # the master by the variable of the environment
    with running_spark(settings) as spark:
        say("ready")
        for line in sys.stdin:
            try:
                found = replay_recorded(
                    spark,
                    site.ontology,
                    site.tables,
                    [compiled.plan for compiled in site.policies.values()],
                    recordings_of(site.ontology, site.directory),
                    lateness_ms=site.lateness_ms,
                    partitions=int(line),
                    progress=lambda rows: say("at", rows),
                )
            except RapportError as error:
                say("fault", error.code)
            else:
                say("found", hashlib.sha256(detection_lines(found.detections)).hexdigest())


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except RapportError as error:
        say("fault", error.code)
