"""Back-tests and reports that people start from the console: child processes of the node, one at a
time, at low priority, with results that stay. [CN-13]

A run is `rapport backtest` or `rapport pipeline report` with arguments that were checked here; no
shell is involved. Its process leads a group of its own, which a cancellation ends. Each run has a
directory below `history/` of the data directory: what it is and how far it got (`run.json`), its
result (`result.json`) and its page (`report.html`). A run that was not over when the node died is
found as broken off, and its process, which holds a lock, is ended then.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import shutil
import signal
import sys
import zoneinfo
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from rapport.core.errors import InvalidInput, Problem, TooFast, UnknownName
from rapport.core.times import format_time
from rapport.kernel.clock import Clock
from rapport.kernel.files import is_file, make_private_directory, write_atomically
from rapport.kernel.progress import PROGRESS_LINES, Progress, read_progress
from rapport.kernel.tasks import cancel_until_done, run_blocking
from rapport.kernel.telemetry import get_logger
from rapport.site.pipeline import is_held

RunKind = Literal["backtest", "report"]
RunState = Literal["waiting", "running", "done", "failed", "cancelled", "broken off"]
HistorySource = Literal["log", "lake", "files"]
Engine = Literal["local", "spark"]
OVER: tuple[RunState, ...] = ("done", "failed", "cancelled", "broken off")
MOST_WAITING = 5
MOST_KEPT = 50
MOST_RESULT_BYTES = 16 * 1024 * 1024
_POLICY = re.compile(r"\w[\w-]{0,99}(@[0-9a-z]{1,64})?", re.ASCII)
_LAST_TIME = 253_402_300_799_999
_LAST_LINES = 40
_LONGEST_LINE = 64 * 1024
_LOWEST_PRIORITY = 19
_END_SECONDS = 10.0
_RUN, _RESULT, _REPORT, _LOCK = "run.json", "result.json", "report.html", "run.lock"
_log = get_logger(__name__)


class HistoryRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be run."""

    kind: RunKind = "backtest"
    policy: str = ""
    """A policy's name, or NAME@VERSION; of a back-test."""
    compare: str = ""
    """Another one over the same history; empty: none."""
    history: HistorySource = "log"
    """`log`: the lake, after the newest of the log were appended to it; `lake`: as it is; `files`:
    recorded files of a source.
    """
    source: str = ""
    """Whose recorded files."""
    since: int | None = None
    until: int | None = None
    """The period in milliseconds, `until` left out; None: all."""
    engine: Engine = "local"
    zone: str = "UTC"
    """Of the days that are counted."""


class HistoryRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run and how far it is."""

    id: str
    request: HistoryRequest
    by: str
    created: int
    state: RunState = "waiting"
    began: int = 0
    ended: int = 0
    """0: not yet."""
    progress: Progress = Progress()
    message: str = ""
    """Why it failed, in the command's own words."""
    has_result: bool = False
    has_report: bool = False


class MostFrequent(msgspec.Struct, frozen=True, kw_only=True):
    """Identities that stand most often under an alias of a policy."""

    alias: str
    top: list[tuple[str, int]]
    others: int = 0


