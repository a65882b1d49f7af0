"""Faults of components and ensembles: counted and kept, never raised. [EN-1, EN-2]"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

MOST = 1_000
"""Different faults that are kept; further ones are only counted in all."""
_TEXT = 300
_REPORTED_COUNTS = frozenset(10**power for power in range(12))
_MOST_CODES = 64
_OTHER_CODES = "other"


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault of a component, a process or an ensemble."""

    code: str
    message: str
    hint: str = ""
    component: str = ""
    """Whose fault; empty: that of an ensemble alone."""
    name: str = ""
    """The process or the ensemble; empty: the knowledge itself."""
    place: str = ""
    """File and line where it was raised."""
    count: int = 1
    first_ms: int = 0
    last_ms: int = 0
    """Wall clock of the first and the last time."""


def fault_of(
    error: BaseException, code: str, *, component: str = "", name: str = "", hint: str = ""
) -> Fault:
    """An exception as a fault; one with a code and a hint of its own keeps them."""
    return Fault(
        code=_text_of(error, "code") or code,
        message=_error_text(error),
        hint=_text_of(error, "hint") or hint,
        component=component,
        name=name,
        place=_place_of(error),
    )


class Faults:
    """The faults of a host, each kind once, with how often and when last; bounded."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, str], Fault] = {}
        self._by_code: Counter[str] = Counter()
        self._unreported: list[Fault] = []
        self.total = 0

    def __iter__(self) -> Iterator[Fault]:
        return iter(list(self._kept.values()))

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def by_code(self) -> Mapping[str, int]:
        """How often each code occurred; never falls. Codes that components choose themselves are
        counted together where there are too many.
        """
        return self._by_code

    def take_unreported(self) -> list[Fault]:
        """The faults to log since the last call: the 1st, 10th, 100th ... of a kind."""
        unreported, self._unreported = self._unreported, []
        return unreported

    def add(self, fault: Fault, now_ms: int) -> None:
        """Counts it; of equal ones (component, name, code) the last message is kept."""
        self.total += 1
        is_counted = fault.code in self._by_code or len(self._by_code) < _MOST_CODES
        self._by_code[fault.code if is_counted else _OTHER_CODES] += 1
        key = (fault.component, fault.name, fault.code)
        before = self._kept.get(key)
        if before is None and len(self._kept) >= MOST:
            return
        kept = self._kept[key] = msgspec.structs.replace(
            fault,
            count=before.count + 1 if before else 1,
            first_ms=before.first_ms if before else now_ms,
            last_ms=now_ms,
        )
        if kept.count in _REPORTED_COUNTS and len(self._unreported) < MOST:
            self._unreported.append(kept)

    def of(self, component: str = "", name: str = "") -> list[Fault]:
        """Those of a component, or of one process or ensemble."""
        return [
            fault
            for fault in self
            if (not component or fault.component == component) and (not name or fault.name == name)
        ]

    def forget(self, component: str) -> None:
        for key in [key for key in self._kept if key[0] == component]:
            del self._kept[key]


def _text_of(error: BaseException, name: str) -> str:
    """A text attribute of an error; empty if it is no text, such as the `code` of SystemExit."""
    text = getattr(error, name, "")
    return text if isinstance(text, str) else ""


def _error_text(error: BaseException) -> str:
    try:
        text = _text_of(error, "message") or str(error)
    except Exception:  # of the exception's own class
        text = ""
    kind = type(error).__name__
    shown = text if _text_of(error, "code") else f"{kind}: {text}" if text else kind
    return shown[:_TEXT]


def _place_of(error: BaseException) -> str:
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
