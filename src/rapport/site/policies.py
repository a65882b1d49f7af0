"""The policies of a site: their files, how they compile, which run on Spark. [UX-2, PO-3, PO-8]"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rapport.core.errors import PolicyError, Problem, UnknownName, nearest_names
from rapport.kernel.config_fields import Fields
from rapport.kernel.files import files_matching, is_file
from rapport.kernel.toml import TomlFile
from rapport.policy.compiler.compile import CompiledPolicy, compile_policy, parse_text
from rapport.policy.compiler.interpretation import PolicyTerms
from rapport.policy.engine.spark_policies import ALL, SparkPolicies
from rapport.policy.language.situation_tree import actions_of
from rapport.policy.lifecycle.record import stop_of
from rapport.policy.ontology import Ontology
from rapport.site.parts import SiteParts

DEFAULT_WINDOW_MS = 5_000
_LONGEST_WINDOW_MS = 366 * 86_400_000
_KEYS = ("files", "window", "interpretation", "interpretations", "on_spark")
_NAME = re.compile(r"\w[\w-]{0,99}")


class PolicyFile(msgspec.Struct, frozen=True):
    """A policy's name (the stem of its file) and where it lies."""

    name: str
    path: Path
    shown: str
    """The path relative to the site, as problems name it."""


def policy_files(
    file: TomlFile, directory: Path
) -> tuple[dict[str, PolicyFile], int, list[Problem]]:
    """The policies that `[policies]` names, sorted, the site's window in milliseconds, and what is
    wrong."""
    problems: list[Problem] = []
    fields = Fields(file.section("policies"), problems, known=_KEYS)
    window_ms = fields.duration_ms("window", DEFAULT_WINDOW_MS)
    if not 0 < window_ms <= _LONGEST_WINDOW_MS:
        message = "a window is longer than nothing and at most 366 days"
        fields.fault("window", "site.bad_window", message, hint='such as window = "5s"')
        window_ms = DEFAULT_WINDOW_MS
    found: dict[str, PolicyFile] = {}
    for pattern in fields.texts("files", ("*.dpl",)):
        for path in _matching(pattern, directory, fields):
            _keep(PolicyFile(path.stem, path, _shown(path, directory)), found, fields)
    return dict(sorted(found.items())), window_ms, problems


def choose(files: dict[str, PolicyFile], names: Sequence[str] | None) -> dict[str, PolicyFile]:
    """The named policies, all when `names` is None; raises UnknownName with the nearest."""
    if names is None:
        return files
    for name in names:
        if name not in files:
            raise UnknownName("policy", name, list(files), code="policy.unknown")
    return {name: files[name] for name in files if name in names}


def read_policy(policy: PolicyFile) -> tuple[str | None, list[Problem]]:
    """The text of a policy, None when the file cannot be read."""
    try:
        raw = policy.path.read_bytes()
    except OSError as error:
        message = f"cannot read the policy: {error.strerror}"
        hint = "look at the file's rights"
        return None, [
            Problem(file=policy.shown, code="policy.unreadable", message=message, hint=hint)
        ]
    try:
        return raw.decode("utf-8-sig"), []
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        problem = Problem(
            file=policy.shown,
            line=line,
            code="policy.not_utf8",
            message="the policy is not UTF-8 text",
            hint="save it as UTF-8",
        )
        return None, [problem]


def compile_text(
    policy: PolicyFile,
    text: str,
    ontology: Ontology | None,
    window_ms: int,
    terms: PolicyTerms | None = None,
) -> tuple[CompiledPolicy | None, list[Problem]]:
    """Compiles; without an ontology only the syntax is looked at."""
    try:
        if ontology is None:
            parse_text(text, name=policy.name)
            return None, []
        compiled = compile_policy(
            text, name=policy.name, ontology=ontology, window_ms=window_ms, terms=terms
        )
    except PolicyError as error:
        return None, placed(policy, error.problems)
    return compiled, placed(policy, compiled.problems)


def placed(policy: PolicyFile, problems: Sequence[Problem]) -> list[Problem]:
    """The problems with the path of the policy's file."""
    return [msgspec.structs.replace(problem, file=policy.shown) for problem in problems]


def _matching(pattern: str, directory: Path, fields: Fields) -> list[Path]:
    given = Path(pattern)
    if ".." in given.parts or (given.is_absolute() and not pattern.endswith(".dpl")):
        message = f"{pattern!r} leads out of the site directory"
        fields.fault(
            "files", "site.outside", message, hint="write an absolute path of one .dpl file"
        )
        return []
    named = [given] if is_file(given) else []
    paths = named if given.is_absolute() else files_matching(directory, pattern)
    if not paths and fields.has("files"):  # a site may mediate, link or send without policies
        hint = "a policy is a file that ends in .dpl"
        fields.fault(
            "files", "site.no_file", f"no file matches {pattern!r}", hint=hint, severity="warning"
        )
    return paths


def _keep(policy: PolicyFile, found: dict[str, PolicyFile], fields: Fields) -> None:
    other = found.get(policy.name)
    if other is not None and other.path != policy.path:
        message = f"{other.shown} and {policy.shown} are both named {policy.name!r}"
        hint = "a policy's name is its file's stem; rename one"
        fields.fault("files", "policy.duplicate_name", message, hint=hint)
    elif not _NAME.fullmatch(policy.name):
        message = f"{policy.shown!r} cannot name a policy"
        hint = "use letters, digits, _ and - in the file's name"
        fields.fault("files", "policy.bad_name", message, hint=hint)
    else:
        found[policy.name] = policy


def _shown(path: Path, directory: Path) -> str:
    return path.relative_to(directory).as_posix() if path.is_relative_to(directory) else str(path)


KEY = "on_spark"


def on_spark_of(file: TomlFile) -> tuple[str, ...]:
    """The names of those policies, or `*` for all; `check_on_spark` reports faults."""
    return Fields(file.section("policies"), []).texts(KEY, (), example='["*"]')


def check_on_spark(parts: SiteParts) -> list[Problem]:
    """Names nobody has are warnings, since policies can be registered later. A policy that stops
    others does that at a place of the stream, which only the node knows.
    """
    problems: list[Problem] = []
    fields = Fields(parts.file.section("policies"), problems)
    names = fields.texts(KEY, (), example='["*"]')
    files, _window, _problems = policy_files(parts.file, parts.directory)
    for name in names:
        if name not in files and name not in parts.policies and name != ALL:
            near = nearest_names(name, list(files), limit=1)
            hint = f"did you mean {near[0]!r}?" if near else "it may be registered later"
            message = f"there is no policy named {name!r} to run on Spark"
            fields.fault(KEY, "site.unknown_policy", message, hint=hint, severity="warning")
    chosen = SparkPolicies(names)
    for name, compiled in parts.policies.items():
        phrases = [action.phrase for action in actions_of(compiled.tree)]
        stops = [phrase for phrase in phrases if stop_of(phrase) is not None]
        if stops and name in chosen:
            message = f"policy {name!r} says {stops[0]!r}: that is done in the node only"
            hint = f"name the policies that run on Spark one by one, without {name!r}"
            fields.fault(KEY, "policy.not_on_spark", message, hint=hint)
    return problems
