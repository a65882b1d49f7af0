"""What `./run check` and `./run test` do, in order, stopping at the first step that fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FAST = "not spark and not slow and not long"

STATIC_STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("format", ("ruff", "format", "--check", "--quiet", "src", "tests", "examples")),
    ("lint", ("ruff", "check", "--no-cache", "--quiet", "src", "tests", "examples")),
    ("spelling", ("codespell", "src", "docs", "examples", "README.md", "ARCHITECTURE.md")),
    ("imports", ("lint-imports", "--no-cache")),
    ("types", ("mypy",)),
)


def check(arguments: list[str]) -> int:
    """Static checks, then the fast tests (left out with --no-tests)."""
    for name, command in STATIC_STEPS:
        if code := _step(name, _tool(*command)):
            return code
    if "--no-tests" in arguments:
        return 0
    return _step("fast tests", _pytest("-n", "2", "-m", FAST, "-q"))


def test(arguments: list[str]) -> int:
    """All tests: the many on both cores, then those that share one Spark session; arguments go to
    pytest.
    """
    long = "--long" in arguments
    chosen = [argument for argument in arguments if argument != "--long"]
    if chosen:
        return _step("tests", _pytest(*chosen))
    without_long = "" if long else " and not long"
    code = _step("tests without Spark", _pytest("-n", "2", "-m", f"not spark{without_long}", "-q"))
    return code or _step("tests on Spark", _pytest("-m", f"spark{without_long}", "-q"))


def _step(name: str, command: list[str]) -> int:
    print(f"== {name}", file=sys.stderr, flush=True)
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code:
        print(f"== {name} failed (exit {code})", file=sys.stderr, flush=True)
    return code


def _tool(name: str, *arguments: str) -> list[str]:
    return [os.path.join(os.path.dirname(sys.executable), name), *arguments]


def _pytest(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", *arguments]


def main() -> int:
    """Entry point: `python -m rapport.testing.commands check|test [arguments]`."""
    steps = {"check": check, "test": test}
    if len(sys.argv) < 2 or sys.argv[1] not in steps:
        print("usage: python -m rapport.testing.commands check|test [arguments]", file=sys.stderr)
        return 2
    return steps[sys.argv[1]](sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
