"""One process runs a site's pipeline: a lock that goes with it, what it says about itself, and how
it is asked to end. [PI-12]
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from rapport.core.errors import Conflict, StoreUnavailable
from rapport.kernel.files import make_private_directory, write_atomically
from rapport.site.pipeline import RunPlaces, RunStatus, is_held, read_status

_TRIES, _BETWEEN_SECONDS = 10, 0.1


@contextmanager
def only_one(places: RunPlaces) -> Iterator[None]:
    """For the time of a block this process runs the pipeline; raises Conflict (`pipeline.running`)
    while another does.
    """
    descriptor = _opened(places)
    try:
        if not _taken(descriptor):
            told = read_status(places)
            who = f" (process {told.pid})" if told is not None else ""
            raise Conflict(
                f"the pipeline of this site runs already{who}",
                code="pipeline.running",
                hint="see it with: rapport pipeline status; end it with: rapport pipeline stop",
            )
        yield
    finally:
        os.close(descriptor)


def say(places: RunPlaces, status: RunStatus) -> None:
    """Puts what the process says about itself where others read it: whole, or as it was before."""
    write_atomically(places.status, msgspec.json.encode(status))


def live_reached(places: RunPlaces) -> int:
    """How far live policies were when a process last said so; 0 for a new checkpoint."""
    told = read_status(places)
    if told is None or not places.live_checkpoint.exists():
        return 0
    return max((one.reached for one in told.jobs if one.job == "live"), default=0)


def ask_to_stop(places: RunPlaces) -> bool:
    """Asks the process to end after what it is doing, and not to be started again by the node;
    whether one runs. Raises StoreUnavailable when that cannot be written.
    """
    try:
        make_private_directory(places.directory)
        write_atomically(places.stop, b"")
    except OSError as error:
        raise _refused(places, error) from None
    return is_held(places.lock)


def let_go_on(places: RunPlaces) -> bool:
    """Takes back that it should be stopped; whether it was."""
    try:
        places.stop.unlink()
    except FileNotFoundError:
        return False
    return True


def wait_until(is_so: Callable[[], bool], seconds: float) -> bool:
    """Looks now and then until it is so, at most so long; whether it is."""
    never = threading.Event()
    for _try in range(int(seconds / _BETWEEN_SECONDS)):
        if is_so():
            return True
        never.wait(_BETWEEN_SECONDS)
    return is_so()


def _opened(places: RunPlaces) -> int:
    try:
        make_private_directory(places.directory)
        return os.open(places.lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _refused(places, error) from None


def _refused(places: RunPlaces, error: OSError) -> StoreUnavailable:
    return StoreUnavailable(
        f"cannot write to {places.directory}: {error.strerror}", code="pipeline.unavailable"
    )


def _taken(descriptor: int) -> bool:
    """More than one try: somebody may just be looking whether it is held."""

    def take() -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    return wait_until(take, _TRIES * _BETWEEN_SECONDS)
