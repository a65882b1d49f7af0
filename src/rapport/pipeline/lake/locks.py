"""Who may work on the lake: one job at a time; readers keep files from being moved away. [PI-3]

The locks go with the process, so a killed job leaves none behind.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rapport.channel.export.lake_export import take_lock
from rapport.channel.export.parquet_files import make_directory
from rapport.core.errors import Conflict, StoreUnavailable

JOB_RUNNING = "lake.job_running"
IN_USE = "lake.in_use"


@contextmanager
def working(lake: Path) -> Iterator[None]:
    """One job (silver, compaction, retention) works on the lake; raises Conflict for a second.

    Exports go on meanwhile: they only add files to bronze.
    """
    with _locked(lake, ".jobs.lock", fcntl.LOCK_EX, JOB_RUNNING, "another job works on"):
        yield


@contextmanager
def reading(lake: Path) -> Iterator[None]:
    """Files stay where they are while somebody reads: compaction and retention wait. For readers
    that list files first and open them later; others see old or new and need no lock. Where
    nothing can be written nothing is moved either, so no lock is needed.
    """
    if not os.access(lake, os.W_OK):
        yield
        return
    with _locked(lake, ".readers.lock", fcntl.LOCK_SH, IN_USE, "files are just being moved in"):
        yield


@contextmanager
def moving(lake: Path) -> Iterator[None]:
    """Nobody reads under `reading`, and no export runs; raises Conflict when somebody does."""
    with _locked(lake, ".readers.lock", fcntl.LOCK_EX, IN_USE, "somebody reads"):
        export = take_lock(lake)
        try:
            yield
        finally:
            os.close(export)


@contextmanager
def _locked(lake: Path, name: str, how: int, code: str, what: str) -> Iterator[None]:
    try:
        make_directory(lake)
        descriptor = os.open(lake / name, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreUnavailable(
            f"cannot use {lake} as a lake: {error.strerror}", code="lake.unavailable"
        ) from None
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Conflict(
            f"{what} {lake}", code=code, hint="it will be done soon; try again"
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)
