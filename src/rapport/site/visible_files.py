"""The files of a site that people may read and change in the console: the site file, policies,
interpretations and tables. Secrets, keys and the data directory are never among them. [CN-14]
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput, UnknownName
from rapport.kernel.files import files_matching, is_inside
from rapport.kernel.settings import NodeSettings
from rapport.kernel.toml import TomlFile
from rapport.site.policies import policy_files

SITE_FILE = "site.toml"
LONGEST_TEXT = 256 * 1024
_SECTIONS = ("interpretations", "tables")
_MOST_FILES = 1_000
_SECRET_PREFIX = "file:"
_DIGITS = 16


class SiteFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the site, as its directory names it."""

    name: str
    kind: str
    """site, policies, interpretations or tables."""
    size: int


class SiteFileText(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a file."""

    name: str
    text: str
    is_whole: bool
    """Whether the text is all of it; a long file is shown up to a limit and cannot be changed."""
    digest: str = ""
    """Of the file as it is; a change names it in `expects`."""


def visible_files(directory: Path, data: Path) -> list[SiteFile]:
    """The files by name, the site file first; raises InvalidInput for an unreadable site file."""
    file = TomlFile.load(directory / SITE_FILE, name=SITE_FILE)
    found = {SITE_FILE: "site"}
    for policy in policy_files(file, directory)[0].values():
        found[policy.shown] = "policies"
    for kind in _SECTIONS:
        for text in _texts(file.section(kind).values):
            for path in files_matching(directory, text):
                found.setdefault(str(path.relative_to(directory)), kind)
    secrets = _secret_paths(file, directory)
    shown = [
        SiteFile(name=name, kind=kind, size=(directory / name).stat().st_size)
        for name, kind in sorted(found.items(), key=lambda one: (one[1] != "site", one[0]))
        if _is_shown(directory / name, directory, data, secrets)
    ]
    return shown[:_MOST_FILES]


def read_visible_file(directory: Path, data: Path, name: str) -> SiteFileText:
    """The text of one of these files; raises UnknownName for any other, InvalidInput for one that
    is not text.
    """
    names = [one.name for one in visible_files(directory, data)]
    if name not in names:
        raise UnknownName("file", name, names, code="site.unknown_file")
    with (directory / name).open("rb") as file:
        raw = file.read(LONGEST_TEXT + 1)
    is_whole = len(raw) <= LONGEST_TEXT
    try:
        text = raw[:LONGEST_TEXT].decode("utf-8-sig", "strict" if is_whole else "ignore")
    except UnicodeDecodeError:
        raise InvalidInput(
            f"{name} is not text",
            code="site.not_text",
            hint="only texts in UTF-8 are shown",
        ) from None
    return SiteFileText(name=name, text=text, is_whole=is_whole, digest=raw_digest(raw))


def raw_digest(raw: bytes | None) -> str:
    """Names the content of a file; empty for a file that does not exist."""
    return "" if raw is None else sha256(raw).hexdigest()[:_DIGITS]


def is_visible(path: Path, directory: Path, data: Path) -> bool:
    """Whether a file that the site names may be shown: not hidden, not in the data directory, no
    secret.
    """
    file = TomlFile.load(directory / SITE_FILE, name=SITE_FILE)
    return _is_shown(path, directory, data, _secret_paths(file, directory))


def _is_shown(path: Path, directory: Path, data: Path, secrets: set[Path]) -> bool:
    parts = path.relative_to(directory).parts
    return (
        not any(part.startswith(".") or part == ".." for part in parts)
        and is_inside(path, directory)
        and not is_inside(path, data)
        and path.resolve() not in secrets
    )


def _secret_paths(file: TomlFile, directory: Path) -> set[Path]:
    """Every file that the site file names as a secret."""
    named = [
        text.removeprefix(_SECRET_PREFIX)
        for text in _texts(file.section().values)
        if text.startswith(_SECRET_PREFIX)
    ]
    token_file = file.section("node").values.get("token_file", NodeSettings().token_file)
    return {(directory / str(name)).resolve() for name in (*named, token_file) if name}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
