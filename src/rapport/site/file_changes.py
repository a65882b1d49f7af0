"""A change of one file of a site: its difference, what the check says of the whole site with it,
and the replacement in one step. [CN-14]

Before a file is written, the site is checked as it would be then: `site.toml` from memory, any
other file in a second directory whose other files are links to those of the site.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import unified_diff
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from rapport.core.errors import Conflict, InvalidInput, Problem, SiteError, Unavailable
from rapport.kernel.files import atomic_replacement, is_file, sync_path
from rapport.kernel.toml import TomlFile
from rapport.policy.config.loader import ontology_from_site
from rapport.site.interpretations import interpretations_in_site
from rapport.site.site import SITE_FILE, check_site
from rapport.site.visible_files import is_visible, visible_files

NEW_KINDS = ("policies", "interpretations")
"""Kinds of files that may be made."""
_LONGEST_NAME = 200
_NO_DATA = ".no-data"
"""The second directory is in the data directory and has none itself."""
_MOST_FILES = 20_000
_MOST_COPIED = 256 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


def read_raw(directory: Path, name: str) -> bytes | None:
    """The bytes of a file; None when it does not exist. Raises Unavailable."""
    try:
        return (directory / name).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(f"cannot read {name}: {error.strerror}", code="site.unreadable") from None


def in_form_of(before: bytes | None, text: str) -> bytes:
    """A text as bytes, with the mark and the line ends of the file that it replaces."""
    raw = text.encode()
    if before is None:
        return raw
    if before.count(b"\n") == before.count(b"\r\n") > 0 and b"\r" not in raw:
        raw = raw.replace(b"\n", b"\r\n")
    return _BOM + raw if before.startswith(_BOM) and not raw.startswith(_BOM) else raw


def patch_of(name: str, before: bytes | None, after: bytes | None) -> str:
    """The difference as `git diff` and `diff -u` write it; empty when there is none. None: no file.

    >>> print(patch_of("a.dpl", b"x\\ny\\n", b"x\\nz"), end="")
    --- a/a.dpl
    +++ b/a.dpl
    @@ -1,2 +1,2 @@
     x
    -y
    +z
    \\ No newline at end of file
    """
    end = "\t" if " " in name else ""
    old = "/dev/null" if before is None else f"a/{name}{end}"
    new = "/dev/null" if after is None else f"b/{name}{end}"
    lines = unified_diff(_lines(before), _lines(after), old, new)
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _lines(raw: bytes | None) -> list[str]:
    return _LINE.findall((raw or b"").decode("utf-8", "replace"))


# --- writing --------------------------------------------------------------------------------------


def is_read_only(directory: Path, name: str) -> bool:
    """Whether the site is kept elsewhere (`[site] read_only`), or its directory or this file cannot
    be written.
    """
    path = (directory / name).resolve()
    site = TomlFile.load(directory / SITE_FILE, name=SITE_FILE).section("site")
    is_writable = os.access(path.parent, os.W_OK) and (
        not path.exists() or os.access(path, os.W_OK)
    )
    return site.values.get("read_only") is True or not is_writable


def check_writable(directory: Path, name: str) -> None:
    """Raises Conflict for a file that is not to be written."""
    if is_read_only(directory, name):
        raise _read_only(name, "the site is read-only")


def replace_file(directory: Path, name: str, before: bytes | None, after: bytes | None) -> None:
    """Writes the file in one step, or removes it when `after` is None. Raises Conflict when it is
    no longer `before`, or when the disk refuses.
    """
    if read_raw(directory, name) != before:
        raise Conflict(
            f"{name} was changed meanwhile", code="site.changed", hint="look again, then repeat"
        )
    path = (directory / name).resolve()
    try:
        if after is None:
            path.unlink(missing_ok=True)
            sync_path(path.parent)
        else:
            with atomic_replacement(path) as temporary:
                temporary.write_bytes(after)
                if before is not None:  # its rights stay, whatever a node's own files get
                    temporary.chmod(path.stat().st_mode & 0o777)
    except OSError as error:
        raise _read_only(name, str(error.strerror)) from None


def _read_only(name: str, why: str) -> Conflict:
    return Conflict(
        f"{name} cannot be written: {why}",
        code="site.read_only",
        hint="change the file by hand, or where the site's files are kept",
    )


# --- checking -------------------------------------------------------------------------------------


def problems_of_change(directory: Path, data: Path, name: str, after: bytes) -> list[Problem]:
    """Errors of the site as it would be; of warnings and hints only those that are new. Raises
    InvalidInput when nothing in the site would read a new file.
    """
    known = {(one.code, one.file, one.message) for one in check_site(directory)}
    return [
        one
        for one in _problems_then(directory, data, name, after)
        if one.severity == "error" or (one.code, one.file, one.message) not in known
    ]


def _problems_then(directory: Path, data: Path, name: str, after: bytes) -> list[Problem]:
    if name == SITE_FILE:
        try:
            file = TomlFile.parse(after, name=SITE_FILE)
        except SiteError as error:
            return list(error.problems)
        return check_site(directory, file=file, data_directory=data)
    with _site_with(directory, data, name, after) as changed:
        kinds = {one.name: one.kind for one in visible_files(changed, changed / _NO_DATA)}
        if not (directory / name).exists() and kinds.get(name) not in NEW_KINDS:
            raise InvalidInput(
                f"nothing in {SITE_FILE} names {name!r}",
                code="site.not_named",
                hint="a new file matches a pattern of [policies] files or [interpretations] files",
            )
        if problems := _new_functions(directory, changed, name):
            return problems
        return check_site(changed, data_directory=data)


def _new_functions(directory: Path, changed: Path, name: str) -> list[Problem]:
    """Functions of programs that an interpretation would bring in: the right to change one is not
    the right to run what one likes.
    """
    site = TomlFile.load(directory / SITE_FILE, name=SITE_FILE)
    ontology, _problems = ontology_from_site(site, trusted=False)
    before, after = (
        interpretations_in_site(site, place, ontology).files.functions
        for place in (directory, changed)
    )
    return [
        Problem(
            file=name,
            code="site.new_function",
            message=f"no file of the site names the function {one[:_LONGEST_NAME]!r} yet",
            hint="who may change the site's directory brings functions in",
        )
        for one in sorted(after - before)
    ]


def check_new_file(directory: Path, data: Path, name: str) -> None:
    """Raises InvalidInput unless a file of that name may be made: inside the site, without links,
    not hidden, and not there yet.
    """
    path = PurePosixPath(name)
    is_plain = (
        0 < len(name) <= _LONGEST_NAME
        and name.isprintable()
        and "\\" not in name
        and path.as_posix() == name
        and not path.is_absolute()
        and not any(part.startswith(".") for part in path.parts)
    )
    if not is_plain or not _is_free(directory / name, directory, data):
        raise InvalidInput(
            f"no file {name[:_LONGEST_NAME]!r} can be made in this site",
            code="site.bad_file_name",
            hint="a new name in the site's directory, such as too-warm.dpl",
        )


def _is_free(path: Path, directory: Path, data: Path) -> bool:
    """Its directory exists and is reached without links; the file does not exist."""
    parent = directory.resolve() / path.parent.relative_to(directory)
    return (
        parent.is_dir()
        and parent.resolve() == parent
        and not os.path.lexists(path)
        and is_visible(path, directory, data)
    )


@contextmanager
def _site_with(directory: Path, data: Path, name: str, after: bytes) -> Iterator[Path]:
    """The site with another text of one file, in a private directory that is removed again."""
    home = directory.resolve()
    with TemporaryDirectory(prefix="site-check-", dir=data) as place:
        there = Path(place).resolve()
        _link_files(home, there, left_out={data.resolve(), home / ".git"})
        target = there / name
        if target.is_symlink():
            target = target.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # a link to the site's own file is never written to
        target.write_bytes(after)
        yield there


def _link_files(home: Path, there: Path, *, left_out: set[Path]) -> None:
    """All files of a site as hard links; copies where the file system cannot link."""
    files = copied = 0
    for folder, folders, names in os.walk(home):
        at = Path(folder)
        target = there / at.relative_to(home)
        target.mkdir(exist_ok=True)
        folders[:] = [one for one in folders if at / one not in left_out]
        links = [one for one in folders if (at / one).is_symlink()]
        for name in (*names, *links):
            files += 1
            copied += _link(at / name, target / name, home, there)
            if files > _MOST_FILES or copied > _MOST_COPIED:
                raise Conflict(
                    "the directory of the site has too much in it to check a change beforehand",
                    code="site.too_many_files",
                    hint="move recordings and archives elsewhere, or change the file by hand",
                )


def _link(path: Path, target: Path, home: Path, there: Path) -> int:
    """Bytes that were copied. What is no file, or unreadable, is missing there."""
    if path.is_symlink():
        found = path.resolve()
        inside = found.is_relative_to(home)
        target.symlink_to(there / found.relative_to(home) if inside else found)
        return 0
    if not is_file(path) or not os.access(path, os.R_OK):
        return 0
    try:
        os.link(path, target)
        return 0
    except OSError:  # another file system, or one without links
        shutil.copy2(path, target)
        return path.stat().st_size
