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


if not structlog.is_configured():
    # Until a command says otherwise: stdout belongs to data, and all is quiet while all is well.
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=_to_stderr,
    )


def get_logger(name: str) -> Any:
    """The logger of a module; call it with a short event and named values."""
    return structlog.get_logger(name)


def configure_logs(*, level: str = "INFO", json: bool = False) -> None:
    """One line per log entry on stderr; JSON for machines, coloured only on a terminal."""
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            hide_secrets,
            renderer,
        ],
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
