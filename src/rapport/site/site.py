"""A site loaded from its directory. [UX-2]

Every package reads its own tables of `site.toml`; this module combines them and collects the faults
of all packages.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from rapport.core.errors import Problem, RapportError, SiteError
from rapport.kernel.config_fields import Fields, read_zone
from rapport.kernel.toml import TomlFile
from rapport.policy.compiler.compile import CompiledPolicy
from rapport.policy.config.loader import ontology_from_site
from rapport.policy.derived_columns import DerivedColumns
from rapport.policy.ontology import Ontology
from rapport.site.check import CHECKERS, REFUSING_THEMSELVES, ROOM_CHECKERS
from rapport.site.interpretations import TermsOfPolicies, terms_of_policies
from rapport.site.lake_units import check_lake_units
from rapport.site.parts import (
    SiteParts,
    data_directory_of,
    has_errors,
    kept_rows_directory,
    looked_up,
    needed_of_tables,
    stale_tables,
)
from rapport.site.policies import choose, compile_text, on_spark_of, policy_files, read_policy
from rapport.tables.config import tables_from_site
from rapport.tables.row_cache import RowCache
from rapport.tables.tables import Tables

SITE_FILE = "site.toml"
DEFAULT_LATENESS_MS = 2_000
_LONGEST_LATENESS_MS = 7 * 86_400_000
_SITE_KEYS = ("name", "lateness", "zone", "language", "act_within", "open_sources", "read_only")
_FOLLOWING_FROM_ONTOLOGY = ("tables.unknown_concept", "tables.unknown_attribute")


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """A site that passed all its checks."""

    name: str
    directory: Path
    lateness_ms: int
    window_ms: int
    ontology: Ontology
    tables: Tables
    policies: dict[str, CompiledPolicy]
    file: TomlFile
    actions: dict[str, dict[str, Any]]
    """The site's action by phrase."""
    data_directory: Path
    """Where log, records and replay state lie."""
    on_spark: tuple[str, ...] = ()
    """Policies that do not run in the node; `*` means all."""
    open_sources: bool = False
    """Whether readings of sources that the site does not declare are stored, and quarantined."""
    problems: tuple[Problem, ...] = ()
    """Warnings and hints."""
    faults: tuple[Problem, ...] = ()
    """Errors that refuse only what they are about, such as one interpretation."""


def load_site(
    directory: Path,
    *,
    policies: Sequence[str] | None = None,
    refusing_policies: bool = True,
    data_directory: Path | None = None,
) -> Site:
    """Reads a site; raises SiteError with every error of every file, unless all of them refuse only
    what they are about: then they are in `faults`.

    Args:
        policies: only these, others are not even looked at; raises UnknownName for one that does
        not exist. refusing_policies: whether a policy with errors refuses the site; else it refuses
        itself. data_directory: by default as the environment says, or the site.
    """
    site, problems = _read(Path(directory), policies, data_directory)
    errors = [problem for problem in problems if problem.severity == "error"]
    if site is not None and not refusing_policies:
        site = _with_broken_policies(site, errors)
    if site is None or set(errors) - set(site.faults):
        raise SiteError(errors)
    return site


def _with_broken_policies(site: Site, errors: list[Problem]) -> Site:
    """Errors at a policy's place are faults of that policy alone."""
    files, _window, _problems = policy_files(site.file, site.directory)
    places = {file.shown for file in files.values()} | {f"{name}.dpl" for name in files}
    own = [problem for problem in errors if problem.file in places]
    return msgspec.structs.replace(site, faults=(*site.faults, *own))


def check_site(
    directory: Path,
    *,
    file: TomlFile | None = None,
    data_directory: Path | None = None,
) -> list[Problem]:
    """Every error, warning and hint of a site, sorted by file and line; raises nothing. `file`:
    its site file as it is to be, before it is written. `data_directory`: by default as the
    environment says, or the site.
    """
    try:
        site, problems = _read(Path(directory), None, data_directory, file=file)
    except RapportError as error:
        return list(error.problems_found())
    if site is None:
        return problems
    found = check_lake_units(site.file, site.ontology, site.data_directory)
    return sorted({*problems, *found}, key=_reading_order)


