"""Structured logs on stderr; secrets never reach them. [UX-5]"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

_SECRET_WORDS = ("password", "secret", "token", "authorization", "credential", "api_key")


def _to_stderr(*_arguments: Any) -> structlog.PrintLogger:
    """Looked up at each entry, as whoever runs us may put another stream in its place."""
    return structlog.PrintLogger(sys.stderr)


def _for_people() -> structlog.dev.ConsoleRenderer:
    """Traces without the values of variables: those are tokens, passwords, what people wrote."""
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


def configure_logs(*, level: str = "INFO", json: bool = False) -> None:
    """One line per log entry on stderr; JSON for machines, coloured only on a terminal."""
    # Nobody else writes the trace of an error as text into an entry for machines.
    for_machines = (structlog.processors.format_exc_info, structlog.processors.JSONRenderer())
    structlog.configure(
        processors=_processors(*for_machines) if json else _processors(_for_people()),
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level)),
        logger_factory=_to_stderr,
        cache_logger_on_first_use=False,
    )


def logs_are_json() -> bool:
    """Whether log entries are written for machines: what we start should do the same."""
    return isinstance(structlog.get_config()["processors"][-1], structlog.processors.JSONRenderer)


def hide_secrets(
    _logger: Any, _method: str, entry: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Replaces the value of every field whose name speaks of a secret."""
    for name in entry:
        if any(word in name.lower() for word in _SECRET_WORDS):
            entry[name] = "***"
    return entry


if not structlog.is_configured():
    # Until a command says otherwise: stdout belongs to data, and all is quiet while all is well.
    structlog.configure(
        processors=_processors(_for_people()),
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=_to_stderr,
    )
