"""The pipeline's process, started and supervised by its node: restarted with growing pauses when it
ends. Spark itself is never loaded here. [PI-12, design 17]
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from rapport.core.errors import Conflict
from rapport.kernel.clock import Clock
from rapport.kernel.files import make_private_directory
from rapport.kernel.tasks import cancel_until_done
from rapport.kernel.telemetry import get_logger, logs_are_json
from rapport.site.pipeline import RunPlaces, is_held

_LOOK_EVERY_MS = 1_000
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 1_000, 60_000
_CALM_MS = 60_000
_END_SECONDS = 60.0
_log = get_logger(__name__)


class PipelineProcess:
    """Keeps one process running until it is stopped; belongs to one event loop.

    Somebody else's (started by hand, or left by a node that was killed) is let be. As long as
    `rapport pipeline stop` holds, none is started.
    """

    def __init__(
        self,
        places: RunPlaces,
        clock: Clock,
        command: Sequence[str],
        environment: dict[str, str] | None = None,
    ) -> None:
        """`environment`: variables of the process besides our own."""
        self._places, self._clock, self._command = places, clock, tuple(command)
        self._environment = environment or {}
        self.starts = 0
        self.problem = ""
        """Why it is down though it should run; "" while all is well."""

    async def run(self) -> None:
        """Until cancelled; the process ends with it."""
        held = self._watch()
        try:
            pause_ms = _FIRST_PAUSE_MS
            while True:
                await self._until_wanted()
                began_ns = self._clock.steady_ns()
                code = await self._run_once()
                if self._places.stop.exists() or code == 0:
                    self.problem, pause_ms = "", _FIRST_PAUSE_MS
                    await self._clock.sleep(_LOOK_EVERY_MS)
                    continue
                lasted_ms = (self._clock.steady_ns() - began_ns) // 1_000_000
                pause_ms = _FIRST_PAUSE_MS if lasted_ms > _CALM_MS else pause_ms
                self.problem = f"the pipeline ended with code {code}"
                _log.error("pipeline ended", code=code, again_in_ms=pause_ms)
                await self._clock.sleep(pause_ms)
                pause_ms = min(2 * pause_ms, _LONGEST_PAUSE_MS)
        finally:
            os.close(held)

    def _watch(self) -> int:
        """Takes the lock of the supervising node; raises Conflict when another one holds it."""
        make_private_directory(self._places.directory)
        held = os.open(self._places.watched, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            raise Conflict("another node watches the pipeline", code="pipeline.watched") from None
        return held

    async def _until_wanted(self) -> None:
        while self._places.stop.exists() or is_held(self._places.lock):
            await self._clock.sleep(_LOOK_EVERY_MS)

    async def _run_once(self) -> int:
        """Starts the process and waits for its end."""
        json = ("--log-json",) if logs_are_json() else ()
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *json,
            env={**os.environ, **self._environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            # Ctrl-C at the node's terminal is passed on by the node, once.
            start_new_session=True,
        )
        self.starts += 1
        _log.info("pipeline started", process=process.pid)
        waiting = asyncio.ensure_future(process.wait())
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            await self._end(process, waiting)
            raise

    async def _end(self, process: asyncio.subprocess.Process, waiting: asyncio.Future[int]) -> None:
        """It may finish what it is doing; after a minute it is killed, which costs nothing but
        that.
        """
        for ask in (process.terminate, process.kill):
            with suppress(ProcessLookupError):
                ask()
            done, _ = await asyncio.wait({waiting}, timeout=_END_SECONDS)
            if done:
                return
        await cancel_until_done(waiting)


def pipeline_command(site: str) -> tuple[str, ...]:
    """How the process of a site is started."""
    return (sys.executable, "-m", "rapport.cli.main", "pipeline", "run", "--site", site)
