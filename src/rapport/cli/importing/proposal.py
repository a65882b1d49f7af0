"""`rapport import --guess`: a proposal to edit, and a table of what it was made of.
[ME-13, UX-3]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rapport.cli.files import cannot_write
from rapport.cli.importing.file import beginning
from rapport.cli.sites import site_directory
from rapport.cli.terminal import write_bytes
from rapport.core.errors import InvalidInput
from rapport.kernel.toml import TomlFile
from rapport.mediation.concepts import Concepts


def propose_file(
    file: Path,
    format: str,
    options: dict[str, Any],
    *,
    name: str,
    out: Path | None,
    site: Path | None,
) -> None:
    """Writes the proposal to `out` or stdout, and the doubts to stderr."""
    from rapport.cli.importing.summary import show_summary
    from rapport.mediation.guessing.concept_match import match_concept
    from rapport.mediation.guessing.guess import guess
    from rapport.mediation.guessing.proposal import propose
    from rapport.mediation.guessing.sample import sample_of
    from rapport.policy.language.lexer import is_name

    found = guess(sample_of(beginning(file), name=format, options=options))
    becoming = match_concept(found, _concepts(site), name=name, is_name=is_name)
    text = propose(found, becoming, name=name, file=file.name).encode()
    if out is None:
        write_bytes(text)
    else:
        _write_new(out, text)
    show_summary(found, becoming)


def _concepts(site: Path | None) -> Concepts:
    """Those of the site that is named, or that stands here; none without a site."""
    from rapport.policy.config.loader import ontology_from_site
    from rapport.site.interpretations import concepts_of

    path = site_directory(site) / "site.toml"
    if site is None and not path.exists():
        return {}
    ontology, _problems = ontology_from_site(TomlFile.load(path), trusted=False)
    return concepts_of(ontology)


def _write_new(path: Path, text: bytes) -> None:
    """Never over a file that somebody may have edited."""
    try:
        with path.open("xb") as file:
            file.write(text)
    except FileExistsError:
        raise InvalidInput(
            f"{path} is there already", code="import.exists", hint="name another file with --out"
        ) from None
    except OSError as error:
        raise cannot_write(path, error) from None
