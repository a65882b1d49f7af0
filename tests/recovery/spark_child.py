"""The driver that test_spark_faults.py kills: live policies, export and silver of a site, in small
steps: `spark_child.py SITE CHECKPOINT [hold]`. With `hold` it waits in the middle of silver
until it is killed.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from rapport.pipeline.lake.silver import update_silver
from rapport.pipeline.running.jobs import export_step
from rapport.pipeline.session import running_spark
from rapport.pipeline.streaming.live_query import LiveSettings, run_live
from rapport.site.site import load_site
from support.servers.spark import TEST_SETTINGS

LIVE_STEP, SILVER_STEP = 4_000, 10_000


def hold(taken: int, everything: int) -> None:
    if 0 < taken < everything:
        threading.Event().wait()


def main(directory: Path, checkpoint: Path, *, holds: bool) -> None:
    site = load_site(directory)
    lake = site.data_directory / "lake"
    with running_spark(TEST_SETTINGS) as spark:
        run_live(
            spark,
            directory,
            checkpoint=checkpoint,
            once=True,
            settings=LiveSettings(buckets=2, most_rows=LIVE_STEP),
            stop=threading.Event(),
        )
        export_step(site, lake)
        progress = hold if holds else None
        update_silver(spark, lake, site.ontology, rows_per_step=SILVER_STEP, progress=progress)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), holds=sys.argv[3:] == ["hold"])
