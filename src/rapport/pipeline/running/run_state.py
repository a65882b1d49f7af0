"""The state of a site's pipeline between processes: the lock of the one that runs, the status that
it writes, and how it is asked to end. [PI-12]
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from rapport.core.errors import Conflict, RapportError, StoreUnavailable
from rapport.kernel.clock import Clock
from rapport.kernel.files import make_private_directory, write_atomically
from rapport.kernel.telemetry import get_logger
from rapport.site.pipeline import RunPlaces, RunStatus, State, is_held, read_status

_TRIES, _BETWEEN_SECONDS = 10, 0.1
_log = get_logger(__name__)


@contextmanager
def hold_pipeline(places: RunPlaces) -> Iterator[None]:
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


def write_status(places: RunPlaces, status: RunStatus) -> None:
    """Writes the status where others read it: whole, or as it was before."""
    write_atomically(places.status, msgspec.json.encode(status))


class StatusWriter:
    """Writes the status now and then; several threads may. A full disk keeps nothing else up."""

    def __init__(self, places: RunPlaces, status: RunStatus, clock: Clock) -> None:
        self.places, self.status, self._clock = places, status, clock
        self._one = threading.Lock()
        self._refused = ""
        self.reached = live_reached(places)
        """How far live policies were before."""

    def write(self, state: State | None = None) -> None:
        """The status as it is now, in this state. What cannot be written is logged once, and
        written the next time.
        """
        with self._one:
            if state is not None and state != self.status.state:
                self.status.state = state
                _log.info("pipeline", state=state, site=self.status.site, spark=self.status.master)
            self.status.updated = self._clock.now_ms()
            try:
                write_status(self.places, self.status)
            except OSError as error:
                why = error.strerror or str(error)
                if why != self._refused:
                    _log.warning("cannot write the status", reason=why)
                self._refused = why
            else:
                self._refused = ""


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


def allow_start(places: RunPlaces) -> bool:
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


def error_of(error: Exception, doing: str) -> RapportError:
    """Any exception of a job as one of our errors, so that none ends the other jobs."""
    if isinstance(error, RapportError):
        return error
    if isinstance(error, OSError):
        return StoreUnavailable(f"{doing}: {error.strerror or error}", code="pipeline.unavailable")
    return RapportError(f"{doing}: {type(error).__name__}: {error}", code="pipeline.job_failed")
