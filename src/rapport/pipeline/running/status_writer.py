"""What the process says about itself, now and then; a full disk keeps it from nothing else.
[PI-12]
"""

from __future__ import annotations

import threading

from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.pipeline.running.run_lock import live_reached, say
from rapport.site.pipeline import RunPlaces, RunStatus, State

_log = get_logger(__name__)


class StatusWriter:
    """Writes the status; several threads may."""

    def __init__(self, places: RunPlaces, status: RunStatus, clock: Clock) -> None:
        self.places, self.status, self._clock = places, status, clock
        self._one = threading.Lock()
        self._refused = ""
        self.reached = live_reached(places)
        """How far live policies were before."""

    def say(self, state: State | None = None) -> None:
        """The status as it is now, in this state. What cannot be written is told once, and said
        the next time.
        """
        with self._one:
            if state is not None and state != self.status.state:
                self.status.state = state
                _log.info("pipeline", state=state, site=self.status.site, spark=self.status.master)
            self.status.updated = self._clock.now_ms()
            try:
                say(self.places, self.status)
            except OSError as error:
                why = error.strerror or str(error)
                if why != self._refused:
                    _log.warning("cannot write the status", reason=why)
                self._refused = why
            else:
                self._refused = ""