class EpisodeTotals(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how long a situation lasted."""

    episodes: int
    open: int
    total_ms: int
    longest_ms: int


class VersionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one version of a policy found."""

    label: str
    version: str
    detections: int
    days: dict[str, int]
    """Days with at least one."""
    who: list[MostFrequent] = []
    undecided: int = 0
    suppressed: int | None = 0
    text: str = ""
    episodes: EpisodeTotals | None = None


class FoundMoment(msgspec.Struct, frozen=True, kw_only=True):
    """When a policy held, and for which things."""

    time: int
    bindings: dict[str, str]


class FoundExample(msgspec.Struct, frozen=True, kw_only=True):
    """One finding; `lasted_ms` of a situation."""

    detection: FoundMoment
    found_by: Literal["first", "second"] = "first"
    lasted_ms: int | None = None
    is_open: bool = False


class VersionDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What two versions found over the same history."""

    both: int
    only_first: int
    only_second: int
    days: dict[str, tuple[int, int, int]]
    """Per day: both, only the first, only the second."""
    examples: list[FoundExample] = []


class HistoryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a back-test, as `rapport backtest --json` prints it."""

    policy: str
    history: str
    engine: str
    zone: str
    events: int
    first: int | None
    last: int | None
    late: int | None
    tallies: list[VersionResult]
    examples: list[FoundExample] = []
    comparison: VersionDifference | None = None
    problems: list[Problem] = []
    seconds: float = 0.0


class HistoryRuns:
    """The runs of one site. All calls belong to one event loop."""

    def __init__(
        self,
        directory: Path,
        site: Path,
        clock: Clock,
        *,
        check_policy: Callable[[str], object],
        recordings: Callable[[], Mapping[str, str]],
        command: Sequence[str] = (sys.executable, "-m", "rapport.cli.main"),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`directory` keeps the runs, `site` is the site's; `check_policy` raises for an unknown
        name, `recordings` are the recorded files by source; `environment`: variables of the
        processes besides our own.
        """
        self._directory, self._site, self._clock = directory, site, clock
        self._check_policy, self.recordings = check_policy, recordings
        self._command = tuple(command)
        self._environment = {**os.environ, **(environment or {}), PROGRESS_LINES: "1"}
        self._runs: dict[str, HistoryRun] = {}
        self._arrived, self._stop = asyncio.Event(), asyncio.Event()
        self._running = ""

    async def open(self) -> None:
        """Reads the runs of before; those that were not over are broken off."""
        found = await run_blocking(self._read)
        self._runs = {one.id: one for one in found}
        for one in found:
            if one.state not in OVER:
                await self._keep(one, state="broken off", ended=self._clock.now_ms())

    def _read(self) -> list[HistoryRun]:
        found = []
        for path in sorted(self._directory.glob(f"*/{_RUN}")):
            try:
                found.append(msgspec.json.decode(path.read_bytes(), type=HistoryRun))
            except (OSError, msgspec.MsgspecError) as error:
                _log.warning("a run cannot be read", run=path.parent.name, why=str(error))
        lock = self._directory / _LOCK
        if is_held(lock):  # by the process whose number it contains, left by a node that was killed
            with suppress(OSError, ValueError):
                left = int(lock.read_text())
                os.killpg(left, signal.SIGKILL)
                _log.warning("a run of a former node was ended", process=left)
        return found

    def runs(self) -> list[HistoryRun]:
        return sorted(self._runs.values(), key=lambda one: one.id, reverse=True)

    def get(self, id: str) -> HistoryRun:
        if id not in self._runs:
            raise UnknownName("run", id, [], code="history.unknown_run")
        return self._runs[id]

    async def result(self, id: str) -> HistoryResult | None:
        """The result of a back-test; None as long as there is none."""
        if not self.get(id).has_result:
            return None
        return await run_blocking(partial(_read_result, self._of(id, _RESULT)))

    async def report(self, id: str) -> bytes:
        """The page that the run wrote; raises UnknownName when there is none."""
        if not self.get(id).has_report:
            raise UnknownName("report of run", id, [], code="history.no_report")
        return await run_blocking(self._of(id, _REPORT).read_bytes)

    async def start(self, id: str, request: HistoryRequest, by: str) -> HistoryRun:
        """Puts a run into the queue; it is on disk when this returns.

        Raises InvalidInput or UnknownName for a request that cannot be run, TooFast for a full
        queue.
        """
        self._check(request)
        waiting = sum(one.state == "waiting" for one in self._runs.values())
        if waiting >= MOST_WAITING:
            raise TooFast(
                f"{waiting} runs wait already",
                code="history.queue_full",
                hint="wait until one of them has ended, or cancel one",
            )
        run = HistoryRun(id=id, request=request, by=by, created=self._clock.now_ms())
        await self._keep(run)
        over = [one.id for one in self.runs() if one.state in OVER]
        for old in over[MOST_KEPT:]:
            await self._remove(old)
        self._arrived.set()
        return run

    def _check(self, request: HistoryRequest) -> None:
        begin, end = request.since, request.until
        if begin is not None and end is not None and begin >= end:
            raise _wrong("the period ends before it begins", "since is the earlier of the two")
        for time in (begin, end):
            if time is not None and not 0 <= time <= _LAST_TIME:
                raise _wrong("the period is not in milliseconds", "such as 1767225600000")
        try:
            zoneinfo.ZoneInfo(request.zone)
        except (ValueError, zoneinfo.ZoneInfoNotFoundError, OSError):
            raise _wrong(f"{request.zone[:80]!r} is no time zone", "such as UTC") from None
        if request.kind == "report":
            return
        for policy in (request.policy, *((request.compare,) if request.compare else ())):
            if not _POLICY.fullmatch(policy):
                raise _wrong(
                    f"{policy[:80]!r} cannot be the name of a policy", "NAME or NAME@VERSION"
                )
            self._check_policy(policy.partition("@")[0])
        if request.history == "files" and request.source not in self.recordings():
            raise UnknownName(
                "source with recorded files",
                request.source,
                list(self.recordings()),
                code="history.no_files",
            )

    async def cancel(self, id: str) -> HistoryRun:
        """Ends a run that waits or runs; removes one that is over."""
        run = self.get(id)
        if run.state in OVER:
            await self._remove(id)
        elif id == self._running:
            self._stop.set()
        else:
            run = await self._keep(run, state="cancelled", ended=self._clock.now_ms())
        return run

    async def run(self) -> None:
        """Carries out what waits, oldest first, until cancelled; then its process is ended."""
        while True:
            waiting = [one for one in reversed(self.runs()) if one.state == "waiting"]
            if waiting:
                await self._carry_out(waiting[0])
            else:
                self._arrived.clear()
                await self._arrived.wait()

    async def _carry_out(self, run: HistoryRun) -> None:
        self._stop.clear()
        self._running = run.id
        try:
            run = await self._keep(run, state="running", began=self._clock.now_ms())
            lock = await run_blocking(self._lock)
            try:
                message = ""
                for command in self._commands(run):
                    message = await self._process(run.id, command, lock)
                    if message and not self._stop.is_set():
                        _log.info("a run failed", run=run.id, why=message)
                        break
                await self._close(run.id, message)
            finally:
                os.close(lock)
        finally:
            self._running = ""

    async def _close(self, id: str, message: str) -> None:
        """Notes how a run ended. A back-test that could not read some rows has a result all the
        same.
        """
        report = self._of(id, _REPORT)
        has_report = await run_blocking(partial(is_file, report))
        has_result = False
        if not self._stop.is_set() and self.get(id).request.kind == "backtest":
            try:
                has_result = bool(await run_blocking(partial(_read_result, self._of(id, _RESULT))))
            except (InvalidInput, OSError) as error:
                message = message or str(error)
        elif not self._stop.is_set() and not has_report:
            message = message or "the command wrote no page"
        is_done = has_result if self.get(id).request.kind == "backtest" else not message
        state: RunState = "cancelled" if self._stop.is_set() else "done" if is_done else "failed"
        await self._keep(
            self.get(id),
            state=state,
            ended=self._clock.now_ms(),
            message="" if state == "cancelled" else message,
            has_result=has_result,
            has_report=has_report and state == "done",
        )

    def _lock(self) -> int:
        """The lock that the processes of a run inherit: held as long as one of them lives."""
        path = self._directory / _LOCK
        held = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(held, fcntl.LOCK_EX)
        return held

    def _commands(self, run: HistoryRun) -> Iterator[tuple[str, ...]]:
        """What is to be called, one after the other."""
        request, site = run.request, ("--site", str(self._site))
        page = str(self._of(run.id, _REPORT))
        if request.kind == "report":
            yield (*self._command, "pipeline", "report", *site, "--html", page, "--json")
            return
        if request.history == "log":
            yield (*self._command, "pipeline", "export", *site)
        options = ["--json", "--report", page, "--engine", request.engine, "--zone", request.zone]
        if request.history == "files":
            path = self._site / self.recordings()[request.source]
            options += ["--history", f"{request.source}={path}"]
        else:
            options += ["--history", str(self._directory.parent / "lake")]
        if request.compare:
            options += ["--compare", request.compare]
        if request.since is not None:
            options += ["--since", format_time(request.since)]
        if request.until is not None:
            options += ["--until", format_time(request.until)]
        yield (*self._command, "backtest", request.policy, *site, *options)

    async def _process(self, id: str, command: Sequence[str], lock: int) -> str:
        """Runs a command to its end, or to a cancellation; returns why it failed, else "". Its
        output becomes the result.
        """
        output = await run_blocking(partial(_new_file, self._of(id, _RESULT)))
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(lock,),
                start_new_session=True,
            )
        finally:
            os.close(output)
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _LOWEST_PRIORITY)
        await run_blocking(partial(_note_process, lock, process.pid))
        following = asyncio.ensure_future(self._follow(id, process))
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({following, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                await _end_group(process, following)
            lines = await following
        except asyncio.CancelledError:
            await asyncio.shield(_end_group(process, following))
            raise
        finally:
            await cancel_until_done(stopping)
        if process.returncode == 0:
            return ""
        return "\n".join(lines) or f"the command ended with code {process.returncode}"

    async def _follow(self, id: str, process: asyncio.subprocess.Process) -> list[str]:
        """Notes the progress until the process has ended; returns the last other lines."""
        assert process.stderr is not None
        lines: deque[str] = deque(maxlen=_LAST_LINES)
        rest = b""
        while chunk := await process.stderr.read(_LONGEST_LINE):
            *whole, rest = (rest + chunk).split(b"\n")
            rest = rest[-_LONGEST_LINE:]
            for line in whole:
                found = read_progress(line)
                if found is None:
                    lines.append(line.decode("utf-8", "replace")[:_LONGEST_LINE])
                else:
                    self._note_progress(id, found)
        await process.wait()
        return [line for line in lines if line.strip()]

    def _note_progress(self, id: str, found: Progress) -> None:
        run = self._runs[id]
        address = found.spark_ui or run.progress.spark_ui
        progress = msgspec.structs.replace(found, spark_ui=address)
        self._runs[id] = msgspec.structs.replace(run, progress=progress)

    def _of(self, id: str, name: str) -> Path:
        return self._directory / id / name

    async def _keep(self, run: HistoryRun, **changes: Any) -> HistoryRun:
        kept = msgspec.structs.replace(run, **changes)
        self._runs[run.id] = kept
        await run_blocking(partial(_write_run, self._of(run.id, _RUN), kept))
        return kept

    async def _remove(self, id: str) -> None:
        del self._runs[id]
        await run_blocking(partial(shutil.rmtree, self._directory / id, ignore_errors=True))


def _wrong(message: str, hint: str) -> InvalidInput:
    return InvalidInput(message, code="history.bad_request", hint=hint)


def _write_run(path: Path, run: HistoryRun) -> None:
    make_private_directory(path.parent)
    write_atomically(path, msgspec.json.encode(run), mode=0o600)


def _new_file(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)


def _note_process(lock: int, process: int) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(process).encode(), 0)


def _read_result(path: Path) -> HistoryResult:
    """Raises InvalidInput for output that is no result, or too long."""
    if path.stat().st_size > MOST_RESULT_BYTES:
        raise _wrong("the result is too long to be shown", "choose a shorter period")
    try:
        return msgspec.json.decode(path.read_bytes(), type=HistoryResult)
    except msgspec.MsgspecError:
        raise _wrong("the command printed no result", "") from None


async def _end_group(process: asyncio.subprocess.Process, ended: asyncio.Future[Any]) -> None:
    """Ends the process and all that it started; after ten seconds they are killed."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        done, _ = await asyncio.wait({ended}, timeout=_END_SECONDS)
        if done:
            return
