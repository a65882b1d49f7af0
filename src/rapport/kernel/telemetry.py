"""Structured logs without secrets, and the conditions that degrade a node. [UX-5]

A part of the node that notices a fault begins a condition, and ends it when the fault is gone.
`/readyz`, the overview, the page and the metrics show all current conditions.
"""

from __future__ import annotations

import logging
import logging.handlers
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import msgspec
import structlog

from rapport.kernel.clock import Clock

_SECRET_WORDS = ("password", "secret", "token", "authorization", "credential", "api_key")


LOG_FILE = "node.log"
"""Name of a node's log file in its data directory."""
_LOG_FILE_BYTES, _OLD_LOG_FILES = 5_000_000, 3


def _to_stderr(*_arguments: Any) -> structlog.PrintLogger:
    """Looks `sys.stderr` up at each entry, because the caller may replace it."""
    return structlog.PrintLogger(sys.stderr)


def _for_people() -> structlog.dev.ConsoleRenderer:
    """Tracebacks without values of variables, which may be tokens, passwords or private texts."""
    return structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )


def _processors(*renderers: Any) -> list[Any]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        hide_secrets,
        *renderers,
    ]


def get_logger(name: str) -> Any:
    """The logger of a module; call it with a short event and named values."""
    return structlog.get_logger(name)


def configure_logs(
    *, level: str = "INFO", json: bool = False, directory: Path | None = None
) -> None:
    """One line per log entry on stderr; JSON for machines, coloured only on a terminal. With
    `directory` also as JSON lines in its LOG_FILE, which is rotated by size.
    """
    for_machines = (structlog.processors.format_exc_info, structlog.processors.JSONRenderer())
    renderers = for_machines if json else (_for_people(),)
    if directory is not None:
        renderers = (_LogFile(directory / LOG_FILE), *renderers)
    structlog.configure(
        processors=_processors(*renderers),
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level)),
        logger_factory=_to_stderr,
        cache_logger_on_first_use=False,
    )


class _Handler(logging.handlers.RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """A full disk loses entries of the file; stderr has them."""


class _LogFile:
    def __init__(self, path: Path) -> None:
        self._handler = _Handler(
            path, maxBytes=_LOG_FILE_BYTES, backupCount=_OLD_LOG_FILES, encoding="utf-8", delay=True
        )
        self._render = structlog.processors.JSONRenderer()

    def __call__(
        self, logger: Any, method: str, entry: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        kept = structlog.processors.format_exc_info(logger, method, {**entry})
        line = self._render(logger, method, kept)
        self._handler.handle(logging.makeLogRecord({"msg": line}))
        return entry


def logs_are_json() -> bool:
    """Whether log entries are JSON, so that child processes can do the same."""
    return isinstance(structlog.get_config()["processors"][-1], structlog.processors.JSONRenderer)


def hide_secrets(
    _logger: Any, _method: str, entry: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Masks the value of every field whose name suggests a secret."""
    for name in entry:
        if any(word in name.lower() for word in _SECRET_WORDS):
            entry[name] = "***"
    return entry


if not structlog.is_configured():
    # The default until a command configures logs: warnings on stderr, because stdout is for data.
    structlog.configure(
        processors=_processors(_for_people()),
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=_to_stderr,
    )


_log = get_logger(__name__)


class DegradedCondition(msgspec.Struct, frozen=True):
    """One fault of a node that still does its work."""

    name: str
    """Stable and unique, the kind of the fault first: `policy.late.positions`."""
    reason: str
    since: int
    """When it began, in milliseconds by the node's clock."""


class DegradedConditions:
    """The current conditions. Logs a warning when one begins and when it ends."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._current: dict[str, DegradedCondition] = {}

    def begin(self, name: str, reason: str) -> None:
        """Begins a condition; a current one keeps its beginning and gets the new reason."""
        before = self._current.get(name)
        if before is None:
            _log.warning("degraded", condition=name, reason=reason)
        since = self._clock.now_ms() if before is None else before.since
        self._current[name] = DegradedCondition(name, reason, since)

    def end(self, name: str) -> None:
        """Ends a condition; does nothing if it is not current."""
        ended = self._current.pop(name, None)
        if ended is not None:
            lasted_ms = max(self._clock.now_ms() - ended.since, 0)
            _log.warning("no longer degraded", condition=name, lasted_ms=lasted_ms)

    def current(self) -> list[DegradedCondition]:
        """All current conditions, the oldest first."""
        return sorted(self._current.values(), key=lambda one: (one.since, one.name))
