"""The driver that test_spark_faults.py kills: live policies, export and silver of a site, in small
steps: `spark_child.py SITE CHECKPOINT`.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from rapport.pipeline.lake.silver import update_silver
from rapport.pipeline.live.run import LiveSettings, run_live
from rapport.pipeline.running.jobs import export_step
from rapport.pipeline.session import running_spark
from rapport.site.site import load_site
from rapport.testing.spark import TEST_SETTINGS

STEP = 4_000


def main(directory: Path, checkpoint: Path) -> None:
    site = load_site(directory)
    lake = site.data_directory / "lake"
    with running_spark(TEST_SETTINGS) as spark:
        run_live(
            spark,
            directory,
            checkpoint=checkpoint,
            once=True,
            settings=LiveSettings(buckets=2, most_rows=STEP),
            stop=threading.Event(),
        )
        export_step(site, lake)
        update_silver(spark, lake, site.ontology, rows_per_step=STEP)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