def _read(
    directory: Path,
    chosen: Sequence[str] | None,
    data: Path | None = None,
    *,
    file: TomlFile | None = None,
) -> tuple[Site | None, list[Problem]]:
    if file is None:
        file = TomlFile.load(directory / SITE_FILE, name=SITE_FILE)
    data = data or data_directory_of(file, directory)
    problems: list[Problem] = []
    fields = Fields(file.section("site"), problems, known=_SITE_KEYS)
    name = fields.text("name", directory.resolve().name)
    lateness_ms = _lateness(fields)
    read_zone(fields)  # read by those who parse times; checked here
    open_sources = fields.flag("open_sources")
    fields.flag("read_only")  # read by those who change files; checked here
    ontology, faults = ontology_from_site(file)
    sound = not has_errors(faults)
    problems += faults
    tables, faults = _tables(file, directory, data, ontology, sound)
    problems += faults
    policies, texts, window_ms, faults = _policies(
        file, directory, chosen, ontology if sound else None
    )
    problems += faults
    parts = SiteParts(
        file=file,
        directory=directory,
        ontology=ontology,
        tables=tables,
        policies=policies,
        texts=texts,
    )
    faults = []
    for checker in (*CHECKERS, *ROOM_CHECKERS):
        found = checker(parts)
        problems += found
        if checker in REFUSING_THEMSELVES:
            faults += [problem for problem in found if problem.severity == "error"]
    problems = sorted(set(problems), key=_reading_order)
    if tables is None:
        return None, problems
    site = Site(
        name=name,
        directory=directory,
        lateness_ms=lateness_ms,
        window_ms=window_ms,
        ontology=ontology,
        tables=tables,
        policies=policies,
        file=file,
        actions=dict(file.section("actions").values),
        data_directory=data,
        on_spark=on_spark_of(file),
        open_sources=open_sources,
        problems=tuple(problem for problem in problems if problem.severity != "error"),
        faults=tuple(faults),
    )
    return site, problems


def _lateness(fields: Fields) -> int:
    lateness_ms = fields.duration_ms("lateness", DEFAULT_LATENESS_MS)
    if lateness_ms > _LONGEST_LATENESS_MS:
        message = (
            "the lateness is at most 7 days; everything later than now minus it waits in memory"
        )
        fields.fault("lateness", "site.bad_lateness", message, hint='such as lateness = "2s"')
        return DEFAULT_LATENESS_MS
    return lateness_ms


def _tables(
    file: TomlFile, directory: Path, data: Path, ontology: Ontology, sound: bool
) -> tuple[Tables | None, list[Problem]]:
    declarations, problems = tables_from_site(file, directory, ontology.concepts)
    if not sound:
        # What names a concept that was refused is not refused once more.
        problems = [fault for fault in problems if fault.code not in _FOLLOWING_FROM_ONTOLOGY]
    try:
        tables = Tables.load(
            directory,
            declarations,
            ontology.concepts,
            needed=needed_of_tables(ontology),
            pairs=looked_up(ontology, {declared.name for declared in declarations}),
            kept=RowCache(kept_rows_directory(data)),
        )
        problems = [*problems, *stale_tables(tables)]
        tables.deriving = DerivedColumns(ontology)
    except SiteError as error:
        return None, [*problems, *error.problems]
    return (None if has_errors(problems) or not sound else tables), problems


def _policies(
    file: TomlFile, directory: Path, chosen: Sequence[str] | None, ontology: Ontology | None
) -> tuple[dict[str, CompiledPolicy], dict[str, str], int, list[Problem]]:
    files, window_ms, problems = policy_files(file, directory)
    policies: dict[str, CompiledPolicy] = {}
    texts: dict[str, str] = {}
    spoken = TermsOfPolicies()
    if ontology is not None:
        spoken, faults = terms_of_policies(file, directory, ontology, list(files))
        problems += faults
    for name, policy in choose(files, chosen).items():
        text, faults = read_policy(policy)
        if text is not None:
            texts[name] = text
            # Without its interpretation nobody knows what a policy means: only its syntax counts.
            known = None if name in spoken.unknown else ontology
            compiled, more = compile_text(policy, text, known, window_ms, spoken.terms.get(name))
            faults = [*faults, *more]
            if compiled is not None:
                policies[name] = compiled
        problems += faults
    return policies, texts, window_ms, problems


def _reading_order(problem: Problem) -> tuple[str, int, int, str, str]:
    return problem.file, problem.line, problem.column, problem.code, problem.message
