"""`rapport policy fmt`: policy files rewritten in canonical form, each whole or not at all. [PO-3,
UX-2]"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from rapport.cli.terminal import show_problem, stderr
from rapport.core.errors import PolicyError, Problem, StoreUnavailable
from rapport.kernel.files import atomic_replacement
from rapport.kernel.toml import TomlFile
from rapport.policy.language.formatter import format_policy
from rapport.site.policies import PolicyFile, placed, policy_files, read_policy
from rapport.site.site import SITE_FILE


def format_files(files: Sequence[Path], site: Path, *, check: bool) -> int:
    """Rewrites the files, all policies of the site when none is named; prints those that changed.

    With `check` nothing is written. Returns 1 when a file is faulty, which leaves it untouched, or
    would change under `check`.
    """
    policies, faulty = _of_site(site) if not files else ([_of_path(path) for path in files], False)
    changed = 0
    for policy in policies:
        text, problems = read_policy(policy)
        formatted = text
        if text is not None:
            formatted, problems = _formatted(policy, text)
        for problem in problems:
            show_problem(problem)
        faulty = faulty or bool(problems)
        if formatted is None or formatted == text:
            continue
        changed += 1
        if not check:
            _replace(policy.path.resolve(), formatted.encode())
        print(policy.shown)
    _summarize(len(policies), changed, check=check)
    return int(faulty or (check and changed > 0))


def _of_site(site: Path) -> tuple[list[PolicyFile], bool]:
    """The policies of a site, and whether what names them is faulty."""
    file = TomlFile.load(site / SITE_FILE, name=SITE_FILE)
    found, _window_ms, problems = policy_files(file, site)
    for problem in problems:
        show_problem(problem)
    return list(found.values()), any(problem.severity == "error" for problem in problems)


def _of_path(path: Path) -> PolicyFile:
    return PolicyFile(path.stem, path, str(path))


def _formatted(policy: PolicyFile, text: str) -> tuple[str | None, list[Problem]]:
    try:
        return format_policy(text, name=policy.name), []
    except PolicyError as error:
        return None, placed(policy, error.problems)


def _replace(path: Path, raw: bytes) -> None:
    """Puts `raw` in the place of the file at once, with the file's rights."""
    try:
        with atomic_replacement(path) as temporary:
            temporary.write_bytes(raw)
            shutil.copymode(path, temporary)
    except OSError as error:
        raise StoreUnavailable(
            f"cannot write {path}: {error.strerror}",
            code="store.disk_failed",
            hint="look at the rights of the file and its directory; the file is as it was",
        ) from None


def _summarize(count: int, changed: int, *, check: bool) -> None:
    doing = "would change" if check else "changed"
    stderr().print(f"{count} polic{'y' if count == 1 else 'ies'}, {changed} {doing}")
