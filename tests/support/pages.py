"""Pages of the documentation as a stranger follows them: commands run in one shell, and what they
print is what the page says. [UX-3]
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.servers.ports import free_port

_BLOCK = re.compile(r"```sh\n(.*?)```\n(?:```text\n(.*?)```\n)?", re.DOTALL)
_LOOKS = re.compile(r"(until [^\n]*\brapport [^\n]*); do sleep 0\.\d; done")
_NODE = "8484"


def follow_page(
    page: Path,
    directory: Path,
    *,
    ports: Sequence[str] = (),
    servers: Mapping[str, int] | None = None,
    seconds: float = 180,
    fewest: int = 10,
) -> None:
    """Runs all `sh` blocks of a page in one shell and compares what each prints with the `text`
    block behind it, `…` standing for anything within a line. The node's port, and `ports`, are
    others than on the page; those of `servers` are where these run. Raises AssertionError with
    what was printed instead.
    """
    blocks = _BLOCK.findall(page.read_text(encoding="utf-8"))
    assert len(blocks) > fewest, f"{page.name} has too few blocks"
    others = {port: str(free_port()) for port in ports}
    others |= {port: str(known) for port, known in (servers or {}).items()}
    carry_out(_script([commands for commands, _said in blocks], others), directory, seconds)
    for number, (commands, said) in enumerate(blocks):
        told = (directory / f"told{number}").read_text(encoding="utf-8")
        if said:
            assert _is_as_said(told, said), f"{commands}\nprinted\n{told}\ninstead of\n{said}"


def carry_out(script: str, directory: Path, seconds: float = 120) -> None:
    """Runs commands as a stranger would; whatever they left running ends with them."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    plain = {"NO_COLOR": "1", "COLUMNS": "200", "TOLD": str(directory)}
    known = {**os.environ, "PATH": path, **plain}
    # A stranger has not set it, and with it nobody sees what is written in the wrong order.
    known.pop("PYTHONUNBUFFERED", None)
    running = subprocess.Popen(
        ["bash", "-c", script], cwd=directory, env=known, start_new_session=True
    )
    try:
        running.wait(timeout=seconds)
    finally:
        try:
            os.killpg(running.pid, signal.SIGKILL)
        except ProcessLookupError:
            running.wait()


def _script(blocks: Sequence[str], others: Mapping[str, str]) -> str:
    """The blocks one after the other in one shell; what each prints goes into a file."""
    node, written = str(free_port()), []
    for block in blocks:
        text = block.replace(_NODE, node)
        for port, other in others.items():
            text = text.replace(port, other)
        # Each look is a process of its own: several a second would keep a core from other tests.
        text = _LOOKS.sub(r"\1; do sleep 0.8; done", text)
        written.append(text.replace("[site]", f"[node]\nport = {node}\n\n[site]", 1))
    parts = (f'{{\n{block}}} > "$TOLD/told{number}" 2>&1' for number, block in enumerate(written))
    return "\n".join(parts)


def _is_as_said(told: str, said: str) -> bool:
    lines = [re.escape(line.rstrip()).replace("…", ".*") for line in said.splitlines()]
    printed = "\n".join(line.rstrip() for line in told.splitlines())
    return re.fullmatch("\n".join(lines), printed) is not None
