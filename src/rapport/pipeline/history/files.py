"""History as Parquet files: which rows of which files are readings, and what their footers tell.
[PI-5, PO-8]

Files of one series stand in arrival order, and so do their rows. Between series a reading comes
when the largest time its series has shown so far is the smallest, as recorded files are merged; so
whether a reading is late is decided within its series.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from rapport.core.errors import InvalidInput, Unsupported
from rapport.core.schema import PARTS, AttributeType
from rapport.pipeline.history.footers import RowGroup, read_footer
from rapport.policy.ontology import Ontology, PushSource
from rapport.policy.recordings.files import superseded_in
from rapport.policy.recordings.formats import FieldMapping
from rapport.policy.replay.replay import Recording


class ReadingsFile(msgspec.Struct, frozen=True):
    """A Parquet file as it was when its footer was read."""

    path: str
    size: int
    """In bytes; a file of another size is another file."""
    groups: tuple[RowGroup, ...]

    @property
    def rows(self) -> int:
        """Of all row groups."""
        return sum(group.rows for group in self.groups)


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Files whose rows arrived one after the other, and which of their columns mean what."""

    files: tuple[ReadingsFile, ...]
    source: str = ""
    """The name of the source, where no column says it."""
    stream: str = ""
    """`concept.attribute`; empty: the files hold readings as they are (`policy/readings.py`)."""
    kind: AttributeType = "number"
    time: str = "time"
    id: str = "id"
    key: str = "key"
    value: tuple[str, ...] = ()
    source_column: str = ""
    """The column that names the source of each row; empty: it is `source`."""
    only_column: str = ""
    """Rows count only where this column has one of `only`; empty: all do."""
    only: tuple[str, ...] = ()
    is_judged: bool = False
    """True: what was late is no longer in it, so rows may stand in any order."""
    left_out: frozenset[str] = frozenset()
    """Ids of rows that others stand in for (`corrects`)."""

    def wanted(self) -> FieldMapping:
        """The columns as readers of recorded files name them."""
        return FieldMapping(self.id, self.time, self.key, self.value, self.kind)

    def columns(self) -> tuple[str, ...]:
        """The names in the files of all that makes a reading of one stream."""
        more = [name for name in (self.source_column, self.only_column) if name]
        return tuple(dict.fromkeys([*self.wanted().fields(), *more]))

    def parts(self) -> dict[str, str]:
        """The columns of readings by their names in the files."""
        names = [f"{self.stream}.{part}" for part in PARTS[self.kind]]
        return dict(zip(self.value, names, strict=True))


class ReadingsFiles(msgspec.Struct, frozen=True):
    """All series of a history."""

    series: tuple[Series, ...]

    @property
    def rows(self) -> int:
        """How many rows the footers tell of."""
        return sum(file.rows for one in self.series for file in one.files)

    def streams(self) -> set[str]:
        """Those that series name; readings as they are may be of any."""
        return {one.stream for one in self.series if one.stream}


def recorded_files(
    ontology: Ontology, recordings: Iterable[tuple[PushSource, Path | Sequence[Path]]]
) -> ReadingsFiles:
    """Recorded files of sources in root form, one series for each source given; several files of
    one are read in the order given. A folder stands for its Parquet files by name.

    Raises Unsupported for a source with an interpretation or another format, SiteError for a file
    that is missing, damaged or without a column the source names.
    """
    return ReadingsFiles(tuple(_recorded(ontology, *one) for one in recordings))


def why_not_files(recordings: Sequence[Recording]) -> str:
    """Why recordings cannot be read as files by workers; empty when they can."""
    for item in recordings:
        if item.read is not None or item.source.interpretation:
            return f"{item.source.name} needs its interpretation"
        if item.strict:
            return "the first faulty row is to end the replay"
        if item.path.suffix.lower() != ".parquet":
            return f"{item.path.name} is no Parquet file"
    return "" if recordings else "there are none"


def readings_files(
    paths: Iterable[Path], *, source: str = "", is_judged: bool = False
) -> ReadingsFiles:
    """Files that hold readings as they are, of any streams, as one series."""
    files = tuple(file for path in paths for file in _files(path, ("time", "id", "stream", "key")))
    return ReadingsFiles((Series(files=files, source=source, is_judged=is_judged),))


def parquet_files(path: Path) -> list[Path]:
    """The file itself, or the Parquet files below a folder by name; hidden ones are passed over."""
    if not path.is_dir():
        return [path]
    found = sorted(
        file
        for file in path.rglob("*.parquet")
        if not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
    )
    if not found:
        raise InvalidInput(
            f"there is no Parquet file in {path}",
            code="history.no_files",
            hint="name a file that ends in .parquet, or a folder that holds some",
        )
    return found


def _recorded(ontology: Ontology, source: PushSource, paths: Path | Sequence[Path]) -> Series:
    if source.interpretation:
        raise Unsupported(
            f"source {source.name!r}, which needs an interpretation,",
            "history read by Spark's workers",
            hint="read it through the site, or from the lake's silver, which is mediated",
        )
    kind = ontology.concepts[source.concept][source.attribute]
    wanted = FieldMapping.of(source, kind)
    given = [paths] if isinstance(paths, Path) else list(paths)
    chosen = [file for path in given for file in parquet_files(path)]
    files = tuple(file for path in chosen for file in _files(path, wanted.fields(), wanted.time))
    gone = superseded_in(chosen, wanted.id)
    return Series(
        files=files,
        source=source.name,
        stream=source.stream,
        kind=kind,
        time=wanted.time,
        id=wanted.id,
        key=wanted.key,
        value=wanted.value,
        left_out=gone,
    )


def _files(path: Path, columns: Sequence[str], time: str = "time") -> Iterator[ReadingsFile]:
    for file in parquet_files(path):
        size, groups = read_footer(file, columns, time)
        yield ReadingsFile(str(file.resolve()), size, groups)
