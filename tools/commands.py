"""What `./run check` and `./run test` do, in order, stopping at the first step that fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_SLOW = "not spark and not slow and not long"
FAST = f"{NOT_SLOW} and not unhurried"
LAST_FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
TESTS_FAILED = 1
"""What pytest exits with when it ran and tests failed; anything else is worse."""
MOST_LOOKED_AT_AGAIN = 5
KEEPS_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"

STATIC_STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("format", ("ruff", "format", "--check", "--quiet", ".")),
    ("lint", ("ruff", "check", "--no-cache", "--quiet", ".")),
    (
        "spelling",
        (
            "codespell",
            "src",
            "benchmarks",
            "tools",
            "docs",
            "examples",
            "README.md",
            "ARCHITECTURE.md",
        ),
    ),
    ("imports", ("lint-imports", "--no-cache")),
    ("types", ("mypy",)),
    ("house", ("python", "tools/house.py")),
)


def check(arguments: list[str]) -> int:
    """Static checks, then the fast tests (left out with --no-tests). With --measure all that are
    not marked as slow, to find out which of them are fast (`tests/support/unhurried.py`).
    """
    for name, command in STATIC_STEPS:
        if code := _step(name, _tool(*command)):
            return code
    if "--no-tests" in arguments:
        return 0
    if "--measure" in arguments:
        every = _pytest("-n", "2", "-m", NOT_SLOW, "-q", "--rewrite-unhurried")
        return _step("tests that may be fast", every)
    return _step("fast tests", _pytest("-n", "2", "-m", FAST, "-q"))


def test(arguments: list[str]) -> int:
    """All tests on two cores, those on Spark beside the others (`tests/support/spreading.py`);
    arguments go to pytest. What is marked `long` runs with `--long`, or when it is asked for.
    """
    long = "--long" in arguments
    chosen = [argument for argument in arguments if argument != "--long"]
    if long:
        # Before a release property tests try all their cases (tests/support/examples.py).
        os.environ.setdefault("HYPOTHESIS_PROFILE", "full")
    is_chosen_by_mark_or_name = any(one == "-m" or "::" in one for one in chosen)
    marks = () if long or is_chosen_by_mark_or_name else ("-m", "not long")
    if chosen:
        return _step("tests", _pytest(*marks, *chosen))
    # More than cores, as many tests wait for servers, processes and deadlines most of their time.
    spread = ("-n", "4", "--dist", "loadfile")
    if (code := _step("tests", _pytest(*spread, *marks, "-q", "--durations=25"))) == TESTS_FAILED:
        code = _second_look()
    return code


def _second_look() -> int:
    """Runs the few that failed once more, alone. Hundreds of tests start servers and kill
    processes beside each other; one that fails for want of processor time passes alone, and is
    named. Many failures, or anything but failed tests, get no second look.
    """
    try:
        failed = sorted(json.loads(LAST_FAILED.read_text()))
    except (OSError, ValueError):
        return TESTS_FAILED
    if not 0 < len(failed) <= MOST_LOOKED_AT_AGAIN:
        return TESTS_FAILED
    if code := _step("the failed tests alone", _pytest("-q", *failed)):
        return code
    print(f"== unsteady, passed only alone: {', '.join(failed)}", file=sys.stderr, flush=True)
    return 0


def _step(name: str, command: list[str]) -> int:
    print(f"== {name}", file=sys.stderr, flush=True)
    code = subprocess.run(command, cwd=ROOT, env=_environment(), check=False).returncode
    if code:
        print(f"== {name} failed (exit {code})", file=sys.stderr, flush=True)
    return code


def _environment() -> dict[str, str]:
    """Ours, except that Python keeps what it compiles: a run starts several hundred Python
    processes, and where none may keep bytecode each compiles the whole package for itself (more
    than half of the time a node takes to start).
    """
    return {name: value for name, value in os.environ.items() if name != KEEPS_NO_BYTECODE}


def _tool(name: str, *arguments: str) -> list[str]:
    return [os.path.join(os.path.dirname(sys.executable), name), *arguments]


def _pytest(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", *arguments]


def main() -> int:
    """Entry point: `tools/commands.py check|test [arguments]`."""
    steps = {"check": check, "test": test}
    if len(sys.argv) < 2 or sys.argv[1] not in steps:
        print("usage: tools/commands.py check|test [arguments]", file=sys.stderr)
        return 2
    return steps[sys.argv[1]](sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
