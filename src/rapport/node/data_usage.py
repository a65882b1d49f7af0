"""How much of the disk the parts of a data directory take. [CN-14]"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import msgspec

_LOGS = Path("log", "logs")


class DataUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What one part takes."""

    part: str
    """`log`, `lake` and other directories; of the log a family of channels: `raw` of all `raw.*`,
    or `indexes`.
    """
    is_channels: bool
    bytes: int
    files: int


def data_usage(data: Path) -> list[DataUsage]:
    """The parts, largest first. Files that go away meanwhile are left out."""
    sizes: Counter[tuple[bool, str]] = Counter()
    files: Counter[tuple[bool, str]] = Counter()
    for directory, _directories, names in os.walk(data):
        for name in names:
            path = Path(directory, name)
            try:
                size = path.stat().st_size
            except FileNotFoundError:
                continue
            part = _part(path.relative_to(data))
            sizes[part] += size
            files[part] += 1
    return [
        DataUsage(part=name, is_channels=is_channels, bytes=size, files=files[is_channels, name])
        for (is_channels, name), size in sizes.most_common()
    ]


def _part(path: Path) -> tuple[bool, str]:
    """
    >>> _part(Path("log/logs/raw.freezers/1.log")), _part(Path("lake/bronze/a"))
    ((True, 'raw'), (False, 'lake'))
    """
    if path.is_relative_to(_LOGS) and len(path.parts) > len(_LOGS.parts):
        return True, path.parts[len(_LOGS.parts)].partition(".")[0]
    if path.parts[0] == "log":
        return False, "indexes"
    return False, path.parts[0] if len(path.parts) > 1 else "files"
