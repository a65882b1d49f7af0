"""A node of its own for a benchmark of doors: a process with a fresh site. [CH-12]"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rapport.scenarios.secure_building.building_play import prepare_site
from support.processes.node import NodeProcess

Address = tuple[str, int]


@contextmanager
def fresh_node() -> Iterator[Address]:
    """Where it listens; node and site are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="rapport-bench-") as directory:
        site = prepare_site(
            Path(directory) / "site",
            mail_port=9,
            phone_url="http://127.0.0.1:9/x",
            answer_within="60s",
        )
        with NodeProcess(site) as node:
            node.start()
            assert node.doors is not None
            yield node.doors
