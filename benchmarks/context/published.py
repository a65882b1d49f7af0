"""What the source measured: Appendix B of its thesis, 251 configurations. [CX-12]

Versions: V4 (C++, distributed) are configurations 1 to 246, V3 (the same, one broker) 247 to 251.
Of V1 and V2 (Java) the source has bars in a figure and no numbers. Two times and two amounts of
memory cannot be read in our copy of the source (117, 120, 194) and are empty.
"""

from __future__ import annotations

import csv
from importlib.resources import files

import msgspec

_FILE = files("benchmarks") / "data" / "context_published.csv"
MAIN_POINT = 73
"""Ring, 1,000 providers and 1,000 consumers, each once a second: 215 microseconds."""


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table; an answer's time in us, memory per broker in kB."""

    config: int
    brokers: int
    topology: str
    providers: int
    consumers: int
    update_s: float
    request_s: float
    response_us: float | None = None
    memory_kb: float | None = None

    def __str__(self) -> str:
        where = f"{self.brokers} brokers, {self.topology}" if self.brokers > 1 else "one broker"
        return (
            f"{where}, {self.providers} providers every {self.update_s:g} s, "
            f"{self.consumers} consumers every {self.request_s:g} s"
        )


def published() -> dict[int, Configuration]:
    """All configurations by their number."""
    lines = _FILE.read_text(encoding="utf-8").splitlines()
    rows = [_configuration(row) for row in csv.DictReader(lines)]
    return {row.config: row for row in rows}


def _configuration(row: dict[str, str]) -> Configuration:
    given = {name: value for name, value in row.items() if value}
    return msgspec.convert(given, Configuration, strict=False)


def chosen(*, quick: bool = False, full: bool = False) -> list[Configuration]:
    """Those that are run: all when `full`, a handful when `quick`, else what the source's figures
    and conclusions stand on.
    """
    every = published()
    if full:
        return list(every.values())
    return [row for row in every.values() if (_is_quick(row) if quick else _is_shown(row))]


def _is_quick(row: Configuration) -> bool:
    return row.config in (MAIN_POINT, 244, 247)


def _is_shown(row: Configuration) -> bool:
    """Figures 4.3 to 4.7 (of the update intervals the middle one), and the largest load."""
    by_consumers = row.providers == 50 or row.consumers == 1_000
    in_figures = row.update_s == 30 and row.request_s == 30 and by_consumers
    largest = (row.providers, row.consumers, row.update_s, row.request_s) == (1_000, 1_000, 1, 1)
    return in_figures or largest or row.config > 243
